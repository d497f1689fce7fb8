// @ts-check
/** Which rows and columns of a matrix are looked at. Pure. */

const MIN_LENGTH = 4;

/** @typedef {{rows: [number, number], columns: [number, number]}} Part */

/** Half of it, twice of it, or the whole (null).
 * @param {number[]} shape rows and columns @param {Part | null} part @param {string} how in, out, whole
 * @param {{row: number, column: number} | null} [cell] to zoom at; else the middle
 * @param {[number, number]} [factors] values of a cell @returns {Part | null} */
export function zoomed(shape, part, how, cell = null, factors = [1, 1]) {
  if (how === "whole") return null;
  const before = part ?? { rows: [0, shape[0]], columns: [0, shape[1]] };
  const change = (
    /** @type {[number, number]} */ [from, to],
    /** @type {number} */ size,
    /** @type {number | null} */ at,
  ) => {
    const length = Math.min(
      size,
      Math.max(Math.min(MIN_LENGTH, size), Math.round((to - from) * (how === "in" ? 0.5 : 2))),
    );
    const center = at ?? (from + to) / 2;
    const start = Math.max(0, Math.min(size - length, Math.round(center - length / 2)));
    return /** @type {[number, number]} */ ([start, start + length]);
  };
  const rows = change(before.rows, shape[0], cell && before.rows[0] + (cell.row + 0.5) * factors[0]);
  const columns = change(before.columns, shape[1], cell && before.columns[0] + (cell.column + 0.5) * factors[1]);
  return rows[1] - rows[0] === shape[0] && columns[1] - columns[0] === shape[1] ? null : { rows, columns };
}
