// @ts-check
/** What stands around the picture of histograms: ticks, steps, and the step that is pointed at. */
import { number } from "../format.js";
import { ticks } from "../scale.js";
import { colors } from "../theme.js";
import { STRIP } from "./paint.js";

export const LEFT = 52;
export const BOTTOM = 16;
const LETTERS = 11;

/** @typedef {{width: number, height: number, ratio: number}} Size in CSS pixels, and device pixels for each */

/** Where a value stands, in CSS pixels from the top.
 * @param {import("../scale.js").Scale} axis @param {number} value @param {Size} size */
export function topOf(axis, value, { height, ratio }) {
  return STRIP / ratio + (1 - axis.place(value)) * (height - BOTTOM - (2 * STRIP) / ratio);
}

/** Draws the values on the left.
 * @param {CanvasRenderingContext2D} pen @param {import("../scale.js").Scale} axis @param {Size} size */
export function drawValues(pen, axis, size) {
  let free = Infinity;
  for (const value of ticks(axis, Math.max(2, Math.floor(size.height / 28)))) {
    const y = topOf(axis, value, size);
    if (free - y < LETTERS) continue;
    free = y;
    pen.fillText(number(value, { digits: 1 }), LEFT - 7, Math.max(6, Math.min(size.height - BOTTOM - 5, y)));
    pen.fillRect(LEFT - 4, Math.round(y), 3, 1);
  }
}

/** @param {CanvasRenderingContext2D} pen @param {number} step @param {[number, number]} span @param {Size} size */
export function drawCursor(pen, step, span, { width, height }) {
  if (step < span[0] || step > span[1]) return;
  const x = Math.floor(LEFT + ((step - span[0] + 0.5) / (span[1] - span[0] + 1)) * (width - LEFT));
  // Two lines: one of them is seen on every color.
  pen.fillStyle = colors().ink;
  pen.fillRect(x, 0, 1, height - BOTTOM);
  pen.fillStyle = colors().paper;
  pen.fillRect(x + 1, 0, 1, height - BOTTOM);
}
