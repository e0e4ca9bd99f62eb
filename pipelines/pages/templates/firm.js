// The part about one firm: its forecast, its peers in and out, one edge through time, and what changed.
const shownRows = 12;  // peers before "show all"

function passes(one) {
  return (state.sector < 0 || state.model.group[one.peer] === state.sector)
    && (state.least === 0 || one.edge.t >= state.least) && (!state.found || one.edge.found);
}

function firmButton(firm) {
  const ticker = state.model.firms[firm];
  return button({ class: "firm", title: ticker, click: () => choose.firm(firm) }, ticker);
}

function sectorOf(firm) { return state.model.groups[state.model.group[firm]]; }

function tOf(one, title) { return element("span", { class: `t${one.found ? " yes" : ""}`, title }, number(one.t, 1)); }

function unclear(words, title) { return element("span", { class: "unclear", title }, words); }

function showFirm() {
  const { model, firm } = state;
  const [leaders, followers] = ["in", "out"].map(direction => peersOf(firm, state.date, direction));
  fill("firmPart",
    element("h2", { class: "who" }, element("span", { id: "ticker" }, model.firms[firm]), " ", element("small", {}, sectorOf(firm))),
    firmFacts(),
    element("p", { class: "sum", id: "forecast" }, forecastWords()),
    leaders.length + followers.length ? flowFigure(leaders, followers) : null,
    element("div", { class: "beside" },
      peerCard("in", leaders, `Peers in: what moved the forecast of ${model.dates[state.date]}`),
      peerCard("out", followers, "Peers out: whose forecast it moved")));
  const pair = state.pair || (leaders.length ? [leaders[0].peer, firm] : followers.length ? [firm, followers[0].peer] : null);
  const cards = [pair && pairCard(...pair), state.earlier >= 0 && leaders.length ? changeCard(leaders) : null].filter(Boolean);
  fill("pairPart", cards.length ? element("div", { class: "beside" }, cards) : []);
}

function flowFigure(...peers) {
  return element("figure", { class: "flowing" }, flowChart(...peers.map(rows => rows.filter(passes).slice(0, 7))),
    element("figcaption", {}, "Leaders on the left move the forecast of the firm, which moves those of the followers on the "
      + `right${unit.name ? `, in ${unit.name}` : ""}. Blue raises, orange lowers; pale arrows are not among `
      + "the edges found. Click a name to go there."));
}

function firmFacts() {
  const { model, firm } = state;
  const rank = 1 + model.pagerank.filter(one => one > model.pagerank[firm]).length;
  return element("p", { class: "byline" }, [
    `leads ${plural(model.leads[firm], "firm")}, follows ${model.follows[firm]} (edges found)`,
    `out-strength ${withUnit(model.out_strength[firm])}, in-strength ${withUnit(model.in_strength[firm])}`,
    `PageRank ${rank} of ${model.firms.length.toLocaleString("en")}`,
    ...(model.community[firm] > 0 ? [`community ${model.community[firm]}`] : []),
  ].join(" \u00b7 "));
}

function forecastWords() {
  const [date, earlier] = [state.date, state.earlier].map(at => state.model.dates[at]);
  const now = forecastOf(state.firm, state.date);
  if (Number.isNaN(now.forecast)) { return [`No forecast on ${date}: the firm was not in the universe.`]; }
  const fromPeers = now.forecast - now.base;
  const words = [`Forecast of ${date}: `, element("b", {}, withUnit(now.forecast, true)), ` = ${inUnit(now.base, true)} `
    + `without peers ${fromPeers < 0 ? "\u2212" : "+"} ${inUnit(Math.abs(fromPeers))} from peers.`];
  if (state.earlier < 0) { return words; }
  const then = forecastOf(state.firm, state.earlier);
  return [...words, Number.isNaN(then.forecast) ? ` No forecast on ${earlier}.`
    : ` On ${earlier}: ${withUnit(then.forecast, true)}; change ${inUnit(now.forecast - then.forecast, true)}, of which peers `
      + `${inUnit(fromPeers - then.forecast + then.base, true)}.`];
}

function peerCard(direction, rows, title) {
  const { model, firm } = state;
  const inward = direction === "in";
  const id = inward ? "peersIn" : "peersOut";
  if (!rows.length) { return card(id, title, note(whyNoPeers(inward))); }
  const kept = rows.filter(passes);
  const shown = state.all[direction] ? kept : kept.slice(0, shownRows);
  const limit = 1.4 * Math.abs(rows[0].value) || 1;  // a wider interval ends at the edge of its cell
  const histories = historiesOf(firm, direction, shown.map(one => one.peer));
  const columns = [
    [inward ? "leader" : "follower"],
    ["", "graph", "Click a bar to see the edge on all dates"],
    [`${unit.name || "value"} \u00b1 se`, "num", "Shapley value and its Monte Carlo standard error; the bar shows the 95% interval"],
    ["t", "num", "Over all dates: does the leader move the follower more than other peers do? Filled: found at a false discovery rate of 5%"],
    ["att.", "num", "Attention on this date, mean over layers and heads"],
    ["all dates", "graph wideOnly", "The value on every date; a gap was too small to be stored"],
  ];
  const body = shown.map((one, at) => {
    const { leader, follower, row, q } = one.edge;
    const past = histories[at].value;
    const chosen = state.pair && leader === state.pair[0] && follower === state.pair[1];
    return { class: chosen ? "chosen" : undefined, cells: [
      element("div", { class: "peerCell" }, firmButton(one.peer), element("small", {}, sectorOf(one.peer))),
      button({
        class: "history", "aria-label": `Dates of ${model.firms[leader]} to ${model.firms[follower]}`,
        click: () => choose.pair(leader, follower),
      }, errorBar(one.value, model.interval * one.error, limit)),
      `${inUnit(one.value, true)} \u00b1 ${inUnit(one.error)}`,
      tOf(one.edge, row < 0 ? "not among the strongest edges over all dates" : `q ${falseRate(q)}`),
      percent(one.attention),
      sparkline(past, state.date, largestOf(past)),
    ] };
  });
  const hidden = rows.length - kept.length;
  return tableCard(id, title, columns, body, "No peer passes the filters.",
    kept.length > shownRows ? button({ class: "more", click: () => choose.all(direction) },
      state.all[direction] ? `show the largest ${shownRows}` : `show all ${kept.length}`) : null,
    note((hidden ? `${plural(hidden, "peer")} hidden by the filters. ` : "") + (inward ? sumWords(rows)
      : `Followers that have this firm among their ${model.strongest} largest peers of the date, by value or by attention.`)));
}

function whyNoPeers(inward) {
  const sample = " Of many firms a random sample is measured.";
  if (Number.isNaN(forecastOf(state.firm, state.date).forecast)) { return "The firm has no forecast on this date."; }
  if (inward) {
    return isFollower(state.firm) ? "No value is stored for this date." : `The peers of this firm were not measured.${sample}`;
  }
  return `The firm is not among the ${state.model.strongest} largest peers of any measured firm on `
    + (isLeader(state.firm) ? "this date." : `any date.${sample}`);
}

function sumWords(rows) {
  const now = forecastOf(state.firm, state.date);
  const listed = rows.reduce((sum, one) => sum + one.value, 0);
  return `These ${plural(rows.length, "peer")} sum to ${withUnit(listed, true)}, all others to `
    + `${inUnit(now.forecast - now.base - listed, true)}, each at most ${inUnit(largestUnstored(rows))}.`;
}

function pairCard(leader, follower) {
  const { model } = state;
  const [from, to] = [leader, follower].map(firm => model.firms[firm]);
  const found = edge(leader, follower);
  const history = historiesOf(follower, "in", [leader])[0];
  const tested = model.evidence.find(one => one.leader === from && one.follower === to);
  const facts = found.row < 0
    ? [["over all dates", `not among the ${model.strongest} strongest peers of ${to}, and not found`]]
    : [["weight over all dates", withError(found.weight, found.error)], ["mean value", withUnit(found.signed, true)],
      ["t against other peers", number(found.t, 1)],
      ["false discovery rate q", `${falseRate(found.q)} (${found.found ? "" : "not "}found)`],
      ["mean attention", percent(found.attention)]];
  facts.push(["evidence in returns", tested ? `slope ${number(tested.slope, 3, true)} \u00b1 ${number(tested.error, 3)}, t `
    + `${number(tested.t, 1, true)}, q ${falseRate(tested.q)}, ${plural(tested.sessions, "session")}`
    : "not tested (only the strongest edges found are)"]);
  const rows = facts.map(([name, words]) => element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, words)));
  const stored = history.value.filter(value => !Number.isNaN(value)).length;
  const names = `${from} \u2192 ${to}`;
  return card("pair", names,
    stored ? timeChart(history, `Values of ${names} over the dates`) : note("No value of this pair is stored on any date."),
    note(`${unit.name ? `Value in ${unit.name}` : "Value"} with its 95% interval, stored on ${stored} of `
      + `${plural(model.dates.length, "date")}. Another date's value was smaller than what is stored there, not zero.`),
    element("table", { class: "pairs" }, element("tbody", {}, rows)));
}

// What changed of the leaders between the two dates, the largest difference first.
function changeCard(leaders) {
  const { model, date, earlier } = state;
  const [now, then] = [date, earlier].map(at => model.dates[at]);
  const title = `What changed since ${then}`;
  const before = peersOf(state.firm, earlier, "in");
  if (!before.length) { return card("changes", title, note(`The firm has no stored peers on ${then}.`)); }
  const rows = new Map();
  [["now", leaders], ["then", before]].forEach(([when, peers]) => peers.forEach(one => {
    rows.set(one.peer, { peer: one.peer, edge: one.edge, ...rows.get(one.peer), [when]: one });
  }));
  const changeOf = row => (row.now ? row.now.value : 0) - (row.then ? row.then.value : 0);
  const cell = (one, peers) => one ? inUnit(one.value, true)
    : unclear(`<\u2009${inUnit(largestUnstored(peers))}`, "not stored: smaller than this");
  const kept = [...rows.values()].filter(passes).sort((a, b) => Math.abs(changeOf(b)) - Math.abs(changeOf(a)));
  const body = kept.slice(0, shownRows).map(row => {
    const change = changeOf(row);
    const error = row.now && row.then ? Math.hypot(row.now.error, row.then.error) : NaN;
    const words = !row.then ? "new" : !row.now ? "gone" : Math.abs(change) > 2 * error ? "" : "within 2 se";
    return { cells: [firmButton(row.peer), cell(row.then, before), cell(row.now, leaders),
      Number.isNaN(error) ? unclear(`about ${inUnit(change, true)}`) : `${inUnit(change, true)} \u00b1 ${inUnit(error)}`,
      unclear(words)] };
  });
  const columns = [["leader"], [then, "num"], [now, "num"], ["change \u00b1 se", "num"], [""]];
  const fit = at => `fold ${model.folds[at]}, seed ${model.seeds[at]}`;
  return tableCard("changes", title, columns, body, "No leader passes the filters.",
    note((model.folds[date] === model.folds[earlier] ? "" : "The two dates are explained by two fitted models "
      + `(${fit(earlier)}; ${fit(date)}), so a change is also one between models. `)
      + "New and gone mean: stored on one of the dates only."));
}
