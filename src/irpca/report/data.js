"use strict";
// The data of the report: numbers out of base64, labels, values of cells, and numbers as people read them.

const data = JSON.parse(document.getElementById("data").textContent);
const ARRAYS = { uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, float32: Float32Array, float64: Float64Array };
const element = (id) => document.getElementById(id);

function unpacked(column) {
  if (!column) return null;
  const text = column.data;
  column.data = ""; // so that a large report is not in memory twice
  if (Uint8Array.fromBase64) return new ARRAYS[column.type](Uint8Array.fromBase64(text).buffer);
  const bytes = new Uint8Array((text.length / 4) * 3 - (text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0));
  const CHUNK = 1 << 16;
  for (let from = 0, at = 0; from < text.length; from += CHUNK) {
    const part = atob(text.slice(from, from + CHUNK));
    for (let k = 0; k < part.length; k++) bytes[at++] = part.charCodeAt(k);
  }
  return new ARRAYS[column.type](bytes.buffer);
}

// Labels of rows (0) and columns (1): all of them, some of them, or positions.
class Labels {
  constructor(axis) {
    const given = data.labels[axis];
    this.n = data.shape[axis];
    this.name = data.names[axis];
    this.text = given && given.text;
    this.at = given && given.at ? new Map(Array.from(unpacked(given.at), (position, k) => [position, k])) : null;
  }
  of(k) {
    if (!this.text) return String(k);
    if (!this.at) return this.text[k];
    return this.at.has(k) ? this.text[this.at.get(k)] : `${this.name} ${k}`;
  }
  // Which labels contain a word, as one byte for each line.
  containing(word) {
    const found = new Uint8Array(this.n);
    this.small ||= Array.from({ length: this.n }, (_, k) => this.of(k).toLowerCase());
    for (let k = 0; k < this.n; k++) if (this.small[k].includes(word)) found[k] = 1;
    return found;
  }
  // The place of every label in the alphabet; numbers and dates by size.
  ranks() {
    if (this.placed) return this.placed;
    this.placed = Uint32Array.from({ length: this.n }, (_, k) => k);
    if (this.text && !data.ordered[this === labels[0] ? 0 : 1]) {
      const collator = new Intl.Collator("en", { numeric: true });
      const texts = Array.from({ length: this.n }, (_, k) => this.of(k));
      const order = Uint32Array.from(this.placed).sort((a, b) => collator.compare(texts[a], texts[b]));
      order.forEach((k, place) => (this.placed[k] = place));
    }
    return this.placed;
  }
}
const labels = [new Labels(0), new Labels(1)];

const outliers = { n: data.outliers.listed, count: data.outliers.count };
for (const key of ["row", "column", "observed", "difference", "std", "lower", "upper", "score", "probability"]) outliers[key] = unpacked(data.outliers[key]);
outliers.why = data.outliers.why;
outliers.expected = (k) => outliers.observed[k] - outliers.difference[k];

// Outliers of every row (0) or column (1), made when it is first asked for: starts, and positions in the list.
const listedBy = [null, null];
function outliersOf(axis, line) {
  if (!listedBy[axis]) {
    const keys = axis === 0 ? outliers.row : outliers.column;
    const starts = new Uint32Array(data.shape[axis] + 1);
    for (let k = 0; k < outliers.n; k++) starts[keys[k] + 1]++;
    for (let k = 0; k < data.shape[axis]; k++) starts[k + 1] += starts[k];
    const next = starts.slice(), listed = new Uint32Array(outliers.n);
    for (let k = 0; k < outliers.n; k++) listed[next[keys[k]]++] = k;
    listedBy[axis] = { starts, listed };
  }
  const { starts, listed } = listedBy[axis];
  return listed.subarray(starts[line], starts[line + 1]);
}

// Observed and expected values, and between which 95 % of clean ones lie, line by line: of all rows, or of the worst lines.
const QUANTITIES = ["observed", "expected", "lower", "upper"];
const REACH = 1.96;
const values = { kind: data.values.kind };
values.sides = ["row", "column"].map((side) => {
  const given = data.values[side];
  return given && { place: new Map(Array.from(unpacked(given.at), (line, k) => [line, k])), numbers: unpacked(given.values) };
});

// The values along a row (0) or column (1); whole: whether all observed values are known.
function line(axis, at) {
  const n = data.shape[1 - axis], side = values.sides[axis];
  const made = { n, axis, at, whole: true, outliers: new Map(), std: (j) => (made.upper[j] - made.lower[j]) / (2 * REACH) };
  for (const key of QUANTITIES) made[key] = new Float64Array(n).fill(NaN);
  if (side?.place.has(at)) QUANTITIES.forEach((key, q) => made[key].set(side.numbers.subarray((4 * side.place.get(at) + q) * n, (4 * side.place.get(at) + q + 1) * n)));
  else if (values.kind === "all") QUANTITIES.forEach((key, q) => { for (let i = 0; i < n; i++) made[key][i] = values.sides[0].numbers[(4 * i + q) * data.shape[1] + at]; });
  else made.whole = false;
  for (const k of outliersOf(axis, at)) {
    const j = axis === 0 ? outliers.column[k] : outliers.row[k];
    made.outliers.set(j, k);
    made.expected[j] = outliers.expected(k);
    for (const key of ["observed", "lower", "upper"]) made[key][j] = outliers[key][k];
  }
  return made;
}

const FORMATS = Array.from({ length: 9 }, (_, digits) => new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
const AS_GIVEN = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 6 });

// A number with as many decimals as its standard deviation, or its own size, gives a meaning to.
function format(value, std) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value), unit = std > 0 ? std : size / 1000;
  if (size >= 1e12 || (size > 0 && size < 1e-6)) return value.toExponential(3).replace("-", "−");
  const most = size > 0 ? Math.max(0, 5 - Math.floor(Math.log10(size))) : 8; // six significant digits are enough to read
  const digits = unit > 0 ? Math.min(8, most, Math.max(0, 1 - Math.floor(Math.log10(3 * unit)))) : 0;
  return FORMATS[digits].format(value).replace("-", "−");
}

// An observed number as it was given: whole numbers in full, others to six digits.
function given(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e12 || (size > 0 && size < 1e-6)) return value.toExponential(6).replace("-", "−");
  return (Number.isInteger(value) ? FORMATS[0] : AS_GIVEN).format(value).replace("-", "−");
}
const signed = (value, std) => (value > 0 ? "+" : "") + format(value, std);

function likely(probability) {
  if (Number.isNaN(probability)) return "–";
  return probability >= 0.9995 ? "> 99.9 %" : `${(100 * probability).toFixed(1)} %`;
}
const several = (n, one, many) => `${n.toLocaleString("en-US")} ${n === 1 ? one : many}`;

// Places to label along rows (0) or columns (1), from one to another, at most so many: round numbers, first days of
// months and years, else evenly spread. Each is a place and a text.
function ticksOf(axis, from, to, most) {
  const first = Math.max(0, Math.ceil(from - 0.5)), last = Math.min(data.shape[axis] - 1, Math.floor(to - 0.5));
  const least = Math.max(1, Math.ceil((last - first + 1) / Math.max(1, most))), text = labels[axis];
  if (data.ordered[axis] && first <= last) {
    if (/^\d{4}-\d\d-\d\d/.test(text.of(first))) {
      for (const length of [10, 7, 4]) {
        const found = [];
        for (let k = first; k <= last && found.length <= most; k++) if (k && text.of(k).slice(0, length) !== text.of(k - 1).slice(0, length)) found.push([k, text.of(k).slice(0, length)]);
        if (found.length >= 2 && found.length <= most) return found;
      }
    } else if (Number(text.of(last)) - Number(text.of(first)) === last - first && Number.isInteger(Number(text.of(first)))) {
      const power = 10 ** Math.floor(Math.log10(least)), step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= least);
      const start = first + ((step - (Number(text.of(first)) % step)) % step), found = [];
      for (let k = start; k <= last; k += step) if (k >= first) found.push([k, text.of(k)]);
      return found;
    }
  }
  const found = [];
  for (let k = Math.ceil(first / least) * least; k <= last; k += least) found.push([k, text.of(k)]);
  return found;
}
const clipped = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text);
