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

/** Which rows share a pixel row. @param {number} rows @param {number} pixels */
export function startsOf(rows, pixels) {
  const height = Math.max(0, Math.min(rows, pixels));
  return Int32Array.from({ length: height + 1 }, (_, y) => (height ? startOf(y, rows, height) : 0));
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
const AXIS = 22;
const LEGEND = 22;
const GUTTER = 7;
const TOP = 4;

/** @typedef {{x: number, y: number, w: number, h: number}} Box */

/**
 * @typedef {object} Layout
 * @property {number} width
 * @property {number} height
 * @property {Box} plot the cells
 * @property {Box} gutter
 * @property {Box} bar
 * @property {number} labels how wide labels may be
 * @property {{y: number, h: number}} band where all pixel rows are
 * @property {Int32Array} starts pixel row y holds the rows starts[y] to starts[y + 1] - 1 of `shown`
 * @property {Int32Array} shown rows of the data, from the top
 * @property {number} content how high all rows together are: for the scroll bar
 */

/** @param {number} width @param {number} height @param {Int32Array} order all rows @param {Fit} fit @param {number}
 * scrolled the first row, if the rows are tall enough to read @param {number} wanted the width of the longest name
 * @param {number} [density] device pixels of a CSS pixel, where they are fewer than one @returns {Layout} */
export function layOut(width, height, order, fit, scrolled, wanted, density = 1) {
  const labels = Math.round(Math.min(230, wanted, Math.max(64, width * 0.22)));
  const bar = width < 560 ? 64 : 74;
  const x = labels + GUTTER + 6;
  const plot = { x, y: TOP, w: Math.max(20, width - x - bar), h: Math.max(20, height - TOP - AXIS - LEGEND) };
  const room = Math.max(1, Math.floor((height - TOP - AXIS - LEGEND) / ROW_PX));
  const read = fit === "read";
  const more = read ? Math.max(0, order.length - room) : 0;
  const begin = Math.min(Math.max(0, scrolled), more);
  const shown = more ? order.subarray(begin, begin + room) : order;
  const starts = startsOf(shown.length, Math.floor(plot.h * density));
  return {
    width,
    height,
    plot,
    labels,
    band: { y: plot.y, h: read ? Math.min(plot.h, (starts.length - 1) * ROW_PX) : plot.h },
    starts,
    shown,
    content: plot.h + more * ROW_PX,
    gutter: { x: labels + 4, y: plot.y, w: GUTTER, h: plot.h },
    bar: { x: plot.x + plot.w + 10, y: plot.y, w: 10, h: plot.h },
  };
}

/** The middle of a row of `shown`. @param {Layout} layout @param {number} place @returns {{y: number, h: number}} */
export function boxOf({ starts, band }, place) {
  const h = band.h / Math.max(1, starts.length - 1);
  return { y: band.y + (countOf(starts.length - 1, (row) => starts[row] <= place) - 1) * h, h };
}

/** The pixel row at a height; -1 if there is none. @param {Layout} layout @param {number} y */
export function pixelAt({ starts, band }, y) {
  const share = (y - band.y) / band.h;
  return share < 0 || share >= 1 ? -1 : Math.floor(share * (starts.length - 1));
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
