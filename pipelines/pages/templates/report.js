"use strict";
// Draws every figure from the JSON next to it. The page's content security policy forbids all requests.
(function () {
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const narrow = window.matchMedia("(max-width: 640px)").matches;
  const settings = {
    responsive: true,
    displaylogo: false,
    displayModeBar: false,
    // By default, plotly.js offers to upload charts to its vendor's server.
    showSendToCloud: false,
    plotlyServerURL: "",
  };
  // A date axis is the first day since 1970 and the steps in days; figures share axes.
  const axes = JSON.parse(document.getElementById("dates").textContent).map(function (steps) {
    let day = 0;
    return steps.map(function (step) {
      day += step;
      return new Date(day * 864e5).toISOString().slice(0, 10);
    });
  });
  const shrink = function (layout) {
    if (touch) { layout.dragmode = false; }
    if (!narrow) { return; }
    layout.margin.l = Math.min(layout.margin.l, 44);
    layout.xaxis.nticks = 5;
    layout.xaxis.tickangle = 0;
    (layout.annotations || []).forEach(function (note) { if (note.font) { note.font.size = 9; } });
    Object.keys(layout).filter(name => /^[xy]axis/.test(name)).forEach(function (name) {
      layout[name].tickfont = Object.assign({}, layout[name].tickfont, { size: 10 });
      if (layout[name].title) { layout[name].title.font.size = 11; layout[name].title.standoff = 6; }
    });
  };
  const plots = [];
  const pressed = button => button.getAttribute("aria-pressed") === "true";
  const indices = button => button.dataset.traces.split(" ").map(Number);
  document.querySelectorAll("script[data-figure]").forEach(function (source) {
    const place = document.getElementById(source.dataset.figure);
    const chart = JSON.parse(source.textContent);
    chart.data.forEach(function (trace) {
      if (trace.x && trace.x.dates !== undefined) { trace.x = axes[trace.x.dates]; }
    });
    shrink(chart.layout);
    Plotly.newPlot(place, chart.data, chart.layout, settings);
    plots.push(place);
    // A trace is drawn if its view and its entry in the legend are switched on.
    const views = [...place.parentElement.querySelectorAll(".views button")];
    const legend = [...place.parentElement.querySelectorAll(".legend button")];
    const redraw = function () {
      const shown = chart.data.map(() => true);
      const inViews = new Set(views.flatMap(indices));
      const inView = new Set(views.filter(pressed).flatMap(indices));
      inViews.forEach(function (index) { shown[index] = inView.has(index); });
      legend.filter(button => !pressed(button))
        .forEach(function (button) { indices(button).forEach(function (index) { shown[index] = false; }); });
      Plotly.restyle(place, { visible: shown });
    };
    views.forEach(function (button) {
      button.addEventListener("click", function () {
        views.forEach(function (one) { one.setAttribute("aria-pressed", String(one === button)); });
        redraw();
      });
    });
    legend.forEach(function (button) {
      button.addEventListener("click", function () {
        button.setAttribute("aria-pressed", String(!pressed(button)));
        redraw();
      });
    });
  });
  // Charts are as wide as the screen: fit them to the paper before printing, and restore them afterwards.
  const resize = function (place, width, height) {
    place.style.height = height + "px";
    const few = narrow || (width !== null && width < 400);
    Plotly.relayout(place, {
      width: width, height: height, autosize: width === null, "xaxis.nticks": few ? 4 : 0, "xaxis.tickangle": few ? 0 : "auto",
    });
  };
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details.notes").forEach(function (notes) { notes.open = true; });
    plots.forEach(function (place) {
      const half = place.closest(".beside") && !place.closest("figure").matches(":last-child:nth-child(odd)");
      resize(place, half ? 330 : 680, Math.round(0.74 * place.dataset.height));
    });
  });
  window.addEventListener("afterprint", function () {
    plots.forEach(function (place) { resize(place, null, Number(place.dataset.height)); });
  });
  // The positions of any session: whole numbers are tenths of a basis point.
  const data = document.getElementById("holdings-data");
  if (data) { showHoldings(JSON.parse(data.textContent)); }
  function showHoldings(held) {
    const picker = document.querySelector(".picker");
    const input = picker.querySelector("input[type=date]");
    const tradedOnly = picker.querySelector("input[type=checkbox]");
    const body = document.querySelector("#holdings-table tbody");
    const dates = [];
    const starts = [];
    let day = 0;
    let start = 0;
    held.days.forEach(function (step, place) {
      day += step;
      dates.push(new Date(day * 864e5).toISOString().slice(0, 10));
      starts.push(start);
      start += held.kept[place];
    });
    let current = dates.length - 1;
    const write = function (value, scale, digits, sign) {
      const text = (value / scale).toFixed(digits);
      return (sign && value > 0 ? "+" : "") + text.replace("-", "\u2212");
    };
    const show = function () {
      const total = held.totals[current];
      input.value = dates[current];
      document.getElementById("holdings-total").textContent = dates[current] + ": " + total[0] + " names, gross "
        + write(total[1], 1e3, 1) + "%, net " + write(total[2], 1e3, 1) + "%, traded " + write(total[3], 1e3, 1)
        + "%, profit " + write(total[4], 10, 1, true) + " bps, costs " + write(total[5], 10, 1) + " bps";
      body.textContent = "";
      for (let row = starts[current]; row < starts[current] + held.kept[current]; row += 1) {
        if (tradedOnly.checked && held.trade[row] === 0) { continue; }
        const line = body.insertRow();
        [
          held.tickers[held.firm[row]],
          write(held.weight[row], 1e3, 2),
          write(held.trade[row], 1e3, 2),
          write(held.pnl[row], 10, 1, true),
          write(held.cost[row], 10, 2),
        ].forEach(function (text, column) {
          const cell = line.insertCell();
          cell.textContent = text;
          if (column) { cell.className = "num"; }
        });
      }
    };
    // The last session on or before a date; the first session for an earlier date.
    const find = function (date) {
      let place = 0;
      dates.forEach(function (one, at) { if (one <= date) { place = at; } });
      return place;
    };
    picker.hidden = false;
    input.addEventListener("change", function () {
      if (input.value) { current = find(input.value); show(); }
    });
    tradedOnly.addEventListener("change", show);
    picker.querySelectorAll("button").forEach(function (button) {
      button.addEventListener("click", function () {
        current = Math.min(Math.max(current + Number(button.dataset.step), 0), dates.length - 1);
        show();
      });
    });
  }
  // Tables that are wider than the screen say so.
  const hint = function () {
    document.querySelectorAll(".scroll").forEach(function (box) {
      box.classList.toggle("more", box.scrollWidth > box.clientWidth + 2);
    });
  };
  window.addEventListener("resize", hint);
  document.addEventListener("toggle", hint, true);
  hint();
  // Highlight the current section in the table of contents.
  const links = new Map();
  document.querySelectorAll("nav a").forEach(function (link) { links.set(link.hash.slice(1), link); });
  const mark = function () {
    let current = "top";
    document.querySelectorAll("main section").forEach(function (section) {
      if (section.getBoundingClientRect().top < 140) { current = section.id; }
    });
    links.forEach(function (link, id) { link.classList.toggle("here", id === current); });
  };
  document.addEventListener("scroll", mark, { passive: true });
  mark();
})();
