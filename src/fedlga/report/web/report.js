// The report's script: puts curves that can be pointed at in the place of the drawn ones, and switches the axis.
"use strict";

(() => {
  document.body.classList.add("js");
  const {curves, figures} = JSON.parse(document.getElementById("numbers").textContent);
  const hidden = new Set();
  const charts = [];
  for (const place of document.querySelectorAll("figure[data-figure]")) {
    const figure = figures[Number(place.dataset.figure)];
    const chart = new Charts.Chart(place, {...figure, whole: figure.axis === "rounds"});
    chart.update(figure.curves.map((curve, i) => ({...curves[i], ...curve})), figure.text);
    place.classList.add("live");
    charts.push(chart);
  }
  Charts.makeLegend(document.querySelector(".legend"), curves, () => charts, hidden);
  const axes = document.querySelectorAll(".axis");
  const show = (name) => axes.forEach((part) => part.classList.toggle("on", part.dataset.axis === name));
  for (const choice of document.querySelectorAll("input[name=axis]")) {
    choice.addEventListener("change", () => show(choice.value));
    if (choice.checked) show(choice.value);
  }
})();
