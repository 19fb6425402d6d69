// One row or column: observed against expected values, as a drawing and as a table.

const SVG = "http://www.w3.org/2000/svg";
const chart = { axis: 0, row: -1, column: -1, k: -1 };
const MOST_POINTS = 4000; // beyond, the lowest and the highest of a group stand for it
const MOST_NUMBERS = 500; // rows of the table beside the drawing

function shape(parent, kind, attributes, text) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

// Show the row or the column of an outlier; k is its place in the list, or -1.
function show(axis, row, column, k = -1, move = true) {
  Object.assign(chart, { axis, row, column, k });
  drawChart();
  if (move && element("detail").getBoundingClientRect().top > innerHeight * 0.6) element("detail").scrollIntoView({ block: "start" });
  else if (move && element("detail").getBoundingClientRect().bottom < 80) element("detail").scrollIntoView({ block: "start" });
}

function drawChart() {
  const at = chart.axis === 0 ? chart.row : chart.column;
  const buttons = [element("as-row"), element("as-column")];
  buttons.forEach((button, axis) => {
    const place = axis === 0 ? chart.row : chart.column;
    button.textContent = place < 0 ? labels[axis].name : `${labels[axis].name}: ${labels[axis].of(place)}`;
    button.disabled = place < 0;
    button.setAttribute("aria-pressed", String(chart.axis === axis));
  });
  if (at < 0) {
    element("detail-text").textContent = "Nothing to draw: there are no outliers. Select a mark on the map to see its row or column.";
    return;
  }
  const drawn = line(chart.axis, at);
  element("detail-heading").textContent = `Observed and expected: ${labels[chart.axis].of(at)}`;
  element("detail-text").textContent = described(drawn);
  const width = Math.max(280, element("chart").clientWidth || 560);
  element("chart").replaceChildren(picture(drawn, width, Math.round(Math.min(380, Math.max(250, width * 0.62)))));
  if (element("numbers").open) listNumbers();
}

function described(drawn) {
  const other = labels[1 - drawn.axis];
  const said = [];
  if (chart.k >= 0) {
    const k = chart.k, place = drawn.axis === 0 ? chart.column : chart.row;
    const name = `${labels[drawn.axis].of(drawn.at)}, ${other.of(place)}`;
    if (outliers.why[k]) said.push(`${name}: ${outliers.why[k]}`);
    else said.push(`${name}: ${given(outliers.observed[k])} observed, ${format(outliers.expected(k), outliers.std[k])} expected, a difference of ${signed(outliers.difference[k], outliers.std[k])}.`);
  }
  let holes = 0;
  for (let j = 0; j < drawn.n; j++) if (Number.isNaN(drawn.observed[j])) holes++;
  const tail = drawn.whole && holes ? `, ${several(holes, "empty cell", "empty cells")}` : "";
  said.push(`${several(drawn.outliers.size, "outlier", "outliers")} in ${several(drawn.n, "cell", "cells")}${tail}.`);
  if (!drawn.whole) said.push("Of this line only the outliers are in this file.");
  return said.join(" ");
}

// Low and high of what is drawn, and round numbers between them.
function scale(low, high, many) {
  if (!(high > low)) { const pad = Math.abs(low) * 0.05 || 1; low -= pad; high += pad; }
  const rough = (high - low) / many, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const ticks = [];
  for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9; k++) ticks.push(k * step);
  return { low, high, ticks, step };
}

function extent(drawn) {
  let low = Infinity, high = -Infinity;
  const see = (value) => { if (Number.isFinite(value)) { low = Math.min(low, value); high = Math.max(high, value); } };
  for (let j = 0; j < drawn.n; j++) {
    see(drawn.observed[j]); see(drawn.expected[j]); see(drawn.lower[j]); see(drawn.upper[j]);
  }
  if (low > high) return [0, 1];
  const pad = (high - low) * 0.04;
  return [low - pad, high + pad];
}

function picture(drawn, width, height) {
  const axis = scale(...extent(drawn), 5);
  const texts = axis.ticks.map((tick) => format(tick, axis.step * 10));
  const left = Math.min(90, 16 + 7 * Math.max(...texts.map((text) => text.length)));
  const box = { left, right: width - 12, top: 12, bottom: height - 40 };
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Observed and expected values of ${labels[drawn.axis].of(drawn.at)}. ${described(drawn)} The numbers are in the table below.`);
  const ordered = data.ordered[1 - drawn.axis];
  drawn.order = ordered ? null : byExpected(drawn);
  drawn.place = drawn.order && new Uint32Array(drawn.n);
  drawn.order?.forEach((j, place) => (drawn.place[j] = place));
  const x = (j) => box.left + (((drawn.place ? drawn.place[j] : j) + 0.5) / drawn.n) * (box.right - box.left);
  const y = (value) => box.bottom - ((value - axis.low) / (axis.high - axis.low)) * (box.bottom - box.top);
  axis.ticks.forEach((tick, k) => {
    shape(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) });
    shape(svg, "text", { x: box.left - 7, y: y(tick) + 4, "text-anchor": "end" }, texts[k]);
  });
  bottomAxis(svg, drawn, x, box, height);
  if (ordered) joined(svg, drawn, x, y); else apart(svg, drawn, x, y, box);
  points(svg, drawn, x, y);
  const place = drawn.axis === 0 ? chart.column : chart.row;
  if (place >= 0 && Number.isFinite(drawn.observed[place])) shape(svg, "circle", { class: "here", cx: x(place), cy: y(drawn.observed[place]), r: 7.5 });
  svg.addEventListener("click", (event) => {
    const frame = svg.getBoundingClientRect();
    const j = Math.floor((((event.clientX - frame.left) * width) / frame.width - box.left) / (box.right - box.left) * drawn.n);
    if (j >= 0 && j < drawn.n) pickInLine(drawn, drawn.order ? drawn.order[j] : j);
  });
  return svg;
}

function pickInLine(drawn, j) {
  const [row, column] = drawn.axis === 0 ? [drawn.at, j] : [j, drawn.at];
  show(drawn.axis, row, column, drawn.outliers.has(j) ? drawn.outliers.get(j) : -1, false);
}

// Names have no order of their own: by expected values they make a curve, from which outliers stand out.
function byExpected(drawn) {
  const size = (j) => (Number.isFinite(drawn.expected[j]) ? drawn.expected[j] : Infinity);
  return Uint32Array.from({ length: drawn.n }, (_, j) => j).sort((a, b) => size(a) - size(b) || a - b);
}

function bottomAxis(svg, drawn, x, box, height) {
  const other = labels[1 - drawn.axis], width = 24 + 7 * Math.min(12, other.of(drawn.n - 1).length);
  const room = Math.max(1, Math.floor((box.right - box.left) / (drawn.order ? 100 : width))), every = Math.ceil(drawn.n / room);
  const ticks = drawn.order ? Array.from(drawn.order).filter((_, place) => place % every === every >> 1).map((j) => [j, other.of(j)]) : ticksOf(1 - drawn.axis, 0, drawn.n, room);
  for (const [j, text] of ticks) {
    const short = clipped(text, 12), half = 3.4 * short.length;
    shape(svg, "line", { class: "grid", x1: x(j), x2: x(j), y1: box.bottom, y2: box.bottom + 5 });
    shape(svg, "text", { x: Math.max(half, Math.min(x(j), box.right + 10 - half)), y: box.bottom + 18, "text-anchor": "middle" }, short);
  }
  const name = drawn.order ? `${other.name}, in the order of expected values` : other.name;
  shape(svg, "text", { x: (box.left + box.right) / 2, y: height - 5, "text-anchor": "middle", class: "name" }, name);
}

// Neighbours that belong together, such as years: a band and a line.
function joined(svg, drawn, x, y) {
  const every = Math.max(1, Math.ceil(drawn.n / MOST_POINTS));
  let path = "", pieces = [], piece = [];
  for (let j = 0; j < drawn.n; j += every) {
    if (!Number.isFinite(drawn.expected[j])) { if (piece.length) pieces.push(piece); piece = []; continue; }
    path += `${piece.length ? "L" : "M"}${x(j).toFixed(1)} ${y(drawn.expected[j]).toFixed(1)}`;
    piece.push(j);
  }
  if (piece.length) pieces.push(piece);
  for (const part of pieces) {
    const edge = (j, end) => `${x(j).toFixed(1)} ${y(Number.isFinite(end[j]) ? end[j] : drawn.expected[j]).toFixed(1)}`;
    const up = part.map((j) => edge(j, drawn.upper)), down = part.map((j) => edge(j, drawn.lower)).reverse();
    shape(svg, "path", { class: "range", d: `M${[...up, ...down].join("L")}Z` });
  }
  shape(svg, "path", { class: "expected", d: path || "M0 0" });
}

// Names side by side, such as countries: a bar and a dash for each.
function apart(svg, drawn, x, y, box) {
  const room = (box.right - box.left) / drawn.n, half = Math.max(0.6, Math.min(9, room * 0.36));
  let bars = "", dashes = "";
  for (let j = 0; j < drawn.n; j++) {
    const middle = drawn.expected[j];
    if (!Number.isFinite(middle)) continue;
    if (drawn.lower[j] <= drawn.upper[j]) bars += `M${x(j).toFixed(1)} ${y(drawn.lower[j]).toFixed(1)}V${y(drawn.upper[j]).toFixed(1)}`;
    dashes += `M${(x(j) - half).toFixed(1)} ${y(middle).toFixed(1)}h${(2 * half).toFixed(1)}`;
  }
  shape(svg, "path", { class: "ranges", d: bars || "M0 0", "stroke-width": 2 * half });
  shape(svg, "path", { class: "expected", d: dashes || "M0 0" });
}

function points(svg, drawn, x, y) {
  const dot = (j) => `M${x(j).toFixed(1)} ${y(drawn.observed[j]).toFixed(1)}h0`;
  let ordinary = "", gaps = "", wrong = "";
  for (const j of shown(drawn)) if (!drawn.outliers.has(j)) ordinary += dot(j);
  for (const j of drawn.outliers.keys()) {
    wrong += dot(j);
    gaps += `M${x(j).toFixed(1)} ${y(drawn.observed[j]).toFixed(1)}V${y(drawn.expected[j]).toFixed(1)}`;
  }
  shape(svg, "path", { class: "observed", d: ordinary || "M0 0", "stroke-width": drawn.n > 300 ? 2.6 : drawn.n > 120 ? 3.6 : 5 });
  shape(svg, "path", { class: "gap", d: gaps || "M0 0" });
  shape(svg, "path", { class: "outlier", d: wrong || "M0 0", "stroke-width": drawn.n > 400 ? 6 : 8.5 });
}

// Which observed values are drawn: all, or the lowest and the highest of each group.
function shown(drawn) {
  const every = Math.ceil(drawn.n / MOST_POINTS), picked = [];
  for (let from = 0; from < drawn.n; from += every) {
    let low = -1, high = -1;
    for (let j = from; j < Math.min(from + every, drawn.n); j++) {
      if (!Number.isFinite(drawn.observed[j])) continue;
      if (low < 0 || drawn.observed[j] < drawn.observed[low]) low = j;
      if (high < 0 || drawn.observed[j] > drawn.observed[high]) high = j;
    }
    if (low >= 0) picked.push(low);
    if (high >= 0 && high !== low) picked.push(high);
  }
  return picked;
}

function listNumbers() {
  const at = chart.axis === 0 ? chart.row : chart.column, box = element("numbers").querySelector(".wide");
  if (at < 0) return box.replaceChildren();
  const drawn = line(chart.axis, at), other = labels[1 - chart.axis];
  let places = Array.from({ length: drawn.n }, (_, j) => j);
  if (!drawn.whole) places = places.filter((j) => drawn.outliers.has(j));
  if (places.length > MOST_NUMBERS) places = [...[...drawn.outliers.keys()].sort((a, b) => a - b), ...places.filter((j) => !drawn.outliers.has(j))].slice(0, MOST_NUMBERS);
  const cut = places.length < drawn.n && drawn.whole ? `, outliers first, ${places.length} of ${drawn.n} cells` : "";
  const table = build("table", { class: "plain" }, [
    build("caption", {}, [`${labels[chart.axis].of(at)}${cut}`]),
    build("thead", {}, [build("tr", {}, [other.name, "Observed", "Expected", "95 % range", "Remark"].map((text, k) => build("th", { scope: "col", class: k === 1 || k === 2 ? "number" : "" }, [text])))]),
    build("tbody", {}, places.map((j) => numbersRow(drawn, j, other))),
  ]);
  box.replaceChildren(table);
}

function numbersRow(drawn, j, other) {
  const { observed, expected, lower, upper } = drawn, std = drawn.std(j);
  const range = Number.isFinite(std) ? `${format(lower[j], std)} to ${format(upper[j], std)}` : "–";
  const remark = drawn.outliers.has(j) ? "outlier" : Number.isNaN(observed[j]) ? "empty" : "";
  return build("tr", {}, [
    build("th", { scope: "row" }, [other.of(j)]),
    build("td", { class: "number" }, [given(observed[j])]),
    build("td", { class: "number" }, [format(expected[j], std)]),
    build("td", { class: "range-text" }, [range]),
    build("td", {}, [remark]),
  ]);
}

function build(kind, attributes, children) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) if (value) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
