// @ts-check
/** The picture in words: the tip at the pointer, the table, and the text for screen readers. */

import { isBad, MISSING } from "../canvas/worst.js";
import { bytes, counted, number as format, inUnits } from "../format.js";
import { kindWords } from "../kinds.js";
import { ROOT } from "../vocabulary.js";
import { valueWords } from "./boxes.js";
import { NONE, numbersIn } from "./values.js";

/** @typedef {import("./picture.js").Picture} Picture @typedef {import("../answers.js").ModelBox} Box */

/** 12.3 GFLOP. @param {number} flops */
export function flopsWords(flops) {
  return inUnits(flops, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"]);
}

/** The operations of a box, as far as they are known. @param {Box} box */
export function flopsOf({ flops, flops_unknown: unknown }) {
  if (flops === null) return `unknown: ${unknown}`;
  return unknown ? `at least ${flopsWords(flops)}: ${unknown}` : flopsWords(flops);
}

/** @param {Box["outputs"]} tensors */
export function formsOf(tensors) {
  return tensors
    .map(
      ({ place, dtype, shape }) =>
        `${place ? `${place} ` : ""}${shape.join(" \u00d7 ") || "one value"}${dtype ? ` ${dtype}` : ""}`,
    )
    .join(", ");
}

/** What the colors are of. @param {Picture} picture */
export function quantityOf({ readings }) {
  const { kind, stat } = readings.asked;
  return `${stat} of ${kindWords(kind)}`;
}

/** @param {Picture} picture @param {number} number */
export function tipOf(picture, number) {
  const { structure, readings } = picture;
  const tree = /** @type {import("./tree.js").Tree} */ (structure.tree);
  const box = tree.boxes[number];
  const { values } = readings;
  const name =
    box.kind === "repeat" ? `${tree.titleOf(number)} \u00d7${box.parts.length / box.period}` : box.module || ROOT;
  const value = values ? valueWords(values, tree, number) : "";
  const lines = [
    `${name}${box.call ? ` call ${box.call}` : ""}`,
    tree.typeOf(number),
    value ? `${quantityOf(picture)}: ${value}` : `${quantityOf(picture)}: not captured for this box`,
    ...(values && readings.origins.has(number) ? ["All inputs are finite, so the problem starts here."] : []),
    ...(values?.bad[number] && !isBad(values.bits[number]) ? ["This block contains non-finite values."] : []),
    ...(box.parameters ? [counted(box.parameters, "parameter")] : []),
    ...(box.kind === "call" ? [`output ${formsOf(box.outputs) || "unknown"}`, flopsOf(box)] : []),
    ...(box.memory ? [`${bytes(box.memory)} of activations`] : []),
    ...(box.kind === "repeat" && !structure.open.has(number) ? ["Click to unfold"] : []),
  ];
  return lines.join("\n");
}

/** The boxes that are shown, last ones first, as tables show their end first. @param {Picture} picture */
export function tableOf(picture) {
  const { structure, readings } = picture;
  const columns = ["module", "class", quantityOf(picture), "parameters", "FLOPs", "activation memory", "output"];
  const { tree, open } = structure;
  if (!tree || !readings.values) return { columns, rows: [] };
  const { values } = readings;
  const numbers = numbersIn(values.bits);
  const shown = tree
    .shown(open)
    .filter((number) => tree.boxes[number].kind !== "repeat")
    .reverse();
  const rows = shown.map((number) => {
    const box = tree.boxes[number];
    const known = values.known[number] !== NONE && values.bits[number] !== MISSING;
    const name = `${box.module || ROOT}${box.call ? ` call ${box.call}` : ""}`;
    return [
      name,
      box.type,
      known ? numbers[number] : null,
      box.parameters,
      box.flops,
      box.memory,
      formsOf(box.outputs),
    ];
  });
  return { columns, rows };
}

/** What is read out of a box. @param {Picture} picture @param {number} number */
export function saidOf(picture, number) {
  const { structure, readings } = picture;
  const tree = /** @type {import("./tree.js").Tree} */ (structure.tree);
  const box = tree.boxes[number];
  const fold = box.parts.length
    ? structure.open.has(number)
      ? ", unfolded"
      : `, folded, ${counted(box.parts.length, "part")}`
    : "";
  const value = readings.values ? valueWords(readings.values, tree, number) : "";
  return `${tree.titleOf(number)}, ${tree.typeOf(number)}${value ? `, ${value}` : ""}${fold}`;
}

/** @param {number} value */
export function short(value) {
  return format(value, { digits: 2 });
}
