// @ts-check
/** The words of a heatmap's tooltip. */
import { count, number } from "../format.js";
import { isLocal } from "../kinds.js";
import { cellValue, mergedAs, shownValue } from "./export.js";
import { labelOf } from "./rows.js";

/** Describes a cell: the layer, the step, the value.
 * @param {import("./index.js").Heat} heat @param {import("./pointing.js").Point} point */
export function wordsOf(heat, point) {
  const { columns, rows } = heat;
  const row = rows[point.row];
  const i = columns?.find(point.step) ?? -1;
  const value = columns ? cellValue(columns, i, point.row) : null;
  const shown = shownValue(heat, value);
  const words = typeof shown === "number" ? number(shown) : shown;
  const said =
    words === null
      ? "not captured"
      : [heat.options.stat ?? "", words, isLocal(heat.options.kind ?? "") ? "(local)" : ""].join(" ").trim();
  const isMerged = columns && i >= 0 && columns.first(i) !== columns.last(i);
  const merged = isMerged && Number.isFinite(value) ? `, the ${mergedAs(heat)} of these steps` : "";
  const step = columns && i >= 0 ? stepsOf(columns, i, point.step) : `step ${count(point.step)}`;
  const many =
    point.sharing > 1
      ? `\nthe worst of ${point.sharing} ${heat.noun}s here`
      : row.group > 1
        ? `\nthe worst of the next ${row.group} ${heat.noun}s`
        : "";
  return `${labelOf(row)}${row.type ? ` (${row.type})` : ""}\n${step} \u00b7 ${said}${merged}${many}`;
}

/** @param {import("../canvas/columns.js").Columns} columns @param {number} i @param {number} step */
function stepsOf(columns, i, step) {
  const [first, last] = [columns.first(i), columns.last(i)];
  const steps = first === last ? `step ${count(first)}` : `steps ${count(first)} to ${count(last)}`;
  const within = step <= last && (last > first || first === step);
  return within ? steps : `step ${count(step)}: not captured; nearest earlier value, from ${steps}`;
}
