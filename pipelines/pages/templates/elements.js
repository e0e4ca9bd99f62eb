// Building blocks: elements whose text is never read as markup, numbers as text, and small charts as SVG.

// element("td", { class: "num" }, "text", child): strings become text nodes; functions become listeners.
function element(tag, attributes, ...children) { return build(document.createElement(tag), attributes, children); }

function shape(tag, attributes, ...children) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function build(made, attributes, children) {
  Object.entries(attributes).forEach(([name, value]) => {
    if (typeof value === "function") {
      made.addEventListener(name, value);
    } else if (value !== undefined && value !== false) {
      made.setAttribute(name, value === true ? "" : value);
    }
  });
  made.append(...children.flat().filter(child => child !== null));
  return made;
}

function place(id) { return document.getElementById(id); }

function fill(id, ...children) { place(id).replaceChildren(...children.flat().filter(child => child !== null)); }

function button(attributes, ...children) { return element("button", { type: "button", ...attributes }, ...children); }

function number(value, digits, sign) {
  if (value === null || value === undefined || Number.isNaN(value)) { return "\u2013"; }
  const text = value.toFixed(digits);
  if (Number(text) === 0) { return text.replace("-", ""); }
  return (sign && value > 0 ? "+" : "") + text.replace("-", "\u2212");
}

// A value in the page's unit: basis points, or normal scores.
function inUnit(value, sign) { return number(value * unit.factor, unit.digits, sign); }

function withUnit(value, sign) { return inUnit(value, sign) + (unit.name ? ` ${unit.name}` : ""); }

function withError(value, error, sign) { return `${withUnit(value, sign)} \u00b1 ${inUnit(error)}`; }

function percent(value, digits = 1) { return Number.isNaN(value) ? "\u2013" : `${number(100 * value, digits)}%`; }

function falseRate(q) {
  if (q === null || Number.isNaN(q)) { return "\u2013"; }
  return q < 1e-9 ? "below 1e\u22129" : q < 0.001 ? q.toExponential(0).replace("-", "\u2212") : number(q, 3);
}

function plural(count, noun) { return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`; }

function shortened(words, length) { return words.length > length ? `${words.slice(0, length - 1)}\u2026` : words; }

// A card with a table, or with a note if there are no rows. columns: [title, class, hint]; rows: arrays of
// cells, each a string or an element; a row may have a `class`.
function tableCard(id, title, columns, rows, none, ...parts) {
  const head = columns.map(([words, css, hint]) => element("th", { class: css, scope: "col", title: hint }, words));
  const body = rows.map(row => element("tr", { class: row.class },
    row.cells.map((cell, at) => element("td", { class: columns[at][1] }, cell))));
  const table = element("div", { class: "scroll" }, element("table", { "aria-label": title },
    element("thead", {}, element("tr", {}, head)), element("tbody", {}, body)));
  return card(id, title, rows.length ? table : note(none), ...parts);
}

function card(id, title, ...parts) { return element("div", { class: "card", id }, element("h3", {}, title), ...parts); }

function note(text) { return element("p", { class: "note" }, text); }

function tone(value) { return value < 0 ? "var(--lower)" : "var(--raise)"; }

// A bar from zero to the value, and the 95% interval of the value. All bars of a table share `limit`.
function errorBar(value, half, limit) {
  const x = v => 65 + 63 * Math.max(-1, Math.min(1, v / limit));
  const [low, high] = [x(value - half), x(value + half)];
  return shape("svg", { viewBox: "0 0 130 16", class: "bar", "aria-hidden": "true" },
    shape("line", { x1: 65, x2: 65, y1: 0, y2: 16, stroke: "var(--zero)" }),
    shape("rect", {
      x: Math.min(65, x(value)), width: Math.max(1, Math.abs(x(value) - 65)), y: 4, height: 8, fill: tone(value),
    }),
    shape("path", {
      d: `M${low} 8H${high}M${low} 4v8M${high} 4v8`, stroke: "var(--ink)", fill: "none", opacity: 0.75,
    }));
}

// Values over the dates as bars; a date without a stored value is empty.
function sparkline(values, date, limit) {
  const step = 92 / values.length;
  const wide = Math.max(0.8, step * 0.8);
  const outlines = ["", ""];  // of positive and of negative values: two shapes instead of one per date
  values.forEach((value, at) => {
    if (Number.isNaN(value)) { return; }
    const height = Math.max(0.8, 8 * Math.min(1, Math.abs(value) / limit)) * (value < 0 ? 1 : -1);
    outlines[value < 0 ? 1 : 0] += `M${(at * step).toFixed(2)} 9v${height.toFixed(2)}h${wide.toFixed(2)}V9z`;
  });
  return shape("svg", { viewBox: "0 0 92 18", class: "spark", "aria-hidden": "true" },
    shape("rect", { x: date * step, width: Math.max(1.5, step * 0.8), y: 0, height: 18, fill: "var(--mark)" }),
    shape("line", { x1: 0, x2: 92, y1: 9, y2: 9, stroke: "var(--line)" }),
    shape("path", { d: outlines[0], fill: tone(1) }), shape("path", { d: outlines[1], fill: tone(-1) }));
}

function roundStep(range, steps) {
  const power = 10 ** Math.floor(Math.log10(range / steps));
  return power * [1, 2, 2.5, 5, 10].find(factor => power * factor >= range / steps);
}

// Values with 95% intervals over the dates, in the page's unit.
function timeChart({ value: values, error: errors }, label) {
  const { dates, interval } = state.model;
  const [width, height, left, top, bottom] = [560, 190, 46, 8, 22];
  const half = at => interval * errors[at];
  const known = dates.map((_, at) => at).filter(at => !Number.isNaN(values[at]));
  const ends = known.flatMap(at => [values[at] - half(at), values[at] + half(at)]).concat(0).map(one => one * unit.factor);
  const [lowest, highest] = [Math.min(...ends), Math.max(...ends)];
  const step = roundStep(highest - lowest || 1, 4);
  const [low, high] = [Math.floor(lowest / step) * step, Math.ceil((highest > lowest ? highest : lowest + 1) / step) * step];
  const isWhole = scaled => Math.abs(scaled - Math.round(scaled)) < 1e-6 * scaled;
  const digits = [0, 1, 2, 3, 4, 5].find(one => isWhole(step * 10 ** one)) ?? 6;
  const x = at => left + (width - left - 10) * ((at + 0.5) / dates.length);
  const y = value => top + (height - top - bottom) * (high - value) / (high - low);
  const band = Math.max(5, 0.7 * (width - left) / dates.length);
  const parts = [[state.date, "var(--mark)"], [state.earlier, "var(--soft)"]].filter(([at]) => at >= 0)
    .map(([at, colour]) => shape("rect", { x: x(at) - band / 2, width: band, y: top, height: height - top - bottom, fill: colour }));
  for (let tick = low; tick <= high + step / 2; tick += step) {
    const zero = Math.abs(tick) < step / 1e3;
    parts.push(
      shape("line", { x1: left, x2: width - 6, y1: y(tick), y2: y(tick), stroke: zero ? "var(--zero)" : "var(--line)" }),
      shape("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, number(zero ? 0 : tick, digits)));
  }
  known.forEach(at => {
    const [lower, upper] = [-1, 1].map(side => y((values[at] + side * half(at)) * unit.factor));
    const colour = tone(values[at]);
    parts.push(
      shape("line", { x1: x(at), x2: x(at), y1: lower, y2: upper, stroke: colour, "stroke-width": 2, opacity: 0.45 }),
      shape("circle", { cx: x(at), cy: y(values[at] * unit.factor), r: 3.2, fill: colour },
        shape("title", {}, `${dates[at]}: ${withError(values[at], errors[at], true)}`)));
  });
  new Set([0, dates.length - 1]).forEach(at => {
    parts.push(shape("text", { x: at ? width - 8 : left, y: height - 5, "text-anchor": at ? "end" : "start" }, dates[at]));
  });
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": label }, parts);
}

// A firm between its strongest leaders (left) and followers (right); an arrow is as wide as the value is large.
function flowChart(leaders, followers) {
  const [width, step] = [620, 27];
  const height = Math.max(leaders.length, followers.length, 1) * step + 16;
  const [centre, middle] = [width / 2, height / 2];
  const limit = Math.max(1e-30, ...[...leaders, ...followers].map(one => Math.abs(one.value)));
  const nodes = (rows, right) => rows.flatMap((one, at) => {
    const y = middle + (at - (rows.length - 1) / 2) * step;
    const inner = middle + (at - (rows.length - 1) / 2) * 3;
    const [from, to] = right ? [[centre + 52, inner], [width - 156, y]] : [[150, y], [centre - 58, inner]];
    const bend = (from[0] + to[0]) / 2;
    const ticker = state.model.firms[one.peer];
    const words = [inUnit(one.value, true), " ", shape("tspan", { class: "peer" }, shortened(ticker, 12))];
    return [
      shape("path", {
        d: `M${from[0]} ${from[1]}C${bend} ${from[1]} ${bend} ${to[1]} ${to[0]} ${to[1]}`,
        fill: "none", stroke: tone(one.value), "stroke-width": 1 + 7 * Math.abs(one.value) / limit,
        opacity: one.edge.found ? 0.85 : 0.35, "stroke-linecap": "round",
      }),
      shape("g", { class: "node", click: () => choose.firm(one.peer) },
        shape("text", { x: right ? width - 148 : 142, y: y + 4, "text-anchor": right ? "start" : "end" },
          right ? words.reverse() : words),
        shape("title", {}, `${ticker}: ${withUnit(one.value, true)}`)),
    ];
  });
  const own = state.model.firms[state.firm];
  const from = leaders.length ? 0 : centre - 60;
  const wide = (followers.length ? width : centre + 60) - from;
  return shape("svg", {
    viewBox: `${from} 0 ${wide} ${height}`, class: "flow", style: `max-width:${1.2 * wide}px`, role: "img",
    "aria-label": `Leaders and followers of ${own}`,
  }, nodes(leaders, false), nodes(followers, true),
  shape("rect", { x: centre - 52, y: middle - 15, width: 104, height: 30, rx: 4, class: "own" }),
  shape("text", { x: centre, y: middle + 5, "text-anchor": "middle", class: "own" }, shortened(own, 12)));
}
