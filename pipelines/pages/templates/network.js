// SHAP beside attention as two maps with the same rows (followers) and columns (leaders), and the parts about
// the whole network that the filters change: strongest edges and leading firms.
const around = 9;  // leaders and followers of a firm in its neighbourhood
const listedEdges = 20;

function showMatrices() {
  const near = state.matrix === "near";
  const maps = near ? neighbourMaps() : groupMaps();
  const views = [["near", `Around ${state.model.firms[state.firm]}`], ["groups", "Sectors"]].map(([name, words]) => button(
    { "aria-pressed": String(state.matrix === name), click: () => { state.matrix = name; showMatrices(); } }, words));
  fill("matrixPart", element("h2", {}, "SHAP beside attention"), element("div", { class: "views" }, views),
    maps ? element("div", { class: "beside" }, maps) : note(near
      ? "Nothing is stored around this firm on this date; choose the sectors, another date or another firm."
      : "No pair of sectors was measured."));
}

// Two maps beside each other; a cell that is read in one is marked in the other. `tell` says what is in a cell.
function pairOfMaps(rows, columns, tell, isOwn, one, two) {
  const maps = [one, two].map(map => heatMap(rows, columns, map, isOwn));
  let read = [0, -1];
  const mark = (row, column) => {
    const known = row >= 0 && column >= 0 && row < rows.length && column < columns.length;
    maps.forEach(({ frame, readout }) => {
      frame.hidden = !known;
      frame.style.left = `${100 * column / columns.length}%`;
      frame.style.top = `${100 * row / rows.length}%`;
      readout.textContent = known ? tell(row, column) : "Point at a cell, or use the arrow keys.";
    });
    if (known) { read = [row, column]; }
  };
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const within = (at, count) => Math.max(0, Math.min(count - 1, at));
  maps.forEach(({ grid, canvas }) => {
    grid.addEventListener("pointermove", event => {
      const box = canvas.getBoundingClientRect();
      const [down, right] = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
      mark(Math.floor(down * rows.length), Math.floor(right * columns.length));
    });
    grid.addEventListener("keydown", event => {
      const step = steps[event.key];
      if (!step) { return; }
      event.preventDefault();
      mark(within(read[0] + step[0], rows.length), within(read[1] + step[1], columns.length));
    });
  });
  mark(-1, -1);
  return maps.map(map => map.figure);
}

function channels(name) {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
}

// A map: an image with one pixel per cell, which the style stretches, between the names of its rows and columns. A
// large map has no names: as many elements as cells would take seconds. Shares of the limit are drawn as square
// roots, so that small cells are not lost beside one large one. A cell without a value (NaN) is transparent: the
// style has a dot behind it.
function heatMap(rows, columns, map, isOwn) {
  const [ground, up, down] = ["--ground", map.colour, "--lower"].map(channels);
  const image = new ImageData(columns.length, rows.length);
  rows.forEach((_, row) => columns.forEach((__, column) => {
    const value = isOwn(row, column) ? 0 : map.value(row, column);
    if (Number.isNaN(value)) { return; }
    const share = Math.sqrt(Math.min(1, Math.abs(value) / map.limit));
    const colour = (value < 0 ? down : up).map((full, at) => ground[at] + (full - ground[at]) * share);
    image.data.set([...colour, 255], 4 * (row * columns.length + column));
  }));
  const canvas = element("canvas", { width: columns.length, height: rows.length });
  canvas.getContext("2d").putImageData(image, 0, 0);
  const named = columns.length <= 32;
  const names = (css, every) => element("div", { class: css },
    named ? every.map(words => element("span", { title: words }, shortened(words, 18))) : []);
  const frame = element("i", { class: "read" });
  const grid = element("div", {
    class: named ? "map" : "map large", tabindex: 0, role: "img", style: `--columns:${columns.length};--rows:${rows.length}`,
    "aria-label": `${map.title}. Use the arrow keys to read cells.`,
  }, names("columns", columns), names("rows", rows), element("div", { class: "cells" }, canvas, frame));
  const ends = [["--ground", "0"], [map.colour, (map.signed ? "raises by " : "") + map.words(map.limit)]];
  if (map.signed) { ends.unshift(["--lower", `lowers by ${map.words(map.limit)}`]); }
  const scale = ends.map(([colour, words]) => element("span", {}, element("i", { style: `background:var(${colour})` }), words));
  const readout = element("p", { class: "readout", "aria-live": "polite" });
  const figure = element("figure", { class: "matrix" }, element("h4", {}, map.title), grid, readout,
    element("p", { class: "scale" }, scale, element("span", {}, "colour: square root")), element("figcaption", {}, map.caption));
  return { figure, grid, canvas, frame, readout };
}

function largestOf(values) { return values.reduce((limit, value) => Math.max(limit, Math.abs(value) || 0), 0) || 1; }

// The firms around a firm on a date: its largest leaders, its largest followers, its most attended leaders.
function neighbourMaps() {
  const { model, firm, date } = state;
  const [leaders, followers] = ["in", "out"].map(direction => peersOf(firm, date, direction));
  const attended = [...leaders].sort((a, b) => b.attention - a.attention).slice(0, 5);
  const peers = [leaders, followers, attended].flatMap(rows => rows.slice(0, around)).map(one => one.peer);
  const columns = [...new Set([firm, ...peers])];
  const rows = columns.filter(isFollower);
  if (!rows.length || columns.length < 2) { return null; }
  const stored = rows.map(row => new Map(peersOf(row, date, "in").map(one => [one.peer, one])));
  const cell = (name, row, column) => (stored[row].get(columns[column]) || { [name]: NaN })[name];
  const every = name => rows.flatMap((_, row) => columns.map((__, column) => cell(name, row, column)));
  const [targets, sources] = [rows, columns].map(firms => firms.map(one => model.firms[one]));
  const isOwn = (row, column) => rows[row] === columns[column];
  const tell = (row, column) => {
    if (isOwn(row, column)) { return `${targets[row]}: a firm is not its own peer.`; }
    const one = stored[row].get(columns[column]);
    return `${sources[column]} \u2192 ${targets[row]}: ` + (one
      ? `${withError(one.value, one.error, true)}; attention ${percent(one.attention)}`
      : `not among the ${model.strongest} largest of ${targets[row]} by either measure`);
  };
  return pairOfMaps(targets, sources, tell, isOwn, {
    title: `Shapley values, ${model.dates[date]}`, value: (...at) => cell("value", ...at), limit: largestOf(every("value")),
    signed: true, colour: "--raise", words: withUnit,
    caption: "Effect of the leader (column) on the forecast of the follower (row). Not shown: whether the effect "
      + "was right, paths through other firms, and pairs with a dot, which were not stored.",
  }, {
    title: `Attention, ${model.dates[date]}`, value: (...at) => cell("attention", ...at), limit: largestOf(every("attention")),
    colour: "--attend", words: value => percent(value),
    caption: "How much the follower (row) reads of the leader (column), mean over layers and heads. Not shown: "
      + "what the reading does to the forecast. A weight has no sign and no unit of return.",
  });
}

function groupMaps() {
  const { groups, blocks } = state.model;
  const known = groups.map((_, group) => group);
  const at = (row, column) => row * groups.length + column;
  const rows = known.filter(row => known.some(column => !Number.isNaN(blocks.weight[at(row, column)])));
  const columns = known.filter(column => known.some(row => !Number.isNaN(blocks.weight[at(row, column)])));
  if (!rows.length) { return null; }
  const value = name => (row, column) => blocks[name][at(rows[row], columns[column])];
  const [targets, sources] = [rows, columns].map(some => some.map(group => groups[group]));
  const tell = (row, column) => `${sources[column]} \u2192 ${targets[row]}: ` + (Number.isNaN(value("weight")(row, column))
    ? "no pair was measured"
    : `${withUnit(value("weight")(row, column))}; attention ${percent(value("attention")(row, column), 3)}`);
  return pairOfMaps(targets, sources, tell, () => false, {
    title: "Weight by sector, all dates", value: value("weight"), limit: largestOf(blocks.weight), colour: "--raise", words: withUnit,
    caption: "Root mean square weight of the measured pairs between leaders' sectors (columns) and followers' "
      + "sectors (rows). Not shown: signs, dates, and which firms of a sector matter. A sector with few firms is noisy.",
  }, {
    title: "Attention by sector, all dates", value: value("attention"), limit: largestOf(blocks.attention), colour: "--attend",
    words: share => percent(share, 3),
    caption: "Mean attention of the same pairs. Not shown: any effect on a forecast; a sector that is read much "
      + "may move nothing.",
  });
}

// The measures beside these two cards are written by the page and stay.
function showNetwork() {
  fill("networkPart", element("h2", {}, "The network over all dates"), element("div", { class: "beside" }, edgesCard(), leadersCard()));
}

function edgesCard() {
  const { model, sector } = state;
  const { edges, group } = model;
  const kept = model.strongestFirst.filter(row => (sector < 0 || group[edges.leader[row]] === sector || group[edges.follower[row]] === sector)
    && (state.least === 0 || edges.t[row] >= state.least) && (!state.found || edges.found[row]));
  const columns = [["leader"], ["follower"], [`${unit.name || "weight"} \u00b1 se`, "num"],
    ["t", "num"], ["q", "num"], ["attention", "num"], [""]];
  const body = Array.from(kept.slice(0, listedEdges), edgeAt).map(one => ({ cells: [
    firmButton(one.leader), firmButton(one.follower), `${inUnit(one.weight)} \u00b1 ${inUnit(one.error)}`,
    tOf(one), falseRate(one.q), percent(one.attention),
    button({ class: "history", "aria-label": "Dates of this edge", click: () => choose.firm(one.follower, one.leader) }, "dates"),
  ] }));
  return tableCard("edges", "Strongest edges", columns, body, "No edge passes the filters.",
    note(`${plural(kept.length, "edge")} of ${edges.leader.length.toLocaleString("en")} stored pass the filters; edges found come first. `
      + "Weight: root mean square over dates of the leader's value in the follower's forecast, with its standard error over dates. A "
      + "filled t is found at a false discovery rate of 5%; t is one-sided, so a negative one means a smaller effect than other peers have."));
}

function leadersCard() {
  const { model, sector } = state;
  const firms = model.firms.map((_, firm) => firm)
    .filter(firm => model.leads[firm] > 0 && (sector < 0 || model.group[firm] === sector))
    .sort((one, two) => model.out_strength[two] - model.out_strength[one]);
  const columns = [["firm"], ["sector"], ["leads", "num"], ["follows", "num"], ["out-strength", "num"], ["in-strength", "num"]];
  const body = firms.slice(0, listedEdges).map(firm => ({ cells: [
    firmButton(firm), sectorOf(firm), String(model.leads[firm]), String(model.follows[firm]),
    inUnit(model.out_strength[firm]), inUnit(model.in_strength[firm]),
  ] }));
  return tableCard("leading", "Firms that lead most", columns, body, "No firm leads another one in the edges found.",
    note(`Sums of the weights of the edges found, out of and into a firm${unit.name ? `, in ${unit.name}` : ""}.`));
}
