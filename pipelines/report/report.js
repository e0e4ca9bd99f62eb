"use strict";
// Draws every figure from the JSON beside it. The page's policy forbids requests, so nothing is asked for.
(function () {
  const settings = {
    responsive: true,
    displaylogo: false,
    // The library offers by default to upload a chart to its maker's server.
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
  // A chart is as wide as the screen when printing starts: fit it to the paper, and back afterwards.
  window.addEventListener("beforeprint", function () {
    plots.forEach(function (place) { Plotly.relayout(place, { width: 680 }); });
  });
  window.addEventListener("afterprint", function () {
    plots.forEach(function (place) { Plotly.relayout(place, { width: null, autosize: true }); });
  });
  // The entry of the section being read stands out in the contents.
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
