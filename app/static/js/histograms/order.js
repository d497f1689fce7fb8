// @ts-check
/** In which order the tiles of a wall stand. Pure. */

/**
 * @typedef {object} Layer
 * @property {number} tap
 * @property {string} module
 * @property {string} label the tap without its module
 * @property {string} type
 * @property {number} place in the model
 * @property {number} zero share of zeros, in the newest step; NaN if unknown
 * @property {number} spread standard deviation
 * @property {number} drift how far the size went in the window: the logarithm of last to first, its magnitude
 * @property {number} bad how many values are not finite
 */

/** The largest first; NaN is the worst of all, but only if something is known.
 * @type {Record<string, (layer: Layer) => number>} */
const KEYS = {
  zero: (layer) => layer.zero,
  spread: (layer) => layer.spread,
  drift: (layer) => layer.drift,
  bad: (layer) => layer.bad,
};

/** @param {Layer[]} layers @param {string} sort @returns {Layer[]} */
export function ordered(layers, sort) {
  const key = KEYS[sort];
  const inModel = [...layers].sort((a, b) => a.place - b.place || a.tap - b.tap);
  if (!key) return inModel;
  const rank = (/** @type {Layer} */ layer) => (Number.isNaN(key(layer)) ? -Infinity : key(layer));
  return inModel.sort((a, b) => (rank(b) === rank(a) ? 0 : rank(b) - rank(a)));
}

/** How far the size of each row went: the largest change of scale against its first column that was seen.
 * @param {(number | null)[][]} rows worst values by row and column @param {number[][]} states 0 empty, 1 finite
 * @returns {number[]} */
export function driftOf(rows, states) {
  return rows.map((row, place) => {
    const sizes = row
      .map((value, column) => (states[place][column] === 1 ? Math.abs(Number(value)) : 0))
      .filter((size) => size > 0);
    return sizes.length < 2 ? NaN : Math.max(...sizes.map((size) => Math.abs(Math.log2(size / sizes[0]))));
  });
}
