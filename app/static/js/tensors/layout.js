// @ts-check
/** Where the tiles of a picture stand, and the colors of their values. Pure. */
import { colorOf } from "../canvas/colors.js";

/**
 * @typedef {{across: number, tileWidth: number, tileHeight: number, gap: number, width: number, height: number}}
 * Layout
 */

const MIN_TILE = 48; // pixels of a small tile, in which patterns can still be read
const GAP = 8;

/** Tiles in rows: as large as they can be, so that all fit into the height where that leaves them readable.
 * @param {number} width @param {number} most the height that is wanted @param {number} tiles @param {number} rows
 * @param {number} columns @returns {Layout} */
export function layoutOf(width, most, tiles, rows, columns) {
  const aspect = Math.min(8, Math.max(1 / 8, rows / Math.max(1, columns)));
  const gap = tiles > 1 ? GAP : 0;
  let chosen = null;
  for (let across = 1; across <= tiles; across += 1) {
    const tileWidth = Math.floor((width - gap * (across - 1)) / across);
    if (chosen && tileWidth < MIN_TILE) break;
    const fitted = Math.min(tileWidth, Math.floor(most / aspect));
    const tileHeight = Math.max(4, Math.round(fitted * aspect));
    const lines = Math.ceil(tiles / across);
    chosen = {
      across,
      tileWidth: Math.max(4, fitted),
      tileHeight,
      gap,
      width,
      height: lines * tileHeight + (lines - 1) * gap,
    };
    if (chosen.height <= most) break;
  }
  return /** @type {Layout} */ (chosen ?? { across: 1, tileWidth: width, tileHeight: 4, gap, width, height: 4 });
}

/** Where a tile begins. @param {Layout} layout @param {number} tile @returns {[number, number]} */
export function cornerOf({ across, tileWidth, tileHeight, gap }, tile) {
  return [(tile % across) * (tileWidth + gap), Math.floor(tile / across) * (tileHeight + gap)];
}

/** The cell at a point; null between tiles.
 * @param {Layout} layout @param {number} x @param {number} y
 * @param {[number, number, number]} shape tiles, rows, columns */
export function cellAt(layout, x, y, [tiles, rows, columns]) {
  const [at, line] = [
    Math.floor(x / (layout.tileWidth + layout.gap)),
    Math.floor(y / (layout.tileHeight + layout.gap)),
  ];
  const tile = line * layout.across + at;
  if (x < 0 || y < 0 || at >= layout.across || tile >= tiles) return null;
  const [left, top] = cornerOf(layout, tile);
  const [column, row] = [
    Math.floor(((x - left) / layout.tileWidth) * columns),
    Math.floor(((y - top) / layout.tileHeight) * rows),
  ];
  return row < rows && column < columns ? { tile, row, column } : null;
}

const CLIPPED = 0.005; // of the values, at each end: one outlier must not make all others one color

/** The range of colors. Signed values get one that is as far below zero as above.
 * @param {ArrayLike<number>} values @param {boolean} [whole] to the very ends @returns {{low: number, high: number,
 * signed: boolean, clipped: [boolean, boolean]}} `clipped`: whether values lie beyond its ends */
export function rangeOf(values, whole = false) {
  const stride = Math.max(1, Math.floor(values.length / 50000));
  const found = [];
  let [least, most] = [Infinity, -Infinity];
  for (let place = 0; place < values.length; place += 1) {
    const value = values[place];
    if (!Number.isFinite(value)) continue;
    least = Math.min(least, value);
    most = Math.max(most, value);
    if (place % stride === 0) found.push(value);
  }
  if (least > most) return { low: 0, high: 1, signed: false, clipped: [false, false] };
  const signed = least < 0;
  const sorted = Float64Array.from(found.length ? found : [least, most], (value) =>
    signed ? Math.abs(value) : value,
  ).sort();
  const at = (/** @type {number} */ share) => sorted[Math.round(share * (sorted.length - 1))];
  const edge = Math.max(-least, most);
  if (signed) {
    const high = whole ? edge : at(1 - 2 * CLIPPED) || edge;
    return { low: -high, high, signed, clipped: [-high > least, high < most] };
  }
  const [low, high] = whole ? [least, most] : [at(CLIPPED), at(1 - CLIPPED)];
  if (high > low) return { low, high, signed, clipped: [low > least, high < most] };
  return most > least
    ? { low: least, high: most, signed, clipped: [false, false] }
    : { low: Math.min(0, least), high: most || 1, signed, clipped: [false, false] };
}

/** Whether all above the diagonal of every tile is zero, and not all else: a mask that lets no position see later ones.
 * @param {ArrayLike<number>} values @param {[number, number, number]} shape */
export function isCausal(values, [tiles, rows, columns]) {
  if (rows !== columns || rows < 3) return false;
  let below = false;
  for (let place = 0; place < tiles * rows * columns; place += 1) {
    const [row, column] = [Math.floor(place / columns) % rows, place % columns];
    if (column > row && values[place] !== 0) return false;
    below ||= column < row && values[place] !== 0;
  }
  return below;
}

/** The pixels of one tile, a pixel for each cell.
 * @param {ArrayLike<number>} values @param {number} start @param {number} rows @param {number} columns
 * @param {{low: number, high: number}} range
 * @param {import("../canvas/colors.js").Palette} palette @param {boolean} causal @returns {Uint32Array} */
export function pixelsOf(values, start, rows, columns, range, palette, causal) {
  const scale = 255 / (range.high - range.low || 1);
  return Uint32Array.from({ length: rows * columns }, (_, place) => {
    const [row, column] = [Math.floor(place / columns), place % columns];
    if (causal && column > row) return palette.missing;
    const value = values[start + place];
    const level = Math.max(0, Math.min(255, Math.round((value - range.low) * scale)));
    return colorOf(palette, value, level, (row + column) % 4 === 0);
  });
}
