// The state of the page, its controls, and the address: #ticker/date can be bookmarked.
const state = {
  model: null, firm: 0, date: 0, earlier: -1, sector: -1, least: 0, found: false,
  pair: null, matrix: "near", all: { in: false, out: false }, maps: [],
};
const about30Days = 30 * 864e5;
const maximumMatches = 12;
let active = -1;  // of the matches of the search

const choose = {
  firm: function (firm, leader) {
    state.firm = firm;
    state.pair = leader === undefined ? null : [leader, firm];
    state.all = { in: false, out: false };
    remember(true);
    refresh();
    place(leader === undefined ? "firmPart" : "pairPart").scrollIntoView({ block: "start" });
  },
  pair: function (leader, follower) { state.pair = [leader, follower]; refreshFirm(); },
  all: function (direction) { state.all[direction] = !state.all[direction]; refreshFirm(); },
  matrix: function (matrix) { state.matrix = matrix; refreshMaps(); },
};

function address() {
  return "#" + encodeURIComponent(state.model.firms[state.firm]) + "/" + state.model.dates[state.date];
}

// A new firm is a new entry of the browser's history; a new date is not.
function remember(entry) {
  const hash = address();
  if (hash === window.location.hash) { return; }
  if (entry) { window.location.hash = hash; } else { window.location.replace(hash); }
}

function recall() {
  const parts = window.location.hash.slice(1).split("/");
  let ticker = "";
  try { ticker = decodeURIComponent(parts.slice(0, -1).join("/")); } catch (error) { return; }  // not an address of this page
  const firm = state.model.number.get(ticker);
  const date = state.model.dates.indexOf(parts[parts.length - 1]);
  if (firm !== undefined) { state.firm = firm; }
  if (date >= 0) { setDate(date); }
}

function setDate(date) {
  const dates = state.model.dates;
  state.date = date;
  place("date").value = date;
  place("date").setAttribute("aria-valuetext", dates[date]);
  place("shown").textContent = dates[date] + " (" + (date + 1) + " of " + dates.length + ")";
  place("before").disabled = date === 0;
  place("after").disabled = date === dates.length - 1;
  const alike = earlierDates(state.model, date);
  const kept = alike.includes(state.earlier) ? state.earlier : lastMonth(dates, date, alike);
  const options = alike.map(at => element("option", { value: at }, dates[at]));
  fill("earlier", element("option", { value: -1 }, options.length ? "no other date" : "no earlier date"), options);
  state.earlier = kept;
  place("earlier").value = String(kept);
}

// Earlier dates that the same seed explains, newest first: a change from seed to seed is none of the market.
function earlierDates(model, date) {
  const all = model.dates.map((_, at) => at);
  return all.filter(at => at < date && model.seeds[at] === model.seeds[date]).reverse();
}

// Of these dates the last one at least 30 days before, or the first one; -1 without an earlier date.
function lastMonth(dates, date, alike) {
  const limit = Date.parse(dates[date]) - about30Days;
  const month = alike.find(at => Date.parse(dates[at]) <= limit);
  return month !== undefined ? month : alike.length ? alike[alike.length - 1] : -1;
}

function refreshFirm() { showFirm(state.model, state, choose); }

function refreshMaps() { state.maps = showMatrices(state.model, state, choose); }

function refresh() {
  place("firm").value = state.model.firms[state.firm];
  refreshFirm();
  refreshMaps();
}

// Start with the follower of the strongest edge found: there is something to see.
function firstFirm(model) {
  let best = -1;
  for (let row = 0; row < model.edges.leader.length; row += 1) {
    const better = best < 0 || model.edges.found[row] > model.edges.found[best]
      || (model.edges.found[row] === model.edges.found[best] && model.edges.weight[row] > model.edges.weight[best]);
    if (better) { best = row; }
  }
  return best < 0 ? 0 : model.edges.follower[best];
}

function showModel(model) {
  const ticker = state.model ? state.model.firms[state.firm] : null;
  state.model = open(model);
  state.pair = null;
  state.firm = model.number.has(ticker) ? model.number.get(ticker) : firstFirm(model);
  state.earlier = -1;
  place("about").textContent = " \u00b7 unit of the forecasts: " + unit.sentence + (unit.name ? "; 1 bps is 0.01%" : "");
  place("date").max = model.dates.length - 1;
  place("date").disabled = model.dates.length < 2;
  fill("sector", element("option", { value: -1 }, "all sectors"), model.groups.map(function (name, at) {
    return element("option", { value: at }, name);
  }));
  state.sector = -1;
  setDate(model.dates.length - 1);
  recall();
  document.querySelectorAll("[data-model]").forEach(function (part) {
    part.hidden = page.models[Number(part.dataset.model)] !== model;
  });
  refresh();
  showNetwork(model, state, choose);
}

function filter() {
  state.sector = Number(place("sector").value);
  state.least = Number(place("least").value);
  state.found = place("found").checked;
  place("leastShown").textContent = state.least ? number(state.least, 1) : "any";
  refreshFirm();
  filterNetwork(state.model, state, choose);
}

// The search: tickers that begin with the text, then those that contain it, then firms of a sector.
function matchesOf(text) {
  const wanted = text.trim().toLowerCase();
  const model = state.model;
  const ranked = [];
  model.firms.forEach(function (ticker, firm) {
    const name = ticker.toLowerCase();
    const rank = name.startsWith(wanted) ? 0 : name.includes(wanted) ? 1 : sectorOf(model, firm).toLowerCase().includes(wanted) ? 2 : 3;
    if (rank < 3) { ranked.push([rank, firm]); }
  });
  return ranked.sort((one, two) => one[0] - two[0] || one[1] - two[1]).slice(0, maximumMatches)
    .map(one => one[1]);
}

function showMatches(firms) {
  active = firms.length ? 0 : -1;
  place("matches").hidden = !firms.length;
  place("firm").setAttribute("aria-expanded", String(firms.length > 0));
  fill("matches", firms.map(function (firm, at) {
    return element("li", { role: "option", id: "match" + at, "data-firm": firm, pointerdown: function (event) {
      event.preventDefault();
      take(firm);
    } }, element("b", {}, state.model.firms[firm]), " ", element("small", {}, sectorOf(state.model, firm)
      + (isFollower(state.model, firm) || isLeader(state.model, firm) ? "" : ", not measured")));
  }));
  mark();
}

function mark() {
  Array.from(place("matches").children).forEach(function (item, at) { item.setAttribute("aria-selected", String(at === active)); });
  if (active >= 0) { place("firm").setAttribute("aria-activedescendant", "match" + active); }
  else { place("firm").removeAttribute("aria-activedescendant"); }
}

function take(firm) {
  showMatches([]);
  place("firm").blur();
  choose.firm(firm);
}

place("firm").addEventListener("input", function () { showMatches(this.value.trim() ? matchesOf(this.value) : []); });
place("firm").addEventListener("focus", function () { this.select(); });
place("firm").addEventListener("blur", function () { showMatches([]); this.value = state.model.firms[state.firm]; });
place("firm").addEventListener("keydown", function (event) {
  const items = place("matches").children;
  if ((event.key === "ArrowDown" || event.key === "ArrowUp") && items.length) {
    event.preventDefault();
    active = (active + (event.key === "ArrowDown" ? 1 : items.length - 1)) % items.length;
    mark();
  } else if (event.key === "Enter") {
    event.preventDefault();
    if (active >= 0) { take(Number(items[active].dataset.firm)); }
  } else if (event.key === "Escape") {
    showMatches([]);
  }
});
document.addEventListener("keydown", function (event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
  if (event.key === "/" && !typing) { event.preventDefault(); place("firm").focus(); }
});
place("controls").addEventListener("submit", function (event) { event.preventDefault(); });
const moveTo = function (date) { setDate(date); remember(false); refresh(); };
place("date").addEventListener("input", function () { moveTo(Number(this.value)); });
place("before").addEventListener("click", function () { moveTo(state.date - 1); });
place("after").addEventListener("click", function () { moveTo(state.date + 1); });
place("earlier").addEventListener("change", function () { state.earlier = Number(this.value); refreshFirm(); });
["sector", "found"].forEach(function (id) { place(id).addEventListener("change", filter); });
place("least").addEventListener("input", filter);
place("leastShown").textContent = "any";
window.addEventListener("hashchange", function () {
  if (window.location.hash === address()) { return; }  // the page itself has changed it
  state.pair = null;
  recall();
  refresh();
});

// The maps are drawn in the colours of the screen or of the paper, and as wide as the page.
const redraw = function () { state.maps.forEach(function (map) { map.draw(); }); };
window.addEventListener("resize", redraw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
window.matchMedia("print").addEventListener("change", redraw);

fill("model", page.models.map((model, at) => element("option", { value: at }, model.model)));
place("models").hidden = false;
place("model").addEventListener("change", function () { showModel(page.models[Number(this.value)]); });
showModel(page.models[0]);
