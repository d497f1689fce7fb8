// @ts-check
/** What each box is worth at a step: the values of its tensors, and of boxes without any, those inside. Pure. */

import { badness, isBad, MISSING, worse } from "../canvas/worst.js";
import { ofParameters } from "../kinds.js";

export const NONE = 0; // nothing of this kind was captured
export const OWN = 1;
export const INSIDE = 2; // it has none itself: the worst of its parts

/** @typedef {import("./tree.js").Tree} Tree */
/** @typedef {{module: string, kind: string, index: string, call: number, phase: string}} Row */

export class BoxValues {
  /** The worst value of each box, as the bits of a float32. */
  bits;
  /** The worst value that isn't finite in each box or its parts; 0 if all are. */
  bad;
  /** How the value is known: NONE, OWN, INSIDE. */
  known;

  /** @param {Tree} tree @param {readonly Row[]} rows of the columns */
  constructor(tree, rows) {
    this.tree = tree;
    const many = tree.boxes.length;
    this.bits = new Uint32Array(many).fill(MISSING);
    this.bad = new Uint32Array(many);
    this.known = new Uint8Array(many);
    /** The rows of each box. @type {number[][]} */
    this.rows = tree.boxes.map(() => []);
    for (const [row, { module, kind, call, phase }] of rows.entries()) {
      for (const number of tree.byModule.get(module) ?? []) {
        const box = tree.boxes[number];
        if (box.kind === "module" || ofParameters(kind) || (box.call === call && box.phase === phase)) {
          this.rows[number].push(row);
          this.known[number] = OWN;
        }
      }
    }
    for (const number of tree.fromInside)
      if (!this.known[number] && tree.boxes[number].parts.some((part) => this.known[part])) this.known[number] = INSIDE;
  }

  /** Takes the values of a column; null: nothing was captured. @param {Uint32Array | null} column */
  take(column) {
    const { bits, bad, tree } = this;
    for (const number of tree.fromInside) {
      let value = MISSING;
      let worst = 0;
      if (column !== null) for (const row of this.rows[number]) value = worse(value, column[row]);
      if (isBad(value)) worst = value;
      for (const part of tree.boxes[number].parts) {
        if (this.known[number] === INSIDE) value = worse(value, bits[part]);
        if (bad[part] && badness(bad[part]) > badness(worst)) worst = bad[part];
      }
      bits[number] = value;
      bad[number] = worst;
    }
  }
}

/** The bits of values as numbers. @param {Uint32Array} bits */
export function numbersIn(bits) {
  return new Float32Array(bits.buffer, bits.byteOffset, bits.length);
}

/** The finite ends of some boxes' values; null if there is none.
 * @param {BoxValues} values @param {readonly number[]} boxes @returns {[number, number] | null} */
export function spreadOf(values, boxes) {
  const numbers = numbersIn(values.bits);
  const found = boxes.map((box) => numbers[box]).filter(Number.isFinite);
  return found.length ? [Math.min(...found), Math.max(...found)] : null;
}
