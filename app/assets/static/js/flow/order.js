// @ts-check
/** The layers from input to output, each with its activation and its gradient, in one order. Pure. */
import { labelOf } from "../heat/rows.js";

/** @typedef {import("../heat/rows.js").Row} Row */
/**
 * @typedef {{label: string, module: string, type: string, rows: [number, number]}} Layer rows of activations and of
 * gradients; -1: none
 */

/** Activations come in the order of their calls. A gradient without an activation follows the layer that is before it
 * among the gradients.
 * @param {readonly Row[]} outputs @param {readonly Row[]} gradients @returns {Layer[]} */
export function merged(outputs, gradients) {
  /** @type {Map<string, Layer>} */
  const known = new Map(outputs.map((row, place) => [labelOf(row), layerOf(row, [place, -1])]));
  /** @type {Map<string, Layer[]>} */
  const behind = new Map();
  let before = "";
  for (const [place, row] of gradients.entries()) {
    const label = labelOf(row);
    const layer = known.get(label);
    if (layer) {
      layer.rows[1] = place;
      before = label;
    } else behind.set(before, [...(behind.get(before) ?? []), layerOf(row, [-1, place])]);
  }
  return [
    ...(behind.get("") ?? []),
    ...[...known.values()].flatMap((layer) => [layer, ...(behind.get(layer.label) ?? [])]),
  ];
}

/** @param {Row} row @param {[number, number]} rows @returns {Layer} */
function layerOf(row, rows) {
  return { label: labelOf(row), module: row.module, type: row.type ?? "", rows };
}
