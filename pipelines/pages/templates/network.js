// The parts about the whole network that the filters change: strongest edges and leading firms.
const listedEdges = 20;

function showNetwork(model, state, choose) {
  fill("networkPart", element("h2", {}, "The network over all dates"),
    element("div", { class: "beside" }, edgesCard(model, state, choose), leadersCard(model, state, choose)));
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
  const columns = [["leader"], ["follower"], [(unit.name || "weight") + " \u00b1 se", "num"],
    ["t", "num"], ["q", "num"], ["attention", "num"], [""]];
  const body = kept.map(function (row) {
    const one = edgeAt(model, row);
    return { cells: [firmButton(model, one.leader, choose.firm), firmButton(model, one.follower, choose.firm),
      inUnit(one.weight) + " \u00b1 " + inUnit(one.error), element("span", { class: "t" + (one.found ? " yes" : "") }, number(one.t, 1)),
      falseRate(one.q), percent(one.attention),
      element("button", { type: "button", class: "history", "aria-label": "Dates of this edge", click: function () { choose.firm(one.follower, one.leader); } }, "dates")] };
  });
  return card("edges", "Strongest edges", body.length ? table("Strongest edges", columns, body) : note("No edge passes the filters."),
    note(plural(count, "edge") + " of " + edges.leader.length.toLocaleString("en") + " stored pass the filters; edges found come first. Weight: root mean square "
      + "over dates of the leader's value in the follower's forecast, with its standard error over dates. A filled t is found at a false "
      + "discovery rate of 5%; t is one-sided, so a negative one means a smaller effect than other peers have."));
}

function leadersCard(model, state, choose) {
  const firms = model.firms.map((ticker, firm) => firm).filter(function (firm) {
    return model.leads[firm] > 0 && (state.sector < 0 || model.group[firm] === state.sector);
  }).sort((one, two) => model.out_strength[two] - model.out_strength[one]);
  const columns = [["firm"], ["sector"], ["leads", "num"], ["follows", "num"],
    ["out-strength", "num"], ["in-strength", "num"]];
  const body = firms.slice(0, listedEdges).map(function (firm) {
    return { cells: [firmButton(model, firm, choose.firm), sectorOf(model, firm), String(model.leads[firm]), String(model.follows[firm]),
      inUnit(model.out_strength[firm]), inUnit(model.in_strength[firm])] };
  });
  return card("leading", "Firms that lead most", body.length ? table("Firms that lead most", columns, body)
    : note("No firm leads another one in the edges found."),
  note("Sums of the weights of the edges found, out of and into a firm" + (unit.name ? ", in " + unit.name : "") + "."));
}
