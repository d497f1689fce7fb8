// @ts-check
/** The script's names for the tokens and samples of a tensor: next to a picture, and in words. */

import { colors } from "../theme.js";

const FONT = "11px system-ui, sans-serif";
const LINE = 12; // pixels of a name across
const WIDEST = 110;
const GAP = 4;

/** @typedef {Pick<import("../answers.js").SnapshotNames, "axes" | "tokens" | "shared" | "labels" | "why">} Names */

/** @type {Names} */
export const NONE = { axes: [], tokens: [], shared: false, labels: [], why: "" };

/** Every how many names one has room. Pure. @param {number} size pixels of a cell */
export function strideOf(size) {
  return Math.max(1, Math.ceil(LINE / Math.max(size, 1e-9)));
}

/** The names of a sample's positions. Pure. @param {Names} names @param {number} sample */
function tokensOf(names, sample) {
  return names.tokens[names.shared ? 0 : sample] ?? [];
}

/** What the indices of a cell are called: "cat.png: the \u2192 cat"; a cell that stands for several has no tokens.
 * Pure.
 * @param {Names} names @param {string[]} indices of each dimension */
export function wordsAt(names, indices) {
  const [sample] = indices;
  const tokens = tokensOf(names, Number(sample));
  const words = names.axes.map((axis) => tokens[Number(indices[axis])]);
  const places = words.length && words.every((word) => word !== undefined) ? words.join(" \u2192 ") : "";
  return [names.labels[Number(sample)], places].filter(Boolean).join(": ");
}

/**
 * The names of the rows and the columns of a picture of the last two dimensions, from the first of its part on. Pure.
 * @param {Names} names
 * @param {{dimensions: number, sample: number, cells: [number, number], factors: [number, number],
 *   part: {rows: [number, number], columns: [number, number]} | null}} picture
 * @returns {{rows: string[], columns: string[]} | undefined} undefined without any
 */
export function besides(names, { dimensions, sample, cells, factors, part }) {
  const tokens = tokensOf(names, sample);
  const of = (/** @type {number} */ place) => {
    const axis = dimensions - 2 + place;
    if (!names.axes.includes(axis) || factors[place] > 1) return [];
    const first = (place ? part?.columns : part?.rows)?.[0] ?? 0;
    return tokens.slice(first, first + cells[place]);
  };
  const [rows, columns] = [of(0), of(1)];
  return rows.length || columns.length ? { rows, columns } : undefined;
}

/** How much room names need. @param {CanvasRenderingContext2D} pen
 * @param {{rows: string[], columns: string[]}} names @param {number} width of the whole */
export function edgesOf(pen, { rows, columns }, width) {
  pen.font = FONT;
  const most = (/** @type {string[]} */ texts) =>
    texts.length
      ? GAP + Math.ceil(Math.min(WIDEST, width / 4, Math.max(...texts.map((text) => pen.measureText(text).width))))
      : 0;
  return { left: most(rows), top: most(columns) };
}

/** Draws the names of rows at the left and of columns above, as many as have room.
 * @param {CanvasRenderingContext2D} pen @param {{rows: string[], columns: string[]}} names
 * @param {{left: number, top: number}} edges @param {{tileWidth: number, tileHeight: number}} layout
 * @param {[number, number]} cells */
export function drawNames(pen, { rows, columns }, { left, top }, layout, cells) {
  pen.save();
  pen.font = FONT;
  pen.fillStyle = colors().quiet;
  pen.textBaseline = "middle";
  const [high, wide] = [layout.tileHeight / cells[0], layout.tileWidth / cells[1]];
  pen.textAlign = "right";
  for (let row = 0; row < rows.length; row += strideOf(high))
    pen.fillText(shortened(pen, rows[row], left - GAP), left - GAP, top + (row + 0.5) * high);
  pen.textAlign = "left";
  for (let column = 0; column < columns.length; column += strideOf(wide)) {
    pen.save();
    pen.translate(left + (column + 0.5) * wide, top - GAP);
    pen.rotate(-Math.PI / 2);
    pen.fillText(shortened(pen, columns[column], top - GAP), 0, 0);
    pen.restore();
  }
  pen.restore();
}

/** @param {CanvasRenderingContext2D} pen @param {string} text @param {number} room */
function shortened(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let [fits, over] = [1, Math.min(text.length, 200)];
  while (over - fits > 1) {
    const end = (fits + over) >> 1;
    if (pen.measureText(`${text.slice(0, end)}\u2026`).width > room) over = end;
    else fits = end;
  }
  return `${text.slice(0, fits)}\u2026`;
}
