// The networks of the page, and how rows of a firm are found in their columns.
// Firms, dates and groups are numbers that count the lists `firms`, `dates` and `groups` of a model.
const page = await unpack();
const unit = page.unit;

// Columns of numbers, with NaN for what is not known.
function decode(part) {
  Object.entries(part).forEach(([name, column]) => { part[name] = Float32Array.from(column, value => value ?? NaN); });
}

// Where rows of each firm are, so that no click reads all rows: rows of firm f are
// order[starts[f]] to order[starts[f + 1] - 1], in the order of the table.
function indexOf(column, count) {
  const starts = new Uint32Array(count + 1);
  column.forEach(firm => { starts[firm + 1] += 1; });
  for (let firm = 0; firm < count; firm += 1) { starts[firm + 1] += starts[firm]; }
  const next = starts.slice();
  const order = new Uint32Array(column.length);
  column.forEach((firm, row) => { order[next[firm]++] = row; });
  return { starts, order };
}

function rowsOf(index, firm) { return index.order.subarray(index.starts[firm], index.starts[firm + 1]); }

// Decode every column of a model once, when it is first shown.
function open(model) {
  if (model.number) { return model; }
  const { dated, edges, firms } = model;
  [model.forecasts, dated, edges, model.blocks].forEach(decode);
  model.number = new Map(firms.map((ticker, firm) => [ticker, firm]));
  dated.byFollower = indexOf(dated.follower, firms.length);
  dated.byLeader = indexOf(dated.leader, firms.length);
  edges.byFollower = indexOf(edges.follower, firms.length);
  model.strongestFirst = Uint32Array.from(edges.leader, (_, row) => row)
    .sort((one, two) => edges.found[two] - edges.found[one] || edges.weight[two] - edges.weight[one]);
  return model;
}

// Whether values of the firm's leaders, or of its followers, are stored on any date.
function isFollower(firm) { return rowsOf(state.model.dated.byFollower, firm).length > 0; }

function isLeader(firm) { return rowsOf(state.model.dated.byLeader, firm).length > 0; }

// An edge over all dates; `row` is -1 if the edge is neither found nor among the strongest of its follower.
function edge(leader, follower) {
  const edges = state.model.edges;
  const row = rowsOf(edges.byFollower, follower).find(one => edges.leader[one] === leader);
  return row === undefined ? { leader, follower, row: -1, t: NaN, q: NaN, found: false } : edgeAt(row);
}

function edgeAt(row) {
  const edges = state.model.edges;
  const names = ["leader", "follower", "weight", "error", "signed", "t", "q", "attention"];
  return { ...Object.fromEntries(names.map(name => [name, edges[name][row]])), row, found: edges.found[row] === 1 };
}

// Rows of `dated` of a firm on a date, as follower ("in") or as leader ("out"); rows are sorted by date.
function datedRows(firm, date, direction) {
  const { byFollower, byLeader, starts } = state.model.dated;
  return rowsOf(direction === "in" ? byFollower : byLeader, firm).filter(row => row >= starts[date] && row < starts[date + 1]);
}

// The stored peers of a firm on a date: its leaders ("in") or its followers ("out"), the largest value first.
function peersOf(firm, date, direction) {
  const { leader, follower, value, error, attention } = state.model.dated;
  return Array.from(datedRows(firm, date, direction), row => ({
    peer: (direction === "in" ? leader : follower)[row], value: value[row], error: error[row], attention: attention[row],
    edge: edge(leader[row], follower[row]),
  })).sort((one, two) => Math.abs(two.value) - Math.abs(one.value));
}

// Value and error of some peers of a firm on every date, in the order of the peers; NaN where a value was too
// small to be stored.
function historiesOf(firm, direction, peers) {
  const { dates, dated } = state.model;
  const [index, other] = direction === "in" ? [dated.byFollower, dated.leader] : [dated.byLeader, dated.follower];
  const empty = () => new Float32Array(dates.length).fill(NaN);
  const histories = new Map(peers.map(peer => [peer, { value: empty(), error: empty() }]));
  let date = 0;
  rowsOf(index, firm).forEach(row => {
    while (row >= dated.starts[date + 1]) { date += 1; }
    const history = histories.get(other[row]);
    if (history) { [history.value[date], history.error[date]] = [dated.value[row], dated.error[row]]; }
  });
  return [...histories.values()];
}

// A leader that is not stored had at most this absolute value: the last of the strongest that are stored.
function largestUnstored(leaders) {
  const { strongest } = state.model;
  return leaders.length < strongest ? 0 : Math.abs(leaders[strongest - 1].value);
}

function forecastOf(firm, date) {
  const { firms, forecasts } = state.model;
  const at = date * firms.length + firm;
  return { base: forecasts.base[at], forecast: forecasts.forecast[at] };
}
