// The parts about the whole network: the verdict on attention, key figures, strongest edges and leading firms.
const listedEdges = 20;
const tones = { yes: "good", no: "bad", inconclusive: "caution" };

function showVerdict(model) {
  const answers = new Map();
  const near = new Map();
  model.verdict.forEach(function (row) { answers.set(row.over, row.answer); near.set(row.over, row.near); });
  const box = place("verdict");
  const over = function (name) { return model.verdict.filter(function (row) { return row.over === name; }); };
  const main = answers.get("peers");
  box.className = "verdict " + (tones[main] || "caution");
  if (!answers.size) {
    fill("verdict", element("p", { class: "headline" }, element("b", {}, "Attention usable as an explanation: not measured."),
      " The run has no verdict on the attention of this model."));
    return;
  }
  const why = function (name) {
    const rows = over(name);
    const failed = rows.filter(function (row) { return row.outcome === "fail"; });
    const deciding = failed.length ? failed : rows.filter(function (row) { return row.outcome !== "pass"; });
    return (deciding.length ? deciding : rows).map(criterion).join("; ") + ".";
  };
  const lines = ["peers", "days"].filter(function (name) { return answers.has(name); }).map(function (name) {
    return element("p", { class: name === "peers" ? "headline" : "" }, element("b", {}, (name === "peers" ? "Attention usable as an explanation of peers: "
      : "Over days: ") + answers.get(name) + (near.get(name) ? ", but near " + near.get(name) : "") + ". "), why(name));
  });
  const columns = [{ title: "over" }, { title: "criterion" }, { title: "value", class: "num" }, { title: "90% interval", class: "num" },
    { title: "needs", class: "num" }, { title: "outcome" }, { title: "margin", class: "num", hint: "Distance to another outcome, in halves of the interval" }];
  const rows = model.verdict.map(function (row) {
    return { cells: [row.over, element("span", { title: row.question }, row.criterion), number(row.value, 2), interval(row), needs(row), row.outcome, margin(row)] };
  });
  fill("verdict", lines, element("details", {}, element("summary", {}, "All criteria. A failure makes the answer no; an open criterion makes it inconclusive."),
    table("Criteria of the verdict on attention", columns, rows)));
}

function criterion(row) {
  const value = row.value === null ? " not measured" : " " + number(row.value, 2) + (row.low === null ? "" : " (" + interval(row) + ")");
  return row.criterion + value + ", needs " + needs(row) + ": " + row.outcome
    + (row.margin === null ? "" : ", margin " + margin(row));
}

function margin(row) { return row.margin === null ? "\u2013" : number(row.margin, 2); }

function interval(row) { return row.low === null ? "\u2013" : number(row.low, 2) + " to " + number(row.high, 2); }

function needs(row) {
  return (row.above ? "at least " : "below ") + number(row.threshold, 2)
    + (row.fails === row.threshold ? "" : ", fails " + (row.above ? "below " : "above ") + number(row.fails, 2));
}

function showTiles(model) {
  const measures = new Map(model.network.map(function (row) { return [row.measure, row]; }));
  const tile = function (title, value, detail) {
    return element("div", {}, element("dt", {}, title), element("dd", {}, value, element("small", {}, detail)));
  };
  const tiles = [tile("firms", model.firms.length.toLocaleString("en"), plural(model.dates.length, "date"))];
  const against = function (name, title) {
    const row = measures.get(name);
    if (row && row.value !== null) {
      tiles.push(tile(title, number(row.value, 2), row.null_mean === null ? "" : "by chance " + number(row.null_low, 2) + " to " + number(row.null_high, 2)));
    }
  };
  const found = measures.get("edges found");
  if (found) {
    tiles.push(tile("edges found", found.value.toLocaleString("en"), "of " + found.number.toLocaleString("en") + " pairs; "
      + number(found.null_mean, 0) + " by chance"));
  }
  against("homophily", "weight within sectors");
  against("rank correlation with attention", "correlation with attention");
  model.network.filter(function (row) { return row.measure.startsWith("persistence"); }).slice(0, 3).forEach(function (row) {
    against(row.measure, row.measure);
  });
  fill("tiles", tiles);
}

function showNetwork(model, state, choose) {
  fill("networkPart", element("h2", {}, "The network over all dates"),
    element("div", { class: "beside" }, edgesCard(model, state, choose), leadersCard(model, state, choose)),
    measuresCard(model));
}

// What the filters change; the measures stay.
function filterNetwork(model, state, choose) {
  place("edges").replaceWith(edgesCard(model, state, choose));
  place("leading").replaceWith(leadersCard(model, state, choose));
}

function edgesCard(model, state, choose) {
  const edges = model.edges;
  const kept = [];
  let count = 0;
  for (let at = 0; at < model.strongestFirst.length; at += 1) {
    const row = model.strongestFirst[at];
    const inSector = state.sector < 0 || model.group[edges.leader[row]] === state.sector || model.group[edges.follower[row]] === state.sector;
    if (inSector && (state.least === 0 || edges.t[row] >= state.least) && (!state.found || edges.found[row])) {
      count += 1;
      if (count <= listedEdges) { kept.push(row); }
    }
  }
  const columns = [{ title: "leader" }, { title: "follower" }, { title: (unit.name || "weight") + " \u00b1 se", class: "num" },
    { title: "t", class: "num" }, { title: "q", class: "num" }, { title: "attention", class: "num" }, { title: "" }];
  const body = kept.map(function (row) {
    const one = edgeAt(model, row);
    return { cells: [firmButton(model, one.leader, choose.firm), firmButton(model, one.follower, choose.firm),
      inUnit(one.weight) + " \u00b1 " + inUnit(one.error), element("span", { class: "t" + (one.found ? " yes" : "") }, number(one.t, 1)),
      falseRate(one.q), percent(one.attention),
      element("button", { type: "button", class: "history", "aria-label": "Dates of this edge", click: function () { choose.firm(one.follower, one.leader); } }, "dates")] };
  });
  const box = card("Strongest edges", body.length ? table("Strongest edges", columns, body) : note("No edge passes the filters."),
    note(plural(count, "edge") + " of " + edges.leader.length.toLocaleString("en") + " stored pass the filters; edges found come first. Weight: root mean square "
      + "over dates of the leader's value in the follower's forecast, with its standard error over dates. A filled t is found at a false "
      + "discovery rate of 5%; t is one-sided, so a negative one means a smaller effect than other peers have."));
  box.id = "edges";
  return box;
}

function leadersCard(model, state, choose) {
  const firms = model.firms.map(function (ticker, firm) { return firm; }).filter(function (firm) {
    return model.leads[firm] > 0 && (state.sector < 0 || model.group[firm] === state.sector);
  }).sort(function (one, two) { return model.out_strength[two] - model.out_strength[one]; });
  const columns = [{ title: "firm" }, { title: "sector" }, { title: "leads", class: "num" }, { title: "follows", class: "num" },
    { title: "out-strength", class: "num" }, { title: "in-strength", class: "num" }];
  const body = firms.slice(0, listedEdges).map(function (firm) {
    return { cells: [firmButton(model, firm, choose.firm), sectorOf(model, firm), String(model.leads[firm]), String(model.follows[firm]),
      inUnit(model.out_strength[firm]), inUnit(model.in_strength[firm])] };
  });
  const box = card("Firms that lead most", body.length ? table("Firms that lead most", columns, body)
    : note("No firm leads another one in the edges found."),
  note("Sums of the weights of the edges found, out of and into a firm" + (unit.name ? ", in " + unit.name : "") + "."));
  box.id = "leading";
  return box;
}

function measuresCard(model) {
  const columns = [{ title: "measure" }, { title: "value", class: "num" }, { title: "by chance", class: "num" },
    { title: "95% interval by chance", class: "num" }, { title: "pairs or edges", class: "num" }];
  const digits = function (row) { return row.measure === "edges found" ? 0 : 3; };
  const body = model.network.map(function (row) {
    return { cells: [row.measure, number(row.value, digits(row)), number(row.null_mean, digits(row)),
      row.null_low === null ? "\u2013" : number(row.null_low, digits(row)) + " to " + number(row.null_high, digits(row)), row.number.toLocaleString("en")] };
  });
  return card("Measures beside chance", table("Measures of the network beside chance", columns, body),
    note("A value inside its interval says nothing."));
}
