// @ts-check
/** The upright axis of a chart: a scale with air around its values, and what its ticks say. Pure. */
import { number } from "../format.js";
import { Scale, ticks } from "../scale.js";

/** @typedef {import("../scale.js").Kind} ScaleName */

const AIR = 0.06; // above and below the values
/** @type {{digits: number, style: "auto"}} */
const FORM = { digits: 4, style: "auto" };
const MAX_DECADES = 12; // of a log axis: smaller values are drawn at its foot

export class Axis {
  /** @param {ScaleName} wanted @param {number} low the smallest value @param {number} high the largest
   * @param {number} [least] the smallest above zero */
  constructor(wanted, low, high, least = low) {
    /** The scale in use: there is no log of negative values. @type {ScaleName} */
    this.kind = wanted === "log" && (low < 0 || !(high > 0)) ? (low < 0 ? "symlog" : "linear") : wanted;
    if (!(low <= high)) [low, high] = [0, 1];
    if (this.kind === "log") low = Math.max(least > 0 ? least : high, high / 10 ** MAX_DECADES);
    this.scale = new Scale(this.kind, low, high);
    const ends = [this.scale.bend(low), this.scale.bend(high)];
    const air = (ends[1] - ends[0]) * AIR || (this.kind === "linear" ? Math.abs(ends[0]) * AIR || 1 : 0.5);
    /** Where it begins and ends, as `place` counts. @type {[number, number]} */
    this.range = [ends[0] - air, ends[1] + air];
    this.#ends = this.range;
  }

  /** @type {[number, number]} */
  #ends;

  /** Shows only a part. @param {[number, number]} values its ends */
  zoom([low, high]) {
    const ends = [this.scale.bend(low), this.scale.bend(high)];
    if (ends[1] > ends[0]) this.range = /** @type {[number, number]} */ (ends);
  }

  /** The position of a value; a value without one (zero on a log axis) is at the foot. @param {number} value */
  place(value) {
    return Math.min(this.#ends[1], Math.max(this.#ends[0], this.scale.bend(value)));
  }

  /** The values at two places. @param {[number, number]} places @returns {[number, number]} */
  values([low, high]) {
    return [this.scale.unbend(low), this.scale.unbend(high)];
  }

  /** The values of another part: so many times as much of the axis, moved by a share of it. Null if that is all.
   * @param {number} times @param {number} [by] @returns {[number, number] | null} */
  part(times, by = 0) {
    const [low, high] = this.range;
    const moved = (low + high) / 2 + by * (high - low);
    const middle = Math.min(this.#ends[1], Math.max(this.#ends[0], moved));
    const half = ((high - low) / 2) * times;
    const slack = (this.#ends[1] - this.#ends[0]) * 1e-9; // what was bent to and fro is rounded
    const isAll = times > 1 && middle - half <= this.#ends[0] + slack && middle + half >= this.#ends[1] - slack;
    return isAll ? null : this.values([middle - half, middle + half]);
  }

  /** The ticks: values, not exponents. @param {number} [many] @returns {{at: number, text: string}[]} */
  ticks(many = 5) {
    const [low, high] = this.values(this.range);
    return ticks(new Scale(this.kind, low, high), many).map((value) => ({
      at: this.scale.bend(value),
      text: number(value, FORM),
    }));
  }
}

/** The axis for these values. @param {ScaleName} kind @param {Iterable<ArrayLike<number>>} many */
export function axisOf(kind, many) {
  let low = Infinity;
  let high = -Infinity;
  let least = Infinity;
  for (const values of many) {
    for (let i = 0; i < values.length; i += 1) {
      const value = values[i];
      if (!Number.isFinite(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
      if (value > 0 && value < least) least = value;
    }
  }
  return new Axis(kind, low, high, least);
}
