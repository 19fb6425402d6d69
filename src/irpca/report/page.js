// What holds the parts together.

function startChart() {
  ["as-row", "as-column"].forEach((id, axis) => element(id).addEventListener("click", () => { chart.axis = axis; drawChart(); }));
  element("numbers").addEventListener("toggle", () => { if (element("numbers").open) listNumbers(); });
  for (const button of document.querySelectorAll("button[data-side]")) {
    button.addEventListener("click", () => {
      const axis = button.dataset.side === "row" ? 0 : 1, at = Number(button.dataset.at), [k] = outliersOf(axis, at);
      show(axis, axis === 0 ? at : k === undefined ? -1 : outliers.row[k], axis === 1 ? at : k === undefined ? -1 : outliers.column[k], k ?? -1);
      element("detail-heading").focus({ preventScroll: true });
    });
  }
  if (outliers.n) { table.picked = 0; show(0, outliers.row[0], outliers.column[0], 0, false); } else drawChart();
}

startChart();
startTable();
startMap();
let resizing = 0;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(() => { drawChart(); drawMap(); if (outliers.n) renderRows(); }, 60); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMap);
document.documentElement.dataset.ready = "yes";
