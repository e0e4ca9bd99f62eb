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
  const kind = kinds.find(name => column[name] !== undefined);
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

// Where rows of each firm are, so that no click reads all rows: rows of firm f are
// order[starts[f]] to order[starts[f + 1] - 1], in the order of the table.
function indexOf(column, count) {
  const starts = new Uint32Array(count + 1);
  for (let row = 0; row < column.length; row += 1) { starts[column[row] + 1] += 1; }
  for (let firm = 0; firm < count; firm += 1) { starts[firm + 1] += starts[firm]; }
  const next = starts.slice();
  const order = new Uint32Array(column.length);
  for (let row = 0; row < column.length; row += 1) { order[next[column[row]]++] = row; }
  return { starts: starts, order: order };
}

function rowsOf(index, firm) { return index.order.subarray(index.starts[firm], index.starts[firm + 1]); }

// First place in ascending numbers whose number is at least `least`.
function placeOf(numbers, least) {
  let low = 0;
  let high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] < least) { low = middle + 1; } else { high = middle; }
  }
  return low;
}

// Decode every column of a model once, when it is first shown.
function open(model) {
  if (model.ready) { return model; }
  const decoded = function (part) {
    Object.keys(part).forEach(function (name) {
      const column = part[name];
      if (column && kinds.some(kind => column[kind] !== undefined)) { part[name] = decode(column); }
    });
  };
  [model, model.forecasts, model.dated, model.edges, model.blocks].forEach(decoded);
  model.number = new Map(model.firms.map((ticker, firm) => [ticker, firm]));
  const edges = model.edges;
  model.dated.byFollower = indexOf(model.dated.follower, model.firms.length);
  model.dated.byLeader = indexOf(model.dated.leader, model.firms.length);
  edges.byFollower = indexOf(edges.follower, model.firms.length);
  model.strongestFirst = Uint32Array.from(edges.leader, (leader, row) => row).sort(function (one, two) {
    return edges.found[two] - edges.found[one] || edges.weight[two] - edges.weight[one];
  });
  model.ready = true;
  return model;
}

// Whether values of the firm's leaders, or of its followers, are stored on any date.
function isFollower(model, firm) { return rowsOf(model.dated.byFollower, firm).length > 0; }

function isLeader(model, firm) { return rowsOf(model.dated.byLeader, firm).length > 0; }

// An edge over all dates; `row` is -1 if the edge is neither found nor among the strongest of its follower.
function edge(model, leader, follower) {
  const row = rowsOf(model.edges.byFollower, follower).find(one => model.edges.leader[one] === leader);
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

// Rows of `dated` of a firm on a date, as follower ("in") or as leader ("out").
function datedRows(model, firm, date, direction) {
  const rows = rowsOf(direction === "in" ? model.dated.byFollower : model.dated.byLeader, firm);
  return rows.subarray(placeOf(rows, model.dated.starts[date]), placeOf(rows, model.dated.starts[date + 1]));
}

// The stored peers of a firm on a date: its leaders ("in") or its followers ("out"), the largest value first.
function peersOf(model, firm, date, direction) {
  const dated = model.dated;
  return Array.from(datedRows(model, firm, date, direction), function (row) {
    return {
      peer: direction === "in" ? dated.leader[row] : dated.follower[row],
      value: dated.value[row], error: dated.error[row], attention: dated.attention[row],
      edge: edge(model, dated.leader[row], dated.follower[row]),
    };
  }).sort((one, two) => Math.abs(two.value) - Math.abs(one.value));
}

// Value and error of some peers of a firm on every date, in the order of the peers; NaN where a value was too
// small to be stored.
function historiesOf(model, firm, direction, peers) {
  const dated = model.dated;
  const other = direction === "in" ? dated.leader : dated.follower;
  const empty = () => new Float32Array(model.dates.length).fill(NaN);
  const histories = peers.map(() => ({ value: empty(), error: empty() }));
  const place = new Map(peers.map((peer, at) => [peer, at]));
  let date = 0;
  rowsOf(direction === "in" ? dated.byFollower : dated.byLeader, firm).forEach(function (row) {
    while (row >= dated.starts[date + 1]) { date += 1; }
    const at = place.get(other[row]);
    if (at === undefined) { return; }
    histories[at].value[date] = dated.value[row];
    histories[at].error[date] = dated.error[row];
  });
  return histories;
}

// A leader that is not stored had at most this absolute value: the last of the strongest that are stored.
function largestUnstored(model, leaders) {
  return leaders.length < model.strongest ? 0 : Math.abs(leaders[model.strongest - 1].value);
}

function forecastOf(model, firm, date) {
  const at = date * model.firms.length + firm;
  return { base: model.forecasts.base[at], forecast: model.forecasts.forecast[at] };
}
