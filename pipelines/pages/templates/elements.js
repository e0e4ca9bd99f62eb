// Building blocks: elements whose text is never read as markup, and numbers as text.
const namespace = "http://www.w3.org/2000/svg";

// element("td", { class: "num" }, "text", child): strings become text nodes; functions become listeners.
function element(tag, attributes, ...children) { return build(document.createElement(tag), attributes, children); }

function shape(tag, attributes, ...children) { return build(document.createElementNS(namespace, tag), attributes, children); }

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

function number(value, digits, sign) {
  if (value === null || value === undefined || Number.isNaN(value)) { return "\u2013"; }
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

// columns: [title, class, hint]; rows: arrays of cells, each a string or an element; a row may have a `class`.
function table(label, columns, rows) {
  const head = columns.map(([title, css, hint]) => element("th", { class: css, scope: "col", title: hint }, title));
  const body = rows.map(row => element("tr", { class: row.class },
    row.cells.map((cell, at) => element("td", { class: columns[at][1] }, cell))));
  return element("div", { class: "scroll" }, element("table", { "aria-label": label },
    element("thead", {}, element("tr", {}, head)), element("tbody", {}, body)));
}

function card(id, title, ...parts) { return element("div", { class: "card", id: id }, element("h3", {}, title), parts.flat()); }

function note(text) { return element("p", { class: "note" }, text); }
