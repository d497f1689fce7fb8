// @ts-check
/** A heatmap as a picture with its title, as SVG, and as a table. */

import { titledPng, titledSvg } from "../canvas/titled.js";
import { MISSING } from "../canvas/worst.js";
import { count } from "../format.js";
import { svgOf as svgOfMarks } from "./pen.js";
import { marksOf } from "./picture.js";
import { labelOf, onsets } from "./rows.js";

/** @typedef {import("./index.js").Heat} Heat */

/** @param {Heat} heat */
function titleOf(heat) {
  return [heat.options.title, heat.page.runName].filter(Boolean).join(" \u00b7 ");
}

/** @param {Heat} heat @returns {Promise<Blob>} */
export async function pngOf(heat) {
  const picture = heat.screen.copy();
  const width = Math.max(1, heat.screen.plot.clientWidth);
  const ratio = picture.width / width;
  return titledPng(titleOf(heat), width, picture.height / ratio, ratio, (pen, top) => {
    pen.setTransform(1, 0, 0, 1, 0, top); // pixel by pixel: scaling could lose a row
    pen.drawImage(picture, 0, 0);
  });
}

/** Names, axes, and legend as text; the cells as an embedded picture. @param {Heat} heat */
export function svgOf(heat) {
  const { scene } = heat.screen;
  if (scene === null) throw new Error("the chart is still empty");
  const { width, height, plot } = scene.layout;
  const copy = heat.screen.copy();
  const ratio = copy.width / width;
  const cells = document.createElement("canvas");
  Object.assign(cells, { width: Math.round(plot.w * ratio), height: Math.round(plot.h * ratio) });
  cells.getContext("2d")?.drawImage(copy, -Math.round(plot.x * ratio), -Math.round(plot.y * ratio));
  const image =
    `<image x="${plot.x}" y="${plot.y}" width="${plot.w}" height="${plot.h}" preserveAspectRatio="none" ` +
    `style="image-rendering:pixelated" href="${cells.toDataURL("image/png")}"/>`;
  return titledSvg(titleOf(heat), width, height, image, svgOfMarks(marksOf(scene)));
}

/** Returns the rows from the bottom up, because tables show their end first.
 * @param {Heat} heat @returns {{columns: string[], rows: any[][]}} */
export function tableOf(heat) {
  const { columns, rows, order, span } = heat;
  const named = (/** @type {string} */ value) => [
    heat.noun,
    "type",
    value,
    "smallest",
    "largest",
    "non-finite since step",
  ];
  if (columns === null || !columns.length || span === null) return { columns: named("value"), rows: [] };
  const { held, step } = heat.page.follow;
  const at = held === null ? columns.find(step ?? span[1]) : columns.at(held);
  const names = named(headingOf(heat, columns, at));
  const since = onsets(columns);
  const found = Array.from(order, (row) => {
    const [low, high] = extremes(columns, row);
    return [
      labelOf(rows[row]),
      rows[row].type ?? "",
      shownValue(heat, cellValue(columns, at, row)),
      low,
      high,
      Number.isFinite(since[row]) ? since[row] : null,
    ];
  });
  return { columns: names, rows: found.reverse() };
}

/** What the values of a column are. @param {Heat} heat @param {import("../canvas/columns.js").Columns} columns
 * @param {number} i -1 is none */
function headingOf(heat, columns, i) {
  if (i < 0 || columns.first(i) === columns.last(i)) return "value";
  return `${mergedAs(heat)} in steps ${count(columns.first(i))} to ${count(columns.last(i))}`;
}

/** What a value of several steps is. @param {Heat} heat */
export function mergedAs({ options }) {
  return options.merged ?? "largest magnitude";
}

/** The value of a cell; null if it was not captured.
 * @param {import("../canvas/columns.js").Columns} columns @param {number} i -1 is none @param {number} row */
export function cellValue(columns, i, row) {
  return i < 0 || columns.bits(i)[row] === MISSING ? null : columns.value(i, row);
}

/** A value, or words for it if it is unknown whether it is NaN or an infinity.
 * @param {Heat} heat @param {number | null} value */
export function shownValue(heat, value) {
  return heat.options.lumped && value !== null && !Number.isFinite(value) ? "NaN or Inf" : value;
}

/** @param {import("../canvas/columns.js").Columns} columns @param {number} row
 * @returns {[number | null, number | null]} */
function extremes(columns, row) {
  let [low, high] = [Infinity, -Infinity];
  for (let i = 0; i < columns.length; i += 1) {
    const value = columns.value(i, row);
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return low <= high ? [low, high] : [null, null];
}
