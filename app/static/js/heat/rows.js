// @ts-check
/** The rows of a heatmap: their names, their groups in the model's tree, and in which order they stand. Pure. */

import { badness, INFINITE, startOf } from "../canvas/worst.js";
import { ROOT } from "../vocabulary.js";

/**
 * @typedef {{number: number | null, module: string, kind: string, index: string, call: number, phase: string, label?:
 * string, type?: string, group: number}} Row
 */
/** @typedef {"model" | "value" | "change" | "bad"} Sort */
/** @typedef {{name: string, from: number, to: number}} Group rows of the picture, the last one excluded */

/** A row's name: the label of its tap without the kind. A row that is no tap has only a module.
 * @param {{module: string, kind: string, label?: string}} row */
export function labelOf({ module, kind, label = "" }) {
  const name = module || ROOT;
  return name + label.slice(`${name} ${kind}`.length);
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

/** Neighboring rows of one block; none if each row is a block of its own.
 * @param {readonly {module: string}[]} rows @param {ArrayLike<number>} order @param {number} [shared]
 * @returns {Group[]} */
export function groupsOf(rows, order, shared = 0) {
  /** @type {Group[]} */
  const groups = [];
  for (let place = 0; place < order.length; place += 1) {
    const name = blockOf(rows[order[place]].module, shared);
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

/** The step at which each row first was not finite; Infinity if it always was finite.
 * @param {import("../canvas/columns.js").Columns} columns */
export function onsets(columns) {
  const found = new Float64Array(columns.rows).fill(Infinity);
  for (let place = columns.length - 1; place >= 0; place -= 1) {
    if (!columns.nonfinite(place)) continue;
    const bits = columns.bits(place);
    for (let row = 0; row < bits.length; row += 1)
      if (badness(bits[row]) >= INFINITE) found[row] = columns.first(place);
  }
  return found;
}

/** How bad each row's newest value is, and how much it changed over the window.
 * @param {import("../canvas/columns.js").Columns} columns @param {Sort} sort */
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

/** Rows in the order that is asked for: those of the model's order that stay equal keep it.
 * @param {number[]} shown rows, in the model's order @param {Sort} sort
 * @param {import("../canvas/columns.js").Columns | null} columns @returns {Int32Array} */
export function sorted(shown, sort, columns) {
  if (sort === "model" || columns === null) return Int32Array.from(shown);
  if (sort === "bad") {
    const at = onsets(columns);
    return Int32Array.from(shown.slice().sort((a, b) => (at[a] === at[b] ? 0 : at[a] - at[b])));
  }
  const keys = keysOf(columns, sort);
  return Int32Array.from(shown.slice().sort((a, b) => (keys[a] === keys[b] ? 0 : keys[b] - keys[a])));
}
