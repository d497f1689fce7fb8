/** The pixels of histograms over steps: steps to the right, values upwards, and how much of a step lies there as the
 * color. Pure. */
import { colorOf } from "../canvas/colors.js";
import { middleOf, pixelsOf } from "./shape.js";
/** @import { Along } from "../along.js"
 * @import { Palette } from "../canvas/colors.js"
 * @import { Shape } from "./shape.js"
 * @import { Scale } from "../scale.js" */

/** The colors reach from the first share to the second, by the logarithm. */
export const SHARES = /** @type {const} */ ([1e-4, 0.25]);
export const STRIP = 5; // rows at the top and the bottom for non-finite values
const DECADES = Math.log10(SHARES[1] / SHARES[0]);

/** The color of a share among the 256 of a table. @param {number} share */
export function levelOf(share) {
  const level = Math.log10(share / SHARES[0]) / DECADES;
  return level <= 0 ? 0 : level >= 1 ? 255 : Math.round(level * 255);
}

/** The bins of each row of pixels: the first, and the one after the last. Bins around zero share the rows of the band.
 * @param {Shape} shape @param {Scale} axis @param {number} rows @returns {{from: Int32Array, to: Int32Array, band:
 * [number, number], about: [number, number]}} `about`: the bins that are summed up in the band */
export function rowsOf(shape, axis, rows) {
  const [from, to] = [new Int32Array(rows).fill(-1), new Int32Array(rows).fill(-1)];
  const row = (/** @type {number} */ value) => (1 - axis.place(value)) * rows;
  let [low, high] = [-axis.linear, axis.linear];
  const about = /** @type {[number, number]} */ ([shape.bins, shape.bins]);
  for (let bin = 0; bin < shape.bins; bin += 1) {
    const middle = middleOf(shape, bin);
    if (Math.abs(middle) <= axis.linear) {
      about[0] = Math.min(about[0], bin);
      about[1] = bin + 1;
      // A bin that is only mostly in the band draws it out to its end: no gap is left.
      [low, high] = [Math.min(low, shape.edges[bin]), Math.max(high, shape.edges[bin + 1])];
      continue;
    }
    if (shape.edges[bin + 1] <= axis.low || shape.edges[bin] >= axis.high) continue; // beyond the axis
    const top = Math.max(0, Math.min(rows - 1, Math.round(row(shape.edges[bin + 1]))));
    const bottom = Math.max(top + 1, Math.min(rows, Math.round(row(shape.edges[bin]))));
    for (let y = top; y < bottom; y += 1) {
      if (from[y] < 0 || bin < from[y]) from[y] = bin;
      to[y] = Math.max(to[y], bin + 1);
    }
  }
  const top = Math.floor(row(high));
  const isSeen = low < axis.high && high > axis.low;
  return { from, to, band: isSeen ? [top, Math.max(top + 1, Math.ceil(row(low)))] : [0, 0], about };
}

/** Fills pixels; where a row holds several bins the fullest one wins, and a column that is not finite is marked at the
 * edges. @param {Uint32Array} pixels @param {number} width @param {number} height @param {Shape} shape @param {Scale}
 * axis @param {Along} along where steps stand @param {Palette} palette @param {number} empty the color of
 * empty cells */
export function paint(pixels, width, height, shape, axis, along, palette, empty) {
  const inner = height - 2 * STRIP;
  const rows = rowsOf(shape, axis, inner);
  pixels.fill(0); // nothing is painted where nothing was captured
  for (let column = 0; column < shape.columns; column += 1) {
    const [left, right] = pixelsOf(shape, column, width, along);
    if (right <= 0 || left >= width) continue;
    const colors = columnOf(shape, column, rows, inner, palette, empty);
    for (let y = 0; y < inner; y += 1) pixels.fill(colors[y], (y + STRIP) * width + left, (y + STRIP) * width + right);
  }
  strips(pixels, width, height, shape, along, palette, empty);
}

/** @param {Shape} shape @param {number} column @param {ReturnType<typeof rowsOf>} rows @param {number} inner
 * @param {Palette} palette @param {number} empty */
function columnOf(shape, column, { from, to, band, about }, inner, palette, empty) {
  const colors = new Uint32Array(inner).fill(empty);
  const start = column * shape.bins;
  const total = shape.totals[column] || 1;
  for (let y = 0; y < inner; y += 1) {
    let most = 0;
    for (let bin = Math.max(0, from[y]); bin < to[y]; bin += 1) most = Math.max(most, shape.counts[start + bin]);
    if (most) colors[y] = palette.table[levelOf(most / total)];
  }
  if (shape.nan[column] === shape.totals[column] && shape.nan[column])
    return colors.map((_, y) => (y % 4 ? palette.nan : palette.nanHatch)); // nothing but NaN
  let sum = 0;
  for (let bin = about[0]; bin < about[1]; bin += 1) sum += shape.counts[start + bin];
  if (sum) colors.fill(palette.table[levelOf(sum / total)], band[0], band[1]);
  return colors;
}

/** NaN and +Infinity above, -Infinity below. A mark lasts no less than a pixel, and no later column takes it away.
 * @param {Uint32Array} pixels @param {number} width @param {number} height @param {Shape} shape
 * @param {Along} along @param {Palette} palette @param {number} empty */
function strips(pixels, width, height, shape, along, palette, empty) {
  for (const pass of [0, 1]) {
    for (let column = 0; column < shape.columns; column += 1) {
      const [nan, above, below] = [shape.nan[column] > 0, shape.positive[column] > 0, shape.negative[column] > 0];
      if (pass === 1 && !(nan || above || below)) continue;
      const [left, right] = pixelsOf(shape, column, width, along);
      for (let y = 0; y < STRIP; y += 1) {
        for (let x = left; x < right; x += 1) {
          const hatched = (x + y) % 4 === 0;
          const [top, bottom] = [y * width + x, (height - 1 - y) * width + x];
          if (pass === 0) pixels[top] = pixels[bottom] = empty;
          else {
            if (nan || above) pixels[top] = colorOf(palette, nan ? NaN : Infinity, 0, hatched);
            if (below) pixels[bottom] = colorOf(palette, -Infinity, 0, hatched);
          }
        }
      }
    }
  }
}
