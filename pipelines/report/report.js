"use strict";
// Draws every figure from the JSON next to it. The page's content security policy forbids all requests.
(function () {
  const settings = {
    responsive: true,
    displaylogo: false,
    // By default, plotly.js offers to upload charts to its vendor's server.
    showSendToCloud: false,
    plotlyServerURL: "",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };
  const plots = [];
  document.querySelectorAll("script[data-figure]").forEach(function (source) {
    const place = document.getElementById(source.dataset.figure);
    const figure = JSON.parse(source.textContent);
    Plotly.newPlot(place, figure.data, figure.layout, settings);
    plots.push(place);
  });
  // Charts are as wide as the screen: fit them to the paper before printing, and restore them afterwards.
  window.addEventListener("beforeprint", function () {
    plots.forEach(function (place) { Plotly.relayout(place, { width: 680 }); });
  });
  window.addEventListener("afterprint", function () {
    plots.forEach(function (place) { Plotly.relayout(place, { width: null, autosize: true }); });
  });
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
