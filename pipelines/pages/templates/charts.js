// Small charts as SVG: a value with its error bar, a value over the dates, and a firm between its peers.
const whisker = 0.45;  // opacity of an error bar over the dates

function tone(value) { return value < 0 ? "var(--lower)" : "var(--raise)"; }

// A bar from zero to the value, and the 95% interval of the value. All bars of a table share `limit`.
function errorBar(value, half, limit) {
  const width = 130;
  const middle = width / 2;
  const x = v => middle + (middle - 2) * Math.max(-1, Math.min(1, v / limit));
  return shape("svg", { viewBox: "0 0 " + width + " 16", class: "bar", "aria-hidden": "true" },
    shape("line", { x1: middle, x2: middle, y1: 0, y2: 16, stroke: "var(--zero)" }),
    shape("rect", {
      x: Math.min(x(0), x(value)), width: Math.max(1, Math.abs(x(value) - x(0))), y: 4, height: 8, fill: tone(value),
    }),
    shape("path", {
      d: "M" + x(value - half) + " 8H" + x(value + half) + "M" + x(value - half) + " 4v8M" + x(value + half) + " 4v8",
      stroke: "var(--ink)", fill: "none", opacity: 0.75,
    }));
}

// Values over the dates as bars; a date without a stored value is empty.
function sparkline(values, date, limit) {
  const width = 92;
  const step = width / values.length;
  const wide = Math.max(0.8, step * 0.8);
  const outlines = ["", ""];  // of positive and of negative values: two shapes instead of one per date
  values.forEach(function (value, at) {
    if (Number.isNaN(value)) { return; }
    const height = Math.max(0.8, 8 * Math.min(1, Math.abs(value) / limit)) * (value < 0 ? 1 : -1);
    outlines[value < 0 ? 1 : 0] += "M" + (at * step).toFixed(2) + " 9v" + height.toFixed(2) + "h" + wide.toFixed(2) + "V9z";
  });
  return shape("svg", { viewBox: "0 0 " + width + " 18", class: "spark", "aria-hidden": "true" },
    shape("rect", { x: date * step, width: Math.max(1.5, step * 0.8), y: 0, height: 18, fill: "var(--mark)" }),
    shape("line", { x1: 0, x2: width, y1: 9, y2: 9, stroke: "var(--line)" }),
    shape("path", { d: outlines[0], fill: tone(1) }), shape("path", { d: outlines[1], fill: tone(-1) }));
}

function roundStep(range, steps) {
  const rough = range / steps;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 2.5, 5, 10].find(factor => power * factor >= rough);
}

// Values with 95% intervals over the dates, in the page's unit.
function timeChart(dates, values, errors, interval, date, earlier, label) {
  const width = 560;
  const height = 190;
  const left = 46;
  const bottom = 22;
  const known = [];
  values.forEach(function (value, at) { if (!Number.isNaN(value)) { known.push(at); } });
  const ends = known.flatMap(function (at) {
    return [values[at] - interval * errors[at], values[at] + interval * errors[at]];
  }).concat(0).map(value => value * unit.factor);
  let low = Math.min.apply(null, ends);
  let high = Math.max.apply(null, ends);
  if (high === low) { high = low + 1; }
  const step = roundStep(high - low, 4);
  const digits = [0, 1, 2, 3, 4, 5, 6].find(function (one) {
    const scaled = step * 10 ** one;
    return one === 6 || Math.abs(scaled - Math.round(scaled)) < 1e-6 * scaled;
  });
  low = Math.floor(low / step) * step;
  high = Math.ceil(high / step) * step;
  const x = at => left + (width - left - 10) * ((at + 0.5) / dates.length);
  const y = value => 8 + (height - 8 - bottom) * (high - value) / (high - low);
  const parts = [];
  [[date, "var(--mark)"], [earlier, "var(--soft)"]].forEach(function (one) {
    if (one[0] >= 0) {
      const band = Math.max(5, 0.7 * (width - left) / dates.length);
      parts.push(shape("rect", { x: x(one[0]) - band / 2, width: band, y: 8, height: height - 8 - bottom, fill: one[1] }));
    }
  });
  for (let tick = low; tick <= high + step / 2; tick += step) {
    const zero = Math.abs(tick) < step / 1e3;
    parts.push(shape("line", { x1: left, x2: width - 6, y1: y(tick), y2: y(tick), stroke: zero ? "var(--zero)" : "var(--line)" }));
    parts.push(shape("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" },
      number(zero ? 0 : tick, digits)));
  }
  known.forEach(function (at) {
    const colour = tone(values[at]);
    const half = interval * errors[at];
    parts.push(shape("line", {
      x1: x(at), x2: x(at), y1: y((values[at] - half) * unit.factor), y2: y((values[at] + half) * unit.factor),
      stroke: colour, "stroke-width": 2, opacity: whisker,
    }));
    parts.push(shape("circle", { cx: x(at), cy: y(values[at] * unit.factor), r: 3.2, fill: colour },
      shape("title", {}, dates[at] + ": " + withError(values[at], errors[at], true))));
  });
  const few = dates.length === 1 ? [0] : [0, dates.length - 1];
  few.forEach(function (at) {
    parts.push(shape("text", { x: at ? width - 8 : left, y: height - 5, "text-anchor": at ? "end" : "start" }, dates[at]));
  });
  return shape("svg", { viewBox: "0 0 " + width + " " + height, class: "chart", role: "img", "aria-label": label }, parts);
}

// A firm between its strongest leaders (left) and followers (right); an arrow is as wide as the value is large.
function flowChart(firm, leaders, followers, nameOf, choose) {
  const width = 620;
  const step = 27;
  const count = Math.max(leaders.length, followers.length, 1);
  const height = count * step + 16;
  const middle = height / 2;
  const limit = Math.max.apply(null, leaders.concat(followers).map(one => Math.abs(one.value)).concat(1e-30));
  const parts = [];
  const side = function (rows, right) {
    const start = middle - (rows.length - 1) * step / 2;
    rows.forEach(function (one, at) {
      const y = start + at * step;
      const from = right ? [width / 2 + 52, middle + (at - (rows.length - 1) / 2) * 3] : [150, y];
      const to = right ? [width - 156, y] : [width / 2 - 58, middle + (at - (rows.length - 1) / 2) * 3];
      const bend = (from[0] + to[0]) / 2;
      parts.push(shape("path", {
        d: "M" + from[0] + " " + from[1] + "C" + bend + " " + from[1] + " " + bend + " " + to[1] + " " + to[0] + " " + to[1],
        fill: "none", stroke: tone(one.value), "stroke-width": 1 + 7 * Math.abs(one.value) / limit,
        opacity: one.edge.found ? 0.85 : 0.35, "stroke-linecap": "round",
      }));
      const words = nameOf(one.peer);
      const short = words.length > 12 ? words.slice(0, 11) + "\u2026" : words;
      const text = shape("text", { x: right ? width - 148 : 142, y: y + 4, "text-anchor": right ? "start" : "end" },
        right ? [shape("tspan", { class: "peer" }, short), " " + inUnit(one.value, true)]
          : [inUnit(one.value, true) + " ", shape("tspan", { class: "peer" }, short)]);
      parts.push(shape("g", { class: "node", click: function () { choose(one.peer); } }, text,
        shape("title", {}, words + ": " + withUnit(one.value, true))));
    });
  };
  side(leaders, false);
  side(followers, true);
  const own = nameOf(firm);
  parts.push(shape("rect", { x: width / 2 - 52, y: middle - 15, width: 104, height: 30, rx: 4, class: "own" }));
  parts.push(shape("text", { x: width / 2, y: middle + 5, "text-anchor": "middle", class: "own" },
    own.length > 12 ? own.slice(0, 11) + "\u2026" : own));
  const from = leaders.length ? 0 : width / 2 - 60;
  const wide = (followers.length ? width : width / 2 + 60) - from;
  return shape("svg", {
    viewBox: from + " 0 " + wide + " " + height, class: "flow", style: "max-width:" + 1.2 * wide + "px", role: "img",
    "aria-label": "Leaders and followers of " + own,
  }, parts);
}
