// Building blocks: elements whose text is never read as markup, and numbers as text.
const namespace = "http://www.w3.org/2000/svg";

// element("td", { class: "num" }, "text", child): strings become text nodes; functions become listeners.
function element(tag, attributes) {
  return build(document.createElement(tag), attributes, Array.prototype.slice.call(arguments, 2));
}

function shape(tag, attributes) {
  return build(document.createElementNS(namespace, tag), attributes, Array.prototype.slice.call(arguments, 2));
}

function build(made, attributes, children) {
  Object.entries(attributes || {}).forEach(function (pair) {
    if (typeof pair[1] === "function") {
      made.addEventListener(pair[0], pair[1]);
    } else if (pair[1] !== undefined && pair[1] !== false) {
      made.setAttribute(pair[0], pair[1] === true ? "" : pair[1]);
    }
  });
  made.append.apply(made, children.flat().filter(function (child) { return child !== null; }));
  return made;
}

function place(id) { return document.getElementById(id); }

function fill(id) {
  const target = place(id);
  const children = Array.prototype.slice.call(arguments, 1).flat().filter(function (child) { return child !== null; });
  target.replaceChildren.apply(target, children);
}

function number(value, digits, sign) {
  if (value === null || value === undefined || Number.isNaN(value)) { return "\u2013"; }
  if (value === "infinity" || value === "-infinity") { return "unbounded"; }
  const text = value.toFixed(digits);
  const zero = Number(text) === 0;
  return (sign && !zero && value > 0 ? "+" : "") + (zero ? text.replace("-", "") : text.replace("-", "\u2212"));
}

// A value in the page's unit: basis points, or normal scores.
function inUnit(value, sign) { return number(value * unit.factor, unit.digits, sign); }

function withUnit(value, sign) { return inUnit(value, sign) + (unit.name ? " " + unit.name : ""); }

function withError(value, error, sign) { return withUnit(value, sign) + " \u00b1 " + inUnit(error); }

function percent(value) { return Number.isNaN(value) ? "\u2013" : number(100 * value, 1) + "%"; }

function falseRate(q) {
  if (Number.isNaN(q)) { return "\u2013"; }
  return q < 1e-9 ? "below 1e\u22129" : q < 0.001 ? q.toExponential(0).replace("-", "\u2212") : number(q, 3);
}

function plural(count, one, many) {
  return count.toLocaleString("en") + " " + (count === 1 ? one : many || one + "s");
}

// columns: [{ title, hint, class }]; rows: arrays of cells, each a string or an element; a row may have `chosen`.
function table(label, columns, rows) {
  const head = columns.map(function (column) {
    return element("th", { class: column.class, scope: "col", title: column.hint }, column.title);
  });
  const body = rows.map(function (row) {
    const cells = row.cells.map(function (cell, at) { return element("td", { class: columns[at].class }, cell); });
    return element("tr", { class: row.class }, cells);
  });
  return element("div", { class: "scroll" }, element("table", { "aria-label": label },
    element("thead", {}, element("tr", {}, head)), element("tbody", {}, body)));
}

function card(title) {
  return element("div", { class: "card" }, element("h3", {}, title), Array.prototype.slice.call(arguments, 1).flat());
}

function note(text) { return element("p", { class: "note" }, text); }
