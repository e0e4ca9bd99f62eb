// The part about one firm: its forecast, its peers in and out, one edge through time, and what changed.
const shownRows = 12;  // peers before "show all"

function passes(model, state, one) {
  return (state.sector < 0 || model.group[one.peer] === state.sector)
    && (state.least === 0 || one.edge.t >= state.least) && (!state.found || one.edge.found);
}

function firmButton(model, firm, choose) {
  return element("button", { type: "button", class: "firm", title: model.firms[firm], click: function () { choose(firm); } }, model.firms[firm]);
}

function sectorOf(model, firm) { return model.groups[model.group[firm]]; }

function showFirm(model, state, choose) {
  const firm = state.firm;
  const leaders = peersOf(model, firm, state.date, "in");
  const followers = peersOf(model, firm, state.date, "out");
  const date = model.dates[state.date];
  fill("firmPart",
    element("h2", { class: "who" }, element("span", { id: "ticker" }, model.firms[firm]), " ",
      element("small", {}, sectorOf(model, firm))),
    firmFacts(model, state),
    forecastLine(model, state, leaders),
    leaders.length + followers.length ? flowFigure(model, state, leaders, followers, choose) : null,
    element("div", { class: "beside" },
      peerCard(model, state, "in", leaders, "Peers in: what moved the forecast of " + date, choose),
      peerCard(model, state, "out", followers, "Peers out: whose forecast it moved", choose)));
  showPair(model, state, leaders, followers, choose);
}

function flowFigure(model, state, leaders, followers, choose) {
  const kept = function (rows) { return rows.filter(function (one) { return passes(model, state, one); }).slice(0, 7); };
  const nameOf = one => model.firms[one];
  return element("figure", { class: "flowing" },
    flowChart(state.firm, kept(leaders), kept(followers), nameOf, choose.firm),
    element("figcaption", {}, "Leaders on the left move the forecast of the firm, which moves those of the followers on the "
      + "right" + (unit.name ? ", in " + unit.name : "") + ". Blue raises, orange lowers; pale arrows are not among "
      + "the edges found. Click a name to go there."));
}

function firmFacts(model, state) {
  const firm = state.firm;
  const rank = 1 + model.pagerank.filter(one => one > model.pagerank[firm]).length;
  const facts = [
    "leads " + plural(model.leads[firm], "firm") + ", follows " + model.follows[firm] + " (edges found)",
    "out-strength " + withUnit(model.out_strength[firm]) + ", in-strength " + withUnit(model.in_strength[firm]),
    "PageRank " + rank + " of " + model.firms.length.toLocaleString("en"),
  ];
  if (model.community[firm] > 0) { facts.push("community " + model.community[firm]); }
  return element("p", { class: "byline" }, facts.join(" \u00b7 "));
}

function forecastLine(model, state, leaders) {
  const now = forecastOf(model, state.firm, state.date);
  const line = element("p", { class: "sum", id: "forecast" });
  const date = model.dates[state.date];
  if (Number.isNaN(now.forecast)) {
    line.append("No forecast on " + date + ": the firm was not in the universe.");
    return line;
  }
  line.append("Forecast of ", date, ": ", element("b", {}, withUnit(now.forecast, true)), " = " + inUnit(now.base, true)
    + " without peers ", signedTerm(now.forecast - now.base), " from peers.");
  if (state.earlier >= 0) {
    const then = forecastOf(model, state.firm, state.earlier);
    line.append(Number.isNaN(then.forecast) ? " No forecast on " + model.dates[state.earlier] + "."
      : " On " + model.dates[state.earlier] + ": " + withUnit(then.forecast, true) + "; change "
        + inUnit(now.forecast - then.forecast, true) + ", of which peers "
        + inUnit(now.forecast - now.base - then.forecast + then.base, true) + ".");
  }
  return line;
}

function signedTerm(value) {
  return (value < 0 ? "\u2212 " : "+ ") + inUnit(Math.abs(value));
}

function peerCard(model, state, direction, rows, title, choose) {
  const inward = direction === "in";
  const id = inward ? "peersIn" : "peersOut";
  const measured = inward ? isFollower(model, state.firm) : isLeader(model, state.firm);
  if (!rows.length) {
    const sample = " Of many firms a random sample is measured.";
    const why = Number.isNaN(forecastOf(model, state.firm, state.date).forecast) ? "The firm has no forecast on this date."
      : inward ? (measured ? "No value is stored for this date." : "The peers of this firm were not measured." + sample)
        : "The firm is not among the " + model.strongest + " largest peers of any measured firm on "
          + (measured ? "this date." : "any date." + sample);
    return card(id, title, note(why));
  }
  const kept = rows.filter(one => passes(model, state, one));
  const shown = state.all[direction] ? kept : kept.slice(0, shownRows);
  const limit = 1.4 * Math.abs(rows[0].value) || 1;  // a wider interval ends at the edge of its cell
  const histories = historiesOf(model, state.firm, direction, shown.map(one => one.peer));
  const columns = [
    [inward ? "leader" : "follower"],
    ["", "graph", "Click a bar to see the edge on all dates"],
    [(unit.name || "value") + " \u00b1 se", "num", "Shapley value and its Monte Carlo standard error; the bar shows the 95% interval"],
    ["t", "num", "Over all dates: does the leader move the follower more than other peers do? Filled: found at a false discovery rate of 5%"],
    ["att.", "num", "Attention on this date, mean over layers and heads"],
    ["all dates", "graph wideOnly", "The value on every date; a gap was too small to be stored"],
  ];
  const body = shown.map(function (one, at) {
    const chosen = state.pair && one.edge.leader === state.pair[0] && one.edge.follower === state.pair[1];
    const past = histories[at].value;
    const top = Math.max.apply(null, Array.from(past).filter(value => !Number.isNaN(value)).map(Math.abs));
    return { class: chosen ? "chosen" : undefined, cells: [
      element("div", { class: "peerCell" }, firmButton(model, one.peer, choose.firm),
        element("small", {}, sectorOf(model, one.peer))),
      element("button", { type: "button", class: "history", "aria-label": "Dates of " + model.firms[one.edge.leader] + " to " + model.firms[one.edge.follower],
        click: function () { choose.pair(one.edge.leader, one.edge.follower); } }, errorBar(one.value, model.interval * one.error, limit)),
      inUnit(one.value, true) + " \u00b1 " + inUnit(one.error),
      element("span", { class: "t" + (one.edge.found ? " yes" : ""), title: one.edge.row < 0 ? "not among the strongest edges over all dates" : "q " + falseRate(one.edge.q) }, number(one.edge.t, 1)),
      percent(one.attention),
      sparkline(past, state.date, top || 1),
    ] };
  });
  const hidden = rows.length - kept.length;
  const more = kept.length > shownRows ? element("button", { type: "button", class: "more", click: function () { choose.all(direction); } },
    state.all[direction] ? "show the largest " + shownRows : "show all " + kept.length) : null;
  return card(id, title, kept.length ? table(title, columns, body) : note("No peer passes the filters."), more,
    note((hidden ? plural(hidden, "peer") + " hidden by the filters. " : "") + rest(model, state, inward, rows)));
}

function rest(model, state, inward, rows) {
  if (!inward) {
    return "Followers that have this firm among their " + model.strongest + " largest peers of the date, by value or by attention.";
  }
  const now = forecastOf(model, state.firm, state.date);
  const listed = rows.reduce((sum, one) => sum + one.value, 0);
  return "These " + plural(rows.length, "peer") + " sum to " + withUnit(listed, true) + ", all others to "
    + inUnit(now.forecast - now.base - listed, true) + ", each at most " + inUnit(largestUnstored(model, rows)) + ".";
}

function showPair(model, state, leaders, followers, choose) {
  const blocks = [];
  const pair = state.pair || (leaders.length ? [leaders[0].peer, state.firm]
    : followers.length ? [state.firm, followers[0].peer] : null);
  if (pair) { blocks.push(pairCard(model, state, pair)); }
  const changes = state.earlier >= 0 && leaders.length ? changeCard(model, state, leaders, choose) : null;
  if (changes) { blocks.push(changes); }
  fill("pairPart", blocks.length ? element("div", { class: "beside" }, blocks) : []);
}

function pairCard(model, state, pair) {
  const found = edge(model, pair[0], pair[1]);
  const names = model.firms[pair[0]] + " \u2192 " + model.firms[pair[1]];
  const history = historiesOf(model, pair[1], "in", [pair[0]])[0];
  const facts = [];
  if (found.row >= 0) {
    facts.push(["weight over all dates", withError(found.weight, found.error)], ["mean value", withUnit(found.signed, true)],
      ["t against other peers", number(found.t, 1)],
      ["false discovery rate q", falseRate(found.q) + (found.found ? " (found)" : " (not found)")],
      ["mean attention", percent(found.attention)]);
  } else {
    facts.push(["over all dates", "not among the " + model.strongest + " strongest peers of " + model.firms[pair[1]] + ", and not found"]);
  }
  const tested = model.evidence.find(function (one) {
    return one.leader === model.firms[pair[0]] && one.follower === model.firms[pair[1]];
  });
  facts.push(["evidence in returns", tested ? "slope " + number(tested.slope, 3, true) + " \u00b1 " + number(tested.error, 3) + ", t "
    + number(tested.t, 1, true) + ", q " + (tested.q === null ? "\u2013" : falseRate(tested.q)) + ", " + plural(tested.sessions, "session")
    : "not tested (only the strongest edges found are)"]);
  const rows = facts.map(function (fact) {
    return element("tr", {}, element("th", { scope: "row" }, fact[0]), element("td", {}, fact[1]));
  });
  const stored = history.value.filter(value => !Number.isNaN(value)).length;
  return card("pair", names,
    stored ? timeChart(model.dates, Array.from(history.value), history.error, model.interval, state.date, state.earlier,
      "Values of " + names + " over the dates") : note("No value of this pair is stored on any date."),
    note((unit.name ? "Value in " + unit.name : "Value") + " with its 95% interval, stored on " + stored + " of " + plural(model.dates.length, "date")
      + ". Another date's value was smaller than what is stored there, not zero."),
    element("table", { class: "pairs" }, element("tbody", {}, rows)));
}

// Leaders whose value differs between the two dates, the largest difference first.
function changesOf(model, state, leaders) {
  const before = peersOf(model, state.firm, state.earlier, "in");
  const bounds = { now: largestUnstored(model, leaders), then: largestUnstored(model, before) };
  const rows = new Map();
  leaders.forEach(function (one) { rows.set(one.peer, { peer: one.peer, now: one, then: null, edge: one.edge }); });
  before.forEach(function (one) {
    const row = rows.get(one.peer) || { peer: one.peer, now: null, then: null, edge: one.edge };
    row.then = one;
    rows.set(one.peer, row);
  });
  rows.forEach(function (row) {
    row.change = (row.now ? row.now.value : 0) - (row.then ? row.then.value : 0);
    row.error = row.now && row.then ? Math.hypot(row.now.error, row.then.error) : NaN;
  });
  const sorted = Array.from(rows.values()).sort((a, b) => Math.abs(b.change) - Math.abs(a.change));
  return { rows: sorted, bounds: bounds, any: before.length > 0 };
}

function changeCard(model, state, leaders, choose) {
  const earlier = model.dates[state.earlier];
  const title = "What changed since " + earlier;
  const changes = changesOf(model, state, leaders);
  if (!changes.any) { return card("changes", title, note("The firm has no stored peers on " + earlier + ".")); }
  const kept = changes.rows.filter(row => passes(model, state, row));
  const cell = function (one, bound) {
    return one ? inUnit(one.value, true) : element("span", { class: "unclear", title: "not stored: smaller than this" }, "<\u2009" + inUnit(bound));
  };
  const columns = [["leader"], [earlier, "num"], [model.dates[state.date], "num"],
    ["change \u00b1 se", "num"], [""]];
  const body = kept.slice(0, shownRows).map(function (row) {
    const sure = Math.abs(row.change) > 2 * row.error;
    const words = !row.then ? "new" : !row.now ? "gone" : sure ? "" : "within 2 se";
    return { cells: [firmButton(model, row.peer, choose.firm), cell(row.then, changes.bounds.then), cell(row.now, changes.bounds.now),
      row.now && row.then ? inUnit(row.change, true) + " \u00b1 " + inUnit(row.error) : element("span", { class: "unclear" }, "about " + inUnit(row.change, true)),
      element("span", { class: "unclear" }, words)] };
  });
  const models = model.folds[state.date] !== model.folds[state.earlier];
  return card("changes", title, body.length ? table(title, columns, body) : note("No leader passes the filters."),
    note((models ? "The two dates are explained by two fitted models (" + fitOf(model, state.earlier) + "; " + fitOf(model, state.date)
      + "), so a change is also one between models. " : "") + "New and gone mean: stored on one of the dates only."));
}

function fitOf(model, date) { return "fold " + model.folds[date] + ", seed " + model.seeds[date]; }

// The two heat maps, of the firm's neighbourhood or of all groups.
function showMatrices(model, state, choose) {
  const near = state.matrix === "near";
  const maps = near
    ? neighbourMaps(model, state, peersOf(model, state.firm, state.date, "in"), peersOf(model, state.firm, state.date, "out"))
    : groupMaps(model);
  const views = [["near", "Around " + model.firms[state.firm]], ["groups", "Sectors"]].map(function (one) {
    return element("button", { type: "button", "aria-pressed": String(state.matrix === one[0]), click: function () { choose.matrix(one[0]); } }, one[1]);
  });
  const figures = maps.length ? element("div", { class: "beside" }, maps.map(map => map.figure))
    : note(near ? "Nothing is stored around this firm on this date; choose the sectors, another date or another firm."
      : "No pair of sectors was measured.");
  fill("matrixPart", element("h2", {}, "SHAP beside attention"), element("div", { class: "views" }, views), figures);
  maps.forEach(function (map) { map.draw(); });
  return maps;
}
