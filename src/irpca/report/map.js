// The map: all cells in one picture. A mark stands for a block of cells and shows the outlier in it that is furthest out.

const LEAST_MARK = 3; // pixels
const map = { x0: 0, x1: data.shape[1], y0: 0, y1: data.shape[0], ordering: "given", cursor: null, marks: new Map() };
const places = { given: [null, null], worst: [null, null] }; // where a line is drawn; null: as given
const lineAt = { given: [null, null], worst: [null, null] }; // which line is drawn at a place

const placeOf = (axis, k) => (places[map.ordering][axis] ? places[map.ordering][axis][k] : k);
const lineOf = (axis, place) => (lineAt[map.ordering][axis] ? lineAt[map.ordering][axis][place] : place);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function geometry() {
  const canvas = element("canvas"), width = canvas.clientWidth, height = canvas.clientHeight;
  const left = Math.min(120, width * 0.24);
  const box = { left, top: 8, right: width - 6, bottom: height - 42 };
  const px = (box.right - box.left) / (map.x1 - map.x0), py = (box.bottom - box.top) / (map.y1 - map.y0);
  return { canvas, width, height, box, px, py, bx: Math.max(1, Math.ceil(LEAST_MARK / px)), by: Math.max(1, Math.ceil(LEAST_MARK / py)) };
}
const toX = (g, x) => g.box.left + (x - map.x0) * g.px;
const toY = (g, y) => g.box.top + (y - map.y0) * g.py;

// The blocks of cells in sight: how many there are, which one a cell is in (-1: out of sight), and where that is.
function blocksIn(g) {
  const x0 = Math.floor(map.x0 / g.bx), y0 = Math.floor(map.y0 / g.by);
  const wide = Math.ceil(map.x1 / g.bx) - x0, tall = Math.ceil(map.y1 / g.by) - y0;
  const of = (row, column) => {
    const x = Math.floor(placeOf(1, column) / g.bx) - x0, y = Math.floor(placeOf(0, row) / g.by) - y0;
    return x < 0 || x >= wide || y < 0 || y >= tall ? -1 : y * wide + x;
  };
  return { n: wide * tall, of, place: (at) => [x0 + (at % wide), y0 + Math.floor(at / wide)] };
}

// Marks by block: how many outliers, which is furthest out, its score with the sign of the difference.
function gather(g) {
  const blocks = blocksIn(g), counts = new Uint32Array(blocks.n), best = new Uint32Array(blocks.n);
  for (let k = 0; k < outliers.n; k++) {
    const at = blocks.of(outliers.row[k], outliers.column[k]);
    if (at < 0) continue;
    if (!counts[at] || outliers.score[k] > outliers.score[best[at]]) best[at] = k;
    counts[at]++;
  }
  map.across = Math.ceil(data.shape[1] / g.bx) + 1;
  map.marks = new Map();
  counts.forEach((count, at) => {
    const [x, y] = blocks.place(at), k = best[at];
    if (count) map.marks.set(y * map.across + x, { x, y, count, score: outliers.score[k] * (outliers.difference[k] < 0 ? -1 : 1), k });
  });
}

// Share of empty cells by block, as the opacity of grey.
function drawHoles(g, paint) {
  if (values.kind !== "all") return;
  const blocks = blocksIn(g), counts = new Uint32Array(blocks.n), [n1, n2] = data.shape, { numbers } = values.sides[0];
  for (let i = 0; i < n1; i++) for (let j = 0; j < n2; j++) {
    const at = Number.isNaN(numbers[4 * i * n2 + j]) ? blocks.of(i, j) : -1;
    if (at >= 0) counts[at]++;
  }
  paint.fillStyle = colour("--hole");
  counts.forEach((count, at) => {
    const [x, y] = blocks.place(at), cells = Math.min(g.bx, n2 - x * g.bx) * Math.min(g.by, n1 - y * g.by);
    paint.globalAlpha = 0.25 + (0.75 * count) / cells;
    if (count) fill(paint, g, x, y);
  });
  paint.globalAlpha = 1;
}

function fill(paint, g, x, y) {
  const left = toX(g, x * g.bx), top = toY(g, y * g.by);
  const right = toX(g, Math.min((x + 1) * g.bx, data.shape[1])), bottom = toY(g, Math.min((y + 1) * g.by, data.shape[0]));
  const gap = Math.min(right - left, bottom - top) > 9 ? 1 : 0;
  paint.fillRect(left, top, Math.max(right - left - gap, LEAST_MARK), Math.max(bottom - top - gap, LEAST_MARK));
}

let pending = 0;
function drawMap() {
  if (pending) return;
  pending = requestAnimationFrame(() => { pending = 0; drawMapNow(); });
}

function drawMapNow() {
  const g = geometry(), { canvas, box } = g, ratio = devicePixelRatio || 1;
  if (!g.width) return;
  canvas.width = Math.round(g.width * ratio);
  canvas.height = Math.round(g.height * ratio);
  const paint = canvas.getContext("2d");
  paint.setTransform(ratio, 0, 0, ratio, 0, 0);
  paint.fillStyle = colour("--soft");
  paint.fillRect(box.left, box.top, box.right - box.left, box.bottom - box.top);
  paint.save();
  paint.beginPath();
  paint.rect(box.left, box.top, box.right - box.left, box.bottom - box.top);
  paint.clip();
  drawHoles(g, paint);
  gather(g);
  const above = colour("--orange"), below = colour("--blue");
  for (const mark of map.marks.values()) {
    paint.globalAlpha = 0.45 + 0.55 * Math.min(1, Math.log2(Math.max(1, Math.abs(mark.score) / 3)) / 3);
    paint.fillStyle = mark.score < 0 ? below : above;
    fill(paint, g, mark.x, mark.y);
  }
  paint.globalAlpha = 1;
  drawCursor(g, paint);
  paint.restore();
  drawAxes(g, paint);
  element("canvas").style.touchAction = zoomed() ? "none" : "pan-x pan-y";
  canvas.dataset.view = [map.x0, map.x1, map.y0, map.y1].map((v) => v.toFixed(2)).join(" ");
  canvas.dataset.shown = String([...map.marks.values()].reduce((sum, mark) => sum + mark.count, 0));
}

function drawCursor(g, paint) {
  if (!map.cursor) return;
  const x = Math.floor(map.cursor.x / g.bx), y = Math.floor(map.cursor.y / g.by);
  paint.strokeStyle = colour("--ink");
  paint.lineWidth = 2;
  paint.strokeRect(toX(g, x * g.bx) - 2, toY(g, y * g.by) - 2, Math.max(LEAST_MARK, g.bx * g.px) + 4, Math.max(LEAST_MARK, g.by * g.py) + 4);
}

function drawAxes(g, paint) {
  const { box } = g;
  paint.fillStyle = colour("--quiet");
  paint.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  paint.textBaseline = "middle";
  paint.textAlign = "right";
  for (const [y, text] of marked(0, g, 22)) paint.fillText(clipped(text, Math.floor(box.left / 7) - 1), box.left - 7, toY(g, y + 0.5));
  paint.textAlign = "center";
  for (const [x, text] of marked(1, g, 24 + 7 * Math.min(12, labels[1].of(data.shape[1] - 1).length))) paint.fillText(clipped(text, 12), Math.min(Math.max(toX(g, x + 0.5), box.left + 20), box.right - 24), box.bottom + 12);
  paint.fillStyle = colour("--ink");
  paint.font = `600 ${paint.font}`;
  paint.fillText(labels[1].name, (box.left + box.right) / 2, g.height - 11);
  paint.textAlign = "left";
  paint.fillText(clipped(labels[0].name, 14), 2, g.height - 11);
}

// Places and texts along an axis, one for so many pixels.
function marked(axis, g, room) {
  const [from, to, size] = axis === 0 ? [map.y0, map.y1, g.box.bottom - g.box.top] : [map.x0, map.x1, g.box.right - g.box.left];
  if (map.ordering === "given") return ticksOf(axis, from, to, Math.floor(size / room));
  const every = Math.max(1, Math.ceil(((to - from) * room) / size)), found = [];
  for (let k = Math.ceil((from - 0.5) / every) * every; k + 0.5 <= to && k < data.shape[axis]; k += every) found.push([k, labels[axis].of(lineOf(axis, k))]);
  return found;
}
const zoomed = () => map.x1 - map.x0 < data.shape[1] - 1e-9 || map.y1 - map.y0 < data.shape[0] - 1e-9;

// Zoom about a place of the table, within the table, and to no less than a few cells.
function zoom(factor, x = (map.x0 + map.x1) / 2, y = (map.y0 + map.y1) / 2) {
  for (const [low, high, centre, n] of [["x0", "x1", x, data.shape[1]], ["y0", "y1", y, data.shape[0]]]) {
    const length = Math.min(n, Math.max(Math.min(n, 4), (map[high] - map[low]) * factor));
    const start = centre - ((centre - map[low]) / (map[high] - map[low])) * length;
    map[low] = Math.min(Math.max(0, start), n - length);
    map[high] = map[low] + length;
  }
  drawMap();
}

function moveBy(dx, dy) {
  for (const [low, high, by, n] of [["x0", "x1", dx, data.shape[1]], ["y0", "y1", dy, data.shape[0]]]) {
    const length = map[high] - map[low];
    map[low] = Math.min(Math.max(0, map[low] + by), n - length);
    map[high] = map[low] + length;
  }
  drawMap();
}

function whole() {
  Object.assign(map, { x0: 0, x1: data.shape[1], y0: 0, y1: data.shape[0] });
  drawMap();
}

// The place of the table under a point of the screen, or null.
function under(event) {
  const g = geometry(), frame = g.canvas.getBoundingClientRect();
  const x = map.x0 + (event.clientX - frame.left - g.box.left) / g.px, y = map.y0 + (event.clientY - frame.top - g.box.top) / g.py;
  return x >= map.x0 && x < map.x1 && y >= map.y0 && y < map.y1 ? { x, y, left: event.clientX - frame.left, top: event.clientY - frame.top } : null;
}

// The mark at a place, or beside it: marks may be small.
function markNear(place, reach) {
  const g = geometry(), x = Math.floor(place.x / g.bx), y = Math.floor(place.y / g.by);
  let best = map.marks.get(y * map.across + x) || null;
  for (let r = 1; !best && r <= reach; r++) {
    for (let dy = -r; dy <= r; dy++) for (let dx = -r; dx <= r; dx++) {
      const near = map.marks.get((y + dy) * map.across + x + dx);
      if (near && near.x === x + dx && (!best || Math.abs(near.score) > Math.abs(best.score))) best = near;
    }
  }
  return best;
}

function describe(place, mark) {
  const g = geometry();
  const span = (axis, from, size) => {
    const first = labels[axis].of(lineOf(axis, from)), last = lineOf(axis, Math.min(from + size, data.shape[axis]) - 1);
    return size === 1 ? first : map.ordering === "given" ? `${first} to ${labels[axis].of(last)}` : `${size} lines from ${first}`;
  };
  const x = mark ? mark.x : Math.floor(place.x / g.bx), y = mark ? mark.y : Math.floor(place.y / g.by);
  const where = `${labels[0].name}: ${span(0, y * g.by, g.by)}\n${labels[1].name}: ${span(1, x * g.bx, g.bx)}`;
  if (!mark) return `${where}\nno outlier`;
  const k = mark.k, many = mark.count > 1 ? `${several(mark.count, "outlier", "outliers")}, furthest out: ` : "";
  const name = mark.count > 1 ? `${labels[0].of(outliers.row[k])}, ${labels[1].of(outliers.column[k])}: ` : "";
  return `${where}\n${many}${name}${given(outliers.observed[k])} observed, ${format(outliers.expected(k), outliers.std[k])} expected`;
}

function tip(text, left, top) {
  const box = element("tip"), g = geometry();
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  box.style.left = `${Math.max(0, Math.min(left + 14, g.width - box.offsetWidth - 4))}px`;
  box.style.top = `${top + 18 + box.offsetHeight > g.height ? Math.max(0, top - box.offsetHeight - 12) : top + 18}px`;
}

function choose(place, mark) {
  if (mark) show(chart.axis, outliers.row[mark.k], outliers.column[mark.k], mark.k);
  else if (place) show(chart.axis, lineOf(0, Math.floor(place.y)), lineOf(1, Math.floor(place.x)));
}

// Move the cursor by blocks and keep it in view; say what is there.
function setCursor(x, y) {
  map.cursor = { x: Math.min(Math.max(0, x), data.shape[1] - 1), y: Math.min(Math.max(0, y), data.shape[0] - 1) };
  const c = map.cursor;
  if (c.x < map.x0 || c.x >= map.x1) moveBy(c.x - (map.x0 + map.x1) / 2, 0);
  if (c.y < map.y0 || c.y >= map.y1) moveBy(0, c.y - (map.y0 + map.y1) / 2);
  drawMapNow();
  const g = geometry(), mark = markNear({ x: c.x, y: c.y }, 0), text = describe(c, mark);
  tip(text, toX(g, c.x), toY(g, c.y));
  element("canvas-said").textContent = text.replaceAll("\n", ", ");
}

function nextOutlier(step) {
  if (!outliers.n) return;
  map.next = ((map.next ?? (step > 0 ? -1 : 0)) + step + outliers.n) % outliers.n;
  setCursor(placeOf(1, outliers.column[map.next]), placeOf(0, outliers.row[map.next]));
}

function onMapKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const g = geometry(), c = map.cursor || { x: Math.floor(map.x0), y: Math.floor(map.y0) };
  const actions = {
    ArrowLeft: () => setCursor(c.x - g.bx, c.y), ArrowRight: () => setCursor(c.x + g.bx, c.y),
    ArrowUp: () => setCursor(c.x, c.y - g.by), ArrowDown: () => setCursor(c.x, c.y + g.by),
    "+": () => zoom(0.5, map.cursor?.x, map.cursor?.y), "=": () => zoom(0.5, map.cursor?.x, map.cursor?.y),
    "-": () => zoom(2, map.cursor?.x, map.cursor?.y), "0": whole,
    n: () => nextOutlier(1), p: () => nextOutlier(-1), Escape: () => tip(""),
    Enter: () => map.cursor && choose(map.cursor, markNear(map.cursor, 0)),
  };
  const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

// One pointer drags, two pinch; a short touch or click chooses.
function startPointers(canvas) {
  const down = new Map();
  let moved = 0, apart = 0;
  canvas.addEventListener("pointerdown", (event) => {
    down.set(event.pointerId, event);
    moved = 0;
    apart = 0;
    if (zoomed()) canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = down.get(event.pointerId), g = geometry();
    if (!before) {
      const place = under(event);
      if (place) tip(describe(place, markNear(place, 1)), place.left, place.top);
      else tip("");
      return;
    }
    down.set(event.pointerId, event);
    if (down.size === 2) {
      const [a, b] = [...down.values()], distance = Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
      const middle = under({ clientX: (a.clientX + b.clientX) / 2, clientY: (a.clientY + b.clientY) / 2 });
      if (apart && distance && middle) zoom(apart / distance, middle.x, middle.y);
      apart = distance;
      moved = 99;
    } else {
      moved += Math.abs(event.clientX - before.clientX) + Math.abs(event.clientY - before.clientY);
      if (zoomed()) moveBy((before.clientX - event.clientX) / g.px, (before.clientY - event.clientY) / g.py);
    }
  });
  const end = (event) => {
    const was = down.delete(event.pointerId);
    if (event.type !== "pointerup" || !was || moved > 5) return;
    const place = under(event);
    if (!place) return;
    const mark = markNear(place, 1);
    choose(place, mark);
    tip(describe(place, mark), place.left, place.top);
  };
  for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, end);
  canvas.addEventListener("pointerleave", (event) => { down.delete(event.pointerId); tip(""); });
}

function reorder(ordering) {
  map.ordering = ordering;
  if (ordering === "worst" && !lineAt.worst[0]) {
    ["row", "column"].forEach((side, axis) => {
      lineAt.worst[axis] = unpacked(data.order[side]);
      places.worst[axis] = new Uint32Array(data.shape[axis]);
      lineAt.worst[axis].forEach((k, place) => (places.worst[axis][k] = place));
    });
  }
  map.cursor = null;
  tip("");
  whole();
}

function startMap() {
  const canvas = element("canvas");
  canvas.addEventListener("keydown", onMapKey);
  canvas.addEventListener("blur", () => tip(""));
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas && !event.ctrlKey && !event.metaKey) return;
    const place = under(event);
    event.preventDefault();
    if (place) zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * 0.003))), place.x, place.y);
  }, { passive: false });
  startPointers(canvas);
  element("zoom-in").addEventListener("click", () => zoom(0.5));
  element("zoom-out").addEventListener("click", () => zoom(2));
  element("zoom-all").addEventListener("click", whole);
  element("ordering").addEventListener("change", (event) => reorder(event.target.value));
  drawMap();
}
