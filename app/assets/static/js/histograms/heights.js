// @ts-check
/** One step's histogram as a line: for each place of the axis how much lies there. Pure. */
import { rowsOf, SHARES } from "./paint.js";

const FLOOR = SHARES[0] / 10;

/** Heights of 0 to 1 by the logarithm of the share, from low values to high ones.
 * @param {import("./shape.js").Shape} shape @param {import("./shape.js").SignedLog} axis @param {number} column
 * @param {number} width @returns {Float32Array} */
export function heightsOf(shape, axis, column, width) {
  const { from, to, band, about } = rowsOf(shape, axis, width);
  const start = column * shape.bins;
  const total = shape.totals[column] || 1;
  const shares = new Float32Array(width);
  let sum = 0;
  for (let bin = about[0]; bin < about[1]; bin += 1) sum += shape.counts[start + bin];
  for (let row = 0; row < width; row += 1) {
    let most = row >= band[0] && row < band[1] ? sum : 0;
    for (let bin = Math.max(0, from[row]); bin < to[row]; bin += 1) most = Math.max(most, shape.counts[start + bin]);
    shares[width - 1 - row] = most / total;
  }
  return shares.map((share) => heightOf(share));
}

/** @param {number} share */
export function heightOf(share) {
  return share <= FLOOR ? 0 : Math.min(1, Math.log10(share / FLOOR) / Math.log10(1 / FLOOR));
}

/** The columns of a ridge plot: at most a given number, evenly spaced, always with the newest, and with the one that is
 * read out, which takes the place of its neighbor.
 * @param {number} columns @param {number} most @param {number} [read] -1 for none @returns {number[]} */
export function picked(columns, most, read = -1) {
  const many = Math.min(columns, most);
  const found = Array.from({ length: many }, (_, place) =>
    many === 1 ? columns - 1 : Math.round((place * (columns - 1)) / (many - 1)),
  );
  if (read < 0 || found.includes(read)) return found;
  const place = Math.min(many - 2, Math.round((read * (many - 1)) / (columns - 1)));
  found[Math.max(0, place)] = read;
  return found;
}
