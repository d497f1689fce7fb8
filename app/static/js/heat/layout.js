// @ts-check
/** The layout of a heatmap in CSS pixels, and the element at a point. Pure. */
import { countOf } from "../search.js";
import { startsOf } from "./rows.js";

export const ROW_PX = 16; // of a readable row
const PINNED_GAP = 4;
const AXIS = 22;
const LEGEND = 22;
const GUTTER = 7;
const TOP = 4;

/** @typedef {{x: number, y: number, w: number, h: number}} Box */
/**
 * @typedef {{y: number, h: number, from: number, to: number}} Band pixel rows `from` to `to` of the grid are at y to y
 * + h
 */
/** @typedef {"fit" | "read"} Fit */

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

/** @param {number} width @param {number} height @param {Int32Array} order all rows, the pinned ones first
 * @param {number} pinned @param {Fit} fit
 * @param {number} scrolled the first row after the pinned ones, if the rows are tall enough to read
 * @param {number} wanted how wide the names would like to be
 * @param {number} [density] device pixels of a CSS pixel, where they are fewer than one @returns {Layout} */
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
  const band = layout.bands.find((each) => y >= each.y && y < each.y + each.h);
  if (!band) return -1;
  return Math.min(band.to - 1, band.from + Math.floor(((y - band.y) / band.h) * (band.to - band.from)));
}

/** The step at a place. @param {Layout} layout @param {[number, number]} span @param {number} x */
export function stepAt(layout, span, x) {
  const share = (x - layout.plot.x) / layout.plot.w;
  return Math.min(span[1], Math.max(span[0], Math.floor(span[0] + share * (span[1] - span[0] + 1))));
}

/** Where a step begins. @param {Layout} layout @param {[number, number]} span @param {number} step */
export function xOf(layout, span, step) {
  return layout.plot.x + ((step - span[0]) / (span[1] - span[0] + 1)) * layout.plot.w;
}
