// The state of the page, its controls, and the address: #ticker/date can be bookmarked.
const state = {
  model: null, firm: 0, date: 0, earlier: -1, sector: -1, least: 0, found: false,
  pair: null, matrix: "near", all: { in: false, out: false },
};
const about30Days = 30 * 864e5;
const maximumMatches = 12;
let active = -1;  // of the matches of the search

const choose = {
  firm(firm, leader) {
    Object.assign(state, { firm, pair: leader === undefined ? null : [leader, firm], all: { in: false, out: false } });
    remember(true);
    refresh();
    place(leader === undefined ? "firmPart" : "pairPart").scrollIntoView({ block: "start" });
  },
  pair(leader, follower) { state.pair = [leader, follower]; showFirm(); },
  all(direction) { state.all[direction] = !state.all[direction]; showFirm(); },
};

function address() { return `#${encodeURIComponent(state.model.firms[state.firm])}/${state.model.dates[state.date]}`; }

// A new firm is a new entry of the browser's history; a new date is not.
function remember(entry) {
  const hash = address();
  if (hash === window.location.hash) { return; }
  if (entry) { window.location.hash = hash; } else { window.location.replace(hash); }
}

// Goes to the firm and the date of the address, and names what this page does not have.
function recall() {
  const parts = window.location.hash.slice(1).split("/");
  const date = parts.length > 1 ? parts.pop() : null;
  let ticker = parts.join("/");
  try { ticker = decodeURIComponent(ticker); } catch (error) { /* it is shown as it stands */ }
  const firm = state.model.number.get(ticker), { dates } = state.model;
  const lacks = [
    ticker && firm === undefined ? `no firm ${ticker}` : "",
    date && !dates.includes(date) ? `no date ${date}, only ${dates.length} from ${dates[0]} to ${dates.at(-1)}` : "",
  ].filter(Boolean);
  place("missing").textContent = lacks.length ? `The network of ${state.model.model} has ${lacks.join(" and ")}.` : "";
  state.firm = firm ?? state.firm;
  if (dates.includes(date)) { setDate(dates.indexOf(date)); }
}

// Earlier dates that the same seed explains can be compared: a change from seed to seed is none of the market.
// The last one at least 30 days before is chosen, or else the first one.
function setDate(date) {
  const { dates, seeds } = state.model;
  state.date = date;
  place("date").value = date;
  place("date").setAttribute("aria-valuetext", dates[date]);
  place("shown").textContent = `${dates[date]} (${date + 1} of ${dates.length})`;
  place("before").disabled = date === 0;
  place("after").disabled = date === dates.length - 1;
  const alike = dates.map((_, at) => at).filter(at => at < date && seeds[at] === seeds[date]).reverse();
  if (!alike.includes(state.earlier)) {
    const limit = Date.parse(dates[date]) - about30Days;
    state.earlier = alike.find(at => Date.parse(dates[at]) <= limit) ?? alike.at(-1) ?? -1;
  }
  fill("earlier", element("option", { value: -1 }, alike.length ? "no other date" : "no earlier date"),
    alike.map(at => element("option", { value: at }, dates[at])));
  place("earlier").value = String(state.earlier);
}

function refresh() {
  place("firm").value = state.model.firms[state.firm];
  showFirm();
  showMatrices();
}

// A model starts with the firm that is shown, or with the follower of its strongest edge: there is something to see.
function showModel(model) {
  const ticker = state.model && state.model.firms[state.firm];
  open(model);
  const firm = model.number.get(ticker) ?? model.edges.follower[model.strongestFirst[0]] ?? 0;
  Object.assign(state, { model, firm, pair: null, earlier: -1, sector: -1 });
  place("about").textContent = ` \u00b7 unit of the forecasts: ${unit.sentence}${unit.name ? "; 1 bps is 0.01%" : ""}`;
  place("date").max = model.dates.length - 1;
  place("date").disabled = model.dates.length < 2;
  fill("sector", element("option", { value: -1 }, "all sectors"),
    model.groups.map((name, at) => element("option", { value: at }, name)));
  setDate(model.dates.length - 1);
  recall();
  document.querySelectorAll("[data-model]").forEach(part => { part.hidden = page.models[Number(part.dataset.model)] !== model; });
  refresh();
  showNetwork();
}

function filter() {
  state.sector = Number(place("sector").value);
  state.least = Number(place("least").value);
  state.found = place("found").checked;
  place("leastShown").textContent = state.least ? number(state.least, 1) : "any";
  showFirm();
  showNetwork();
}

// The search: tickers that begin with the text, then those that contain it, then firms of a sector.
function matchesOf(text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) { return []; }
  const ranked = state.model.firms.map((ticker, firm) => {
    const name = ticker.toLowerCase();
    const rank = [name.startsWith(wanted), name.includes(wanted), sectorOf(firm).toLowerCase().includes(wanted)].indexOf(true);
    return [rank, firm];
  });
  return ranked.filter(([rank]) => rank >= 0).sort((one, two) => one[0] - two[0] || one[1] - two[1])
    .slice(0, maximumMatches).map(([, firm]) => firm);
}

function showMatches(firms, text = "") {
  active = firms.length ? 0 : -1;
  place("missing").textContent = text.trim() && !firms.length ? `No firm or sector contains ${text.trim()}.` : "";
  place("matches").hidden = !firms.length;
  place("firm").setAttribute("aria-expanded", String(firms.length > 0));
  fill("matches", firms.map((firm, at) => element("li", {
    role: "option", id: `match${at}`, "data-firm": firm,
    pointerdown: event => { event.preventDefault(); take(firm); },
  }, element("b", {}, state.model.firms[firm]), " ",
  element("small", {}, sectorOf(firm) + (isFollower(firm) || isLeader(firm) ? "" : ", not measured")))));
  mark();
}

function mark() {
  Array.from(place("matches").children).forEach((item, at) => item.setAttribute("aria-selected", String(at === active)));
  if (active >= 0) { place("firm").setAttribute("aria-activedescendant", `match${active}`); }
  else { place("firm").removeAttribute("aria-activedescendant"); }
}

function take(firm) {
  showMatches([]);
  place("firm").blur();
  choose.firm(firm);
}

function on(id, event, handler) { place(id).addEventListener(event, handler); }

const moveTo = date => { setDate(date); remember(false); refresh(); };
on("firm", "input", event => showMatches(matchesOf(event.target.value), event.target.value));
on("firm", "focus", event => event.target.select());
on("firm", "blur", event => { showMatches([]); event.target.value = state.model.firms[state.firm]; });
on("firm", "keydown", event => {
  const items = place("matches").children;
  const step = { ArrowDown: 1, ArrowUp: items.length - 1 }[event.key];
  if (step !== undefined && items.length) {
    event.preventDefault();
    active = (active + step) % items.length;
    mark();
  } else if (event.key === "Enter") {
    event.preventDefault();
    if (active >= 0) { take(Number(items[active].dataset.firm)); }
  } else if (event.key === "Escape") {
    showMatches([]);
  }
});
document.addEventListener("keydown", event => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
  if (event.key === "/" && !typing) { event.preventDefault(); place("firm").focus(); }
});
on("controls", "submit", event => event.preventDefault());
on("date", "input", event => moveTo(Number(event.target.value)));
on("before", "click", () => moveTo(state.date - 1));
on("after", "click", () => moveTo(state.date + 1));
on("earlier", "change", event => { state.earlier = Number(event.target.value); showFirm(); });
["sector", "found"].forEach(id => on(id, "change", filter));
on("least", "input", filter);
window.addEventListener("hashchange", () => {
  if (window.location.hash === address()) { return; }  // the page itself has changed it
  state.pair = null;
  recall();
  refresh();
});

// The maps are drawn in the colours of the screen or of the paper.
["(prefers-color-scheme: dark)", "print"].forEach(query => window.matchMedia(query).addEventListener("change", showMatrices));

place("leastShown").textContent = "any";
fill("model", page.models.map((model, at) => element("option", { value: at }, model.model)));
place("models").hidden = false;
on("model", "change", event => showModel(page.models[Number(event.target.value)]));
showModel(page.models[0]);
