// Draws the figures of the page. Its content security policy forbids all requests.
const [touch, narrow] = ["(pointer: coarse)", "(max-width: 640px)"].map(query => window.matchMedia(query).matches);
// By default, plotly.js offers to upload charts to its vendor's server.
const settings = { responsive: true, displaylogo: false, displayModeBar: false, showSendToCloud: false, plotlyServerURL: "" };
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const data = await unpack();
const shrink = layout => {
  if (touch) { layout.dragmode = false; }
  if (!narrow) { return; }
  layout.margin.l = Math.min(layout.margin.l, 44);
  Object.assign(layout.xaxis, { nticks: 5, tickangle: 0 });
  (layout.annotations || []).forEach(note => { if (note.font) { note.font.size = 9; } });
  Object.keys(layout).filter(name => /^[xy]axis/.test(name)).forEach(name => {
    layout[name].tickfont = { ...layout[name].tickfont, size: 10 };
    if (layout[name].title) { layout[name].title.font.size = 11; layout[name].title.standoff = 6; }
  });
};
const press = (button, on) => button.setAttribute("aria-pressed", String(on));
const pressed = button => button.getAttribute("aria-pressed") === "true";
const indices = button => button.dataset.traces.split(" ").map(Number);
// A chart is drawn when its section is opened: in a folded one it would have no width.
const drawn = new Set();
const draw = place => {
  drawn.add(place);
  const chart = data.figures[place.id];
  shrink(chart.layout);
  Plotly.newPlot(place, chart.data, chart.layout, settings);
  // A trace is drawn if its view and its entry in the legend are switched on.
  const [views, legend] = [".views button", ".legend button"].map(selector => all(selector, place.parentElement));
  const redraw = () => {
    const inViews = new Set(views.flatMap(indices));
    const inView = new Set(views.filter(pressed).flatMap(indices));
    const off = new Set(legend.filter(button => !pressed(button)).flatMap(indices));
    Plotly.restyle(place, { visible: chart.data.map((_, index) => (inView.has(index) || !inViews.has(index)) && !off.has(index)) });
  };
  views.forEach(button => button.addEventListener("click", () => {
    views.forEach(one => press(one, one === button));
    redraw();
  }));
  legend.forEach(button => button.addEventListener("click", () => {
    press(button, !pressed(button));
    redraw();
  }));
};
const unfolded = within => all(".plot", within).filter(place => !place.closest("details:not([open])"));
// The window may have changed its width while a chart that was drawn before was folded away.
const show = within => unfolded(within).forEach(place => drawn.has(place) ? Plotly.Plots.resize(place) : draw(place));
show(document);
// A link to a folded section opens it.
const open = () => {
  const section = document.getElementById(location.hash.slice(1));
  const fold = section && section.querySelector(":scope > .fold");
  if (fold && !fold.open) {
    fold.open = true;
    // at once: what unfolds above the reader's place would stop a smooth scroll
    window.requestAnimationFrame(() => section.scrollIntoView({ behavior: "instant" }));
  }
};
window.addEventListener("hashchange", open);
all("a[href^='#']").forEach(link => link.addEventListener("click", () => window.setTimeout(open)));
open();
// Charts are as wide as the screen: fit them to the paper before printing, and restore them afterwards.
const resize = (place, width, height) => {
  place.style.height = `${height}px`;
  const few = narrow || (width !== null && width < 400);
  const ticks = { "xaxis.nticks": few ? 4 : 0, "xaxis.tickangle": few ? 0 : "auto" };
  Plotly.relayout(place, { width, height, autosize: width === null, ...ticks });
};
// On paper, the sections about the result are open, and those that the reader has opened.
let opened = [];
window.addEventListener("beforeprint", () => {
  opened = all("details.paper:not([open])");
  opened.forEach(fold => { fold.open = true; });
  unfolded(document).forEach(place => {
    if (!drawn.has(place)) { draw(place); }
    const half = place.closest(".beside") && !place.closest("figure").matches(":last-child:nth-child(odd)");
    // rows of names need their height
    const rows = data.figures[place.id].layout.yaxis.type === "category";
    resize(place, half ? 330 : 680, Math.round((rows ? 1 : 0.74) * place.dataset.height));
  });
});
window.addEventListener("afterprint", () => {
  opened.forEach(fold => { fold.open = false; });
  drawn.forEach(place => resize(place, null, Number(place.dataset.height)));
});
// The positions of any session.
if (data.holdings) { showHoldings(data.holdings); }
function showHoldings(held) {
  const picker = document.querySelector(".picker");
  const input = picker.querySelector("input[type=date]");
  const tradedOnly = picker.querySelector("input[type=checkbox]");
  const body = document.querySelector("#holdings-table tbody");
  let current = held.length - 1;
  const write = (value, scale, digits, sign) =>
    (sign && value > 0 ? "+" : "") + (value * scale).toFixed(digits).replace("-", "\u2212");
  const show = () => {
    const { date, names, gross, net, traded, pnl, cost, rows } = held[current];
    input.value = date;
    document.getElementById("holdings-total").textContent = `${date}: ${names} names, gross ${write(gross, 1e2, 1)}%, net `
      + `${write(net, 1e2, 1)}%, traded ${write(traded, 1e2, 1)}%, profit ${write(pnl, 1e4, 1, true)} bps, costs ${write(cost, 1e4, 1)} bps`;
    body.textContent = "";
    rows.filter(([, , trade]) => trade !== 0 || !tradedOnly.checked).forEach(([ticker, weight, trade, gain, paid]) => {
      const line = body.insertRow();
      [ticker, write(weight, 1e2, 2), write(trade, 1e2, 2), write(gain, 1e4, 1, true), write(paid, 1e4, 2)].forEach((text, column) => {
        const cell = line.insertCell();
        cell.textContent = text;
        if (column) { cell.className = "num"; }
      });
    });
  };
  const move = place => {
    current = Math.min(Math.max(place, 0), held.length - 1);
    show();
  };
  picker.hidden = false;
  // the last session on or before a date; the first session for an earlier date
  input.addEventListener("change", () => { if (input.value) { move(held.filter(({ date }) => date <= input.value).length - 1); } });
  tradedOnly.addEventListener("change", show);
  all("button", picker).forEach(button => button.addEventListener("click", () => move(current + Number(button.dataset.step))));
}
// Tables that are wider than the screen say so.
const hint = () => all(".scroll").forEach(box => box.classList.toggle("more", box.scrollWidth > box.clientWidth + 2));
window.addEventListener("resize", hint);
document.addEventListener("toggle", event => {
  if (event.target.open) { show(event.target); }
  hint();
}, true);
hint();
// Highlight the current section in the table of contents.
const mark = () => {
  const above = all("main section").filter(section => section.getBoundingClientRect().top < 140);
  const current = above.length ? above[above.length - 1].id : "top";
  all("nav a").forEach(link => link.classList.toggle("here", link.hash.slice(1) === current));
};
document.addEventListener("scroll", mark, { passive: true });
mark();
