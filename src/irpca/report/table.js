// The list of outliers: sorted, searched, and only as many rows made as can be seen.

const TALLEST = 8e6; // pixels; browsers cannot scroll much further
const ON_PAPER = 60; // rows that are printed
const table = { order: Uint32Array.from({ length: outliers.n }, (_, k) => k), key: "probability", down: true, at: 0, picked: -1, query: "" };

const KEYS = {
  row: (k) => labels[0].ranks()[outliers.row[k]],
  column: (k) => labels[1].ranks()[outliers.column[k]],
  observed: (k) => outliers.observed[k],
  expected: (k) => outliers.expected(k),
  difference: (k) => outliers.difference[k],
  probability: (k) => -k, // they come in this order, equal ones by how far out they are
};

function sortOrder() {
  const of = KEYS[table.key], keys = new Float64Array(outliers.n);
  for (let k = 0; k < outliers.n; k++) keys[k] = of(k);
  const sign = table.down ? -1 : 1;
  table.sorted = Uint32Array.from({ length: outliers.n }, (_, k) => k);
  if (table.key === "probability") { if (!table.down) table.sorted.reverse(); return; }
  table.sorted.sort((a, b) => sign * (keys[a] - keys[b]) || a - b);
}

// Every word must be in the label of the row or of the column; labels are searched first, they are few.
function search() {
  const words = table.query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) { table.order = table.sorted; return; }
  const rows = words.map((word) => labels[0].containing(word)), columns = words.map((word) => labels[1].containing(word));
  let n = 0;
  const kept = new Uint32Array(outliers.n);
  for (const k of table.sorted) {
    let all = true;
    for (let w = 0; w < words.length && all; w++) all = rows[w][outliers.row[k]] || columns[w][outliers.column[k]];
    if (all) kept[n++] = k;
  }
  table.order = kept.slice(0, n);
}

function announce() {
  const n = table.order.length, all = several(outliers.n, "outlier", "outliers");
  element("found").textContent = table.query.trim() ? `${n.toLocaleString("en-US")} of ${all} match “${table.query.trim()}”.` : `${all}.`;
}

function refresh() {
  table.at = 0;
  table.drawing = (table.drawing || 0) + 1;
  element("scroller").scrollTop = 0;
  element("cells").setAttribute("aria-rowcount", String(table.order.length + 1));
  for (const head of element("cells").querySelectorAll("th")) {
    if (head.dataset.key === table.key) head.setAttribute("aria-sort", table.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  announce();
  renderRows();
}

// How tall rows are, how tall the list is, and how many rows a pixel of scrolling passes over.
function measures() {
  const height = matchMedia("(max-width: 40rem)").matches ? 60 : 36;
  const head = element("cells").tHead.offsetHeight, seen = Math.max(1, Math.floor((element("scroller").clientHeight - head) / height));
  const n = table.order.length, tall = Math.min(n * height, TALLEST);
  const room = Math.max(1, tall + head - element("scroller").clientHeight);
  return { height, head, seen, n, tall, room, squeezed: n * height > TALLEST };
}

function renderRows() {
  const m = measures(), body = element("cells").tBodies[0], top = element("scroller").scrollTop;
  const first = m.squeezed ? Math.round(Math.min(1, top / m.room) * (m.n - m.seen)) : Math.floor(top / m.height);
  const from = Math.max(0, first - 4), to = Math.min(m.n, first + m.seen + 6);
  const offset = m.squeezed ? top - (first - from) * m.height : from * m.height;
  const start = Math.min(offset, Math.max(0, m.tall - (to - from) * m.height));
  const drawn = [from, to, start, m.height, table.picked, table.drawing].join(" ");
  const focused = body.contains(document.activeElement);
  if (drawn !== table.drawn) { // rows that stay as they are keep the focus, and a screen reader its place
    body.style.height = `${Math.max(m.tall, 1)}px`;
    body.replaceChildren(...Array.from({ length: to - from }, (_, k) => row(from + k, start + k * m.height)));
    if (!m.n) body.replaceChildren(build("tr", { role: "row" }, [build("td", { role: "gridcell" }, ["No match"])]));
    table.drawn = drawn;
  }
  // One row is in the order of Tab keys: the one that was last used, or the first in sight.
  const active = body.querySelector(`[data-place="${table.at}"]`) || body.querySelector("[data-place]");
  for (const made of body.querySelectorAll("[data-place]")) made.tabIndex = made === active ? 0 : -1;
  if (focused && active !== document.activeElement) active?.focus({ preventScroll: true });
}

// On paper: as many as fill a page or two.
function renderForPrint() {
  const n = Math.min(ON_PAPER, table.order.length);
  table.drawn = "";
  element("cells").tBodies[0].replaceChildren(...Array.from({ length: n }, (_, place) => row(place, 0)));
  element("printed").textContent = n < outliers.count ? `Printed are ${n} of ${several(outliers.count, "outlier", "outliers")}.` : "";
}

function row(place, top) {
  const k = table.order[place], std = outliers.std[k], difference = outliers.difference[k];
  const cell = (kind, text) => build("td", { role: "gridcell", class: kind, title: text }, [text]);
  const made = build("tr", { role: "row", "aria-rowindex": String(place + 2), "aria-selected": String(k === table.picked), tabindex: "-1", "data-place": String(place) }, [
    cell("row", labels[0].of(outliers.row[k])),
    cell("column", labels[1].of(outliers.column[k])),
    cell("observed number", given(outliers.observed[k])),
    cell("expected number", format(outliers.expected(k), std)),
    cell(`difference number${difference < 0 ? " minus" : ""}`, signed(difference, std)),
    cell("probability number", likely(outliers.probability[k])),
  ]);
  made.style.top = `${top}px`;
  return made;
}

function pick(place, move = true) {
  const k = table.order[place];
  table.at = place;
  table.picked = k;
  show(chart.axis, outliers.row[k], outliers.column[k], k, move);
  renderRows();
}

// Bring a row of the list into view and focus it.
function goTo(place) {
  const m = measures(), box = element("scroller");
  table.at = Math.max(0, Math.min(m.n - 1, place));
  if (m.squeezed) box.scrollTop = (Math.max(0, table.at - (m.seen >> 1)) / Math.max(1, m.n - m.seen)) * m.room;
  else {
    const top = table.at * m.height;
    if (top < box.scrollTop) box.scrollTop = top;
    if (top + m.height > box.scrollTop + m.seen * m.height) box.scrollTop = top - (m.seen - 1) * m.height;
  }
  renderRows();
  element("cells").tBodies[0].querySelector(`[data-place="${table.at}"]`)?.focus({ preventScroll: true });
}

function onListKey(event) {
  const { seen, n } = measures();
  const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: seen, PageUp: -seen, Home: -n, End: n };
  if (event.key in moves) goTo(table.at + moves[event.key]);
  else if (event.key === "Enter" || event.key === " ") pick(table.at);
  else return;
  event.preventDefault();
}

function startTable() {
  if (!outliers.n) return;
  const body = element("cells").tBodies[0];
  for (const head of element("cells").querySelectorAll("th")) {
    head.querySelector("button").addEventListener("click", () => {
      const key = head.dataset.key, text = key === "row" || key === "column";
      table.down = table.key === key ? !table.down : !text;
      table.key = key;
      sortOrder(); search(); refresh();
    });
  }
  let waiting = 0;
  const narrow = () => { table.query = element("search").value; search(); refresh(); };
  element("search").addEventListener("input", () => {
    clearTimeout(waiting);
    if (outliers.n > 1e5) waiting = setTimeout(narrow, 200); // not at every letter
    else narrow();
  });
  element("scroller").addEventListener("scroll", () => requestAnimationFrame(renderRows), { passive: true });
  body.addEventListener("click", (event) => { const made = event.target.closest("tr[data-place]"); if (made) { pick(Number(made.dataset.place)); goTo(table.at); } });
  body.addEventListener("focusin", (event) => { const made = event.target.closest("tr[data-place]"); if (made) table.at = Number(made.dataset.place); });
  body.addEventListener("keydown", onListKey);
  addEventListener("beforeprint", renderForPrint);
  addEventListener("afterprint", renderRows);
  sortOrder(); search(); refresh();
}
