"use strict";
// The data of the page: columns of numbers (base64), and how rows of a firm are found in them.
// Firms, dates and groups are numbers that count the lists `firms`, `dates` and `groups` of a model.
const page = JSON.parse(document.getElementById("data").textContent);
const unit = page.unit;

// Half precision: 1 bit of sign, 5 of the exponent, 10 of the fraction.
const halves = new Float32Array(65536);
for (let bits = 0; bits < 65536; bits += 1) {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  let size = exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction;
  if (exponent === 31) { size = NaN; }
  halves[bits] = bits & 32768 ? -size : size;
}

const kinds = ["u1", "u2", "f2", "f4"];  // bytes of whole numbers and of real numbers

function decode(column) {
  const kind = kinds.find(function (name) { return column[name] !== undefined; });
  const text = atob(column[kind]);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) { bytes[at] = text.charCodeAt(at); }
  if (kind === "u1") { return bytes; }
  if (kind === "f4") { return new Float32Array(bytes.buffer); }
  const pairs = new Uint16Array(bytes.buffer);
  if (kind === "u2") { return pairs; }
  const values = new Float32Array(pairs.length);
  for (let at = 0; at < pairs.length; at += 1) { values[at] = halves[pairs[at]] * column.scale; }
  return values;
}

// Decode every column of a model once, when it is first shown.
function open(model) {
  if (model.ready) { return model; }
  const decoded = function (part) {
    Object.keys(part).forEach(function (name) {
      const column = part[name];
      if (column && kinds.some(function (kind) { return column[kind] !== undefined; })) { part[name] = decode(column); }
    });
  };
  [model, model.forecasts, model.dated, model.edges, model.blocks].forEach(decoded);
  model.number = new Map(model.firms.map(function (ticker, firm) { return [ticker, firm]; }));
  model.isFollower = new Uint8Array(model.firms.length);
  model.isLeader = new Uint8Array(model.firms.length);
  model.dated.follower.forEach(function (firm) { model.isFollower[firm] = 1; });
  model.dated.leader.forEach(function (firm) { model.isLeader[firm] = 1; });
  model.edgeOf = new Map();  // leader and follower -> row of `edges`
  for (let row = 0; row < model.edges.leader.length; row += 1) {
    model.edgeOf.set(model.edges.follower[row] * 65536 + model.edges.leader[row], row);
  }
  const edges = model.edges;
  model.strongestFirst = Uint32Array.from(edges.leader, function (leader, row) { return row; }).sort(function (one, two) {
    return edges.found[two] - edges.found[one] || edges.weight[two] - edges.weight[one];
  });
  model.ready = true;
  return model;
}

// An edge over all dates; `row` is -1 if the edge is neither found nor among the strongest of its follower.
function edge(model, leader, follower) {
  const row = model.edgeOf.get(follower * 65536 + leader);
  if (row === undefined) { return { leader: leader, follower: follower, row: -1, t: NaN, q: NaN, found: false }; }
  return edgeAt(model, row);
}

function edgeAt(model, row) {
  const edges = model.edges;
  return {
    leader: edges.leader[row], follower: edges.follower[row], row: row, t: edges.t[row], q: edges.q[row],
    found: edges.found[row] === 1, weight: edges.weight[row], error: edges.error[row], signed: edges.signed[row],
    attention: edges.attention[row],
  };
}

// The stored peers of a firm on a date: its leaders ("in") or its followers ("out"), the largest value first.
function peersOf(model, firm, date, direction) {
  const dated = model.dated;
  const own = direction === "in" ? dated.follower : dated.leader;
  const rows = [];
  for (let row = dated.starts[date]; row < dated.starts[date + 1]; row += 1) {
    if (own[row] !== firm) { continue; }
    rows.push({
      peer: direction === "in" ? dated.leader[row] : dated.follower[row],
      value: dated.value[row], error: dated.error[row], attention: dated.attention[row],
      edge: edge(model, dated.leader[row], dated.follower[row]),
    });
  }
  return rows.sort(function (one, two) { return Math.abs(two.value) - Math.abs(one.value); });
}

// For every stored peer of a firm, its value and error on every date; NaN where it was too small to be stored.
function historyOf(model, firm, direction) {
  const dated = model.dated;
  const own = direction === "in" ? dated.follower : dated.leader;
  const other = direction === "in" ? dated.leader : dated.follower;
  const found = new Map();
  let date = 0;
  for (let row = 0; row < own.length; row += 1) {
    while (row >= dated.starts[date + 1]) { date += 1; }
    if (own[row] !== firm) { continue; }
    if (!found.has(other[row])) {
      const empty = function () { return new Float32Array(model.dates.length).fill(NaN); };
      found.set(other[row], { value: empty(), error: empty(), attention: empty() });
    }
    const history = found.get(other[row]);
    history.value[date] = dated.value[row];
    history.error[date] = dated.error[row];
    history.attention[date] = dated.attention[row];
  }
  return found;
}

// A leader that is not stored had at most this absolute value: the last of the strongest that are stored.
function largestUnstored(model, leaders) {
  return leaders.length < model.strongest ? 0 : Math.abs(leaders[model.strongest - 1].value);
}

function forecastOf(model, firm, date) {
  const at = date * model.firms.length + firm;
  return { base: model.forecasts.base[at], forecast: model.forecasts.forecast[at] };
}
