/** The rows of a heatmap, their groups and order, and its layout in CSS pixels. Pure. */
import { badness, INFINITE, startOf } from "../canvas/columns.js";
import { moduleName } from "../format.js";
import { countOf } from "../scale.js";
import { ROOT } from "../vocabulary.js";
/** @import { Along } from "../along.js"
 * @import { Columns } from "../canvas/columns.js" */

/** @typedef {"fit" | "read"} Fit */
/** @typedef {"model" | "value" | "change" | "bad"} Sort */

/** @typedef {{number: number | null, module: string, kind: string, index: string, call: number, phase: string, label?:
 * string, type?: string, group: number}} Row */
/** @typedef {{name: string, from: number, to: number}} Group rows of the picture, the last one excluded */

/** A row's name: the label of its tap without the kind. A row that is no tap has only a module.
 * @param {{module: string, kind: string, label?: string}} row */
export function labelOf({ module, kind, label = "" }) {
  const name = module || ROOT;
  return name + label.slice(`${name} ${kind}`.length);
}

/** The same as the axis shows it. @param {{module: string, kind: string, label?: string}} row */
export function axisName(row) {
  return moduleName(row.module) + labelOf(row).slice((row.module || ROOT).length);
}

/** A row that is no tap, such as a rank. @param {number} number @param {string} module its name @returns {Row} */
export function rowOf(number, module) {
  return { number, module, kind: "", index: "", call: 0, phase: "", group: 1 };
}

/** The block of the model that contains a module: the first names of its path, up to a number if there are several.
 * @param {string} path @param {number} [shared] how many names all paths begin with */
export function blockOf(path, shared = 0) {
  const parts = path.split(".");
  const numbered = parts.findIndex((part, place) => place >= shared && /^\d+$/.test(part));
  return parts.slice(0, numbered >= 0 && numbered - shared <= 2 ? numbered + 1 : shared + 1).join(".");
}

/** Neighboring rows of one block; none if each row is a block of its own. @param {readonly {module: string}[]} rows
 * @param {ArrayLike<number>} order @param {number} [shared] @returns {Group[]} */
export function groupsOf(rows, order, shared = 0) {
  /** @type {Group[]} */
  const groups = [];
  for (let place = 0; place < order.length; place += 1) {
    const name = blockOf(moduleName(rows[order[place]].module), shared);
    const last = groups.at(-1);
    if (last && last.name === name) last.to = place + 1;
    else groups.push({ name, from: place, to: place + 1 });
  }
  return groups.length < order.length ? groups : [];
}

/** Whether two lists are of the same rows. @param {readonly Row[]} before @param {readonly Row[]} after */
export function sameRows(before, after) {
  return (
    before.length === after.length &&
    after.every((row, place) => row.number === before[place].number && row.group === before[place].group)
  );
}

/** Which rows share a pixel row: the first `alone` have one each, the others share the rest.
 * @param {number} rows @param {number} pixels @param {number} [alone] */
export function startsOf(rows, pixels, alone = 0) {
  const rest = rows - alone;
  const height = Math.max(0, Math.min(rest, pixels));
  const starts = new Int32Array(alone + height + 1);
  for (let y = 0; y < alone; y += 1) starts[y] = y;
  for (let y = 0; y <= height; y += 1) starts[alone + y] = alone + (height ? startOf(y, rest, height) : 0);
  return starts;
}

/** The step at which each row first was not finite; Infinity if it always was finite. @param {Columns} columns */
export function onsets(columns) {
  const first = new Float64Array(columns.rows).fill(Infinity);
  for (let place = columns.length - 1; place >= 0; place -= 1) {
    if (!columns.nonfinite(place)) continue;
    const bits = columns.bits(place);
    for (let row = 0; row < bits.length; row += 1)
      if (badness(bits[row]) >= INFINITE) first[row] = columns.first(place);
  }
  return first;
}

/** How bad each row's newest value is, and how much it changed over the window.
 * @param {Columns} columns @param {Sort} sort */
function keysOf(columns, sort) {
  const keys = new Float64Array(columns.rows).fill(-Infinity);
  if (!columns.length) return keys;
  const [begin, newest] = [columns.column(0), columns.column(columns.length - 1)];
  const bits = columns.bits(columns.length - 1);
  for (let row = 0; row < keys.length; row += 1) {
    const bad = badness(bits[row]);
    if (bad < 0) continue;
    if (bad >= INFINITE) keys[row] = Infinity;
    else keys[row] = sort === "value" ? Math.abs(newest[row]) : changeOf(Math.abs(begin[row]), Math.abs(newest[row]));
  }
  return keys;
}

/** @param {number} before @param {number} after */
function changeOf(before, after) {
  if (!Number.isFinite(before)) return -Infinity;
  if (before === after) return 0;
  return Math.abs(Math.log(Math.max(after, 1e-38) / Math.max(before, 1e-38)));
}

/** Rows in the order that is asked for: those of the model's order that stay equal keep it. @param {number[]} shown
 * rows, in the model's order @param {Sort} sort @param {Columns | null} columns @returns {Int32Array} */
export function sorted(shown, sort, columns) {
  if (sort === "model" || columns === null) return Int32Array.from(shown);
  if (sort === "bad") {
    const at = onsets(columns);
    return Int32Array.from(shown.slice().sort((a, b) => (at[a] === at[b] ? 0 : at[a] - at[b])));
  }
  const keys = keysOf(columns, sort);
  return Int32Array.from(shown.slice().sort((a, b) => (keys[a] === keys[b] ? 0 : keys[b] - keys[a])));
}

export const ROW_PX = 16; // of a readable row
const PINNED_GAP = 4;
const AXIS = 22;
const LEGEND = 22;
const GUTTER = 7;
const TOP = 4;

/** @typedef {{x: number, y: number, w: number, h: number}} Box */
/** @typedef {{y: number, h: number, from: number, to: number}} Band pixel rows `from` to `to` of the grid are at y to y
 * + h */

/**
 * @typedef {object} Layout
 * @property {number} width
 * @property {number} height
 * @property {Box} plot the cells
 * @property {Box} gutter
 * @property {Box} bar
 * @property {number} labels how wide labels may be
 * @property {Band[]} bands
 * @property {Int32Array} starts pixel row y holds the rows starts[y] to starts[y + 1] - 1 of `shown`
 * @property {Int32Array} shown rows of the data, from the top
 * @property {number} pinned how many of them are pinned at the top
 * @property {number} content how high all rows together are: for the scroll bar
 */

/** How many rows a picture of this height has room for. @param {number} height @param {number} pinned */
function roomFor(height, pinned) {
  const rest = height - TOP - AXIS - LEGEND - (pinned ? pinned * ROW_PX + PINNED_GAP : 0);
  return Math.max(1, Math.floor(rest / ROW_PX));
}

/** @param {number} width @param {number} height @param {Int32Array} order all rows, the pinned ones first @param
 * {number} pinned @param {Fit} fit @param {number} scrolled the first row after the pinned ones, if the rows are tall
 * enough to read @param {number} wanted how wide the names would like to be @param {number} [density] device pixels of
 * a CSS pixel, where they are fewer than one @returns {Layout} */
export function layOut(width, height, order, pinned, fit, scrolled, wanted, density = 1) {
  const labels = Math.round(Math.min(230, wanted, Math.max(64, width * 0.22)));
  const bar = width < 560 ? 64 : 74;
  const x = labels + GUTTER + 6;
  const plot = { x, y: TOP, w: Math.max(20, width - x - bar), h: Math.max(20, height - TOP - AXIS - LEGEND) };
  const top = pinned ? pinned * ROW_PX + PINNED_GAP : 0;
  const room = roomFor(height, pinned);
  const rest = order.length - pinned;
  const read = fit === "read" && rest > 0;
  const begin = read ? Math.min(Math.max(0, scrolled), Math.max(0, rest - room)) : 0;
  const shown =
    read && rest > room
      ? Int32Array.from([...order.subarray(0, pinned), ...order.subarray(pinned + begin, pinned + begin + room)])
      : order;
  const starts = startsOf(shown.length, Math.floor((plot.h - top) * density), pinned);
  /** @type {Band[]} */
  const bands = [];
  if (pinned) bands.push({ y: plot.y, h: pinned * ROW_PX, from: 0, to: pinned });
  const pixels = starts.length - 1 - pinned;
  if (pixels > 0)
    bands.push({
      y: plot.y + top,
      h: read ? Math.min(plot.h - top, pixels * ROW_PX) : plot.h - top,
      from: pinned,
      to: pinned + pixels,
    });
  const content = read && rest > room ? plot.h + (rest - room) * ROW_PX : plot.h;
  return {
    width,
    height,
    plot,
    labels,
    bands,
    starts,
    shown,
    pinned,
    content,
    gutter: { x: labels + 4, y: plot.y, w: GUTTER, h: plot.h },
    bar: { x: plot.x + plot.w + 10, y: plot.y, w: 10, h: plot.h },
  };
}

/** The middle of a row of `shown`. @param {Layout} layout @param {number} place @returns {{y: number, h: number}} */
export function boxOf(layout, place) {
  const pixel = countOf(layout.starts.length - 1, (row) => layout.starts[row] <= place) - 1;
  const band = layout.bands.find(({ from, to }) => pixel >= from && pixel < to);
  if (!band) return { y: layout.plot.y, h: 0 };
  const h = band.h / (band.to - band.from);
  return { y: band.y + (pixel - band.from) * h, h };
}

/** The pixel row at a height; -1 if there is none. @param {Layout} layout @param {number} y */
export function pixelAt(layout, y) {
  const band = layout.bands.find((candidate) => y >= candidate.y && y < candidate.y + candidate.h);
  if (!band) return -1;
  return Math.min(band.to - 1, band.from + Math.floor(((y - band.y) / band.h) * (band.to - band.from)));
}

/** The step at a place. @param {Layout} layout @param {Along} along @param {number} x */
export function stepAt(layout, along, x) {
  return along.stepAt((x - layout.plot.x) / layout.plot.w);
}

/** Where a step is; its middle, if it is a whole one. @param {Layout} layout @param {Along} along
 * @param {number} step */
export function xOf(layout, along, step) {
  return layout.plot.x + along.share(step) * layout.plot.w;
}
