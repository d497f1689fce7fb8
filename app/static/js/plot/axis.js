// @ts-check
/**
 * The upright axis of a chart: linear, log, or log on both sides of zero; where a value stands, and what the ticks
 * say. Pure.
 */
import { number } from "../format.js";

/** @typedef {"linear" | "log" | "symlog"} ScaleName */

const DECADES = 4; // on each side of zero, of a symmetric log axis
const AIR = 0.06; // above and below the values
/** @type {{digits: number, style: "auto"}} */
const FORM = { digits: 4, style: "auto" };
const MAX_DECADES = 12; // of a log axis: what is smaller stands at its foot

export class Axis {
  /**
   * @param {ScaleName} wanted
   * @param {number} low the smallest value
   * @param {number} high the largest
   * @param {number} [least] the smallest above zero
   */
  constructor(wanted, low, high, least = low) {
    const nothing = !(low <= high);
    /** The scale in use: there is no log of negative values. @type {ScaleName} */
    this.kind = wanted === "log" && (low < 0 || !(high > 0)) ? (low < 0 ? "symlog" : "linear") : wanted;
    this.low = nothing ? 0 : low;
    this.high = nothing ? 1 : high;
    this.unit = Math.max(Math.abs(this.low), Math.abs(this.high)) / 10 ** DECADES || 1;
    if (this.kind === "log") this.low = Math.max(least > 0 ? least : this.high, this.high / 10 ** MAX_DECADES);
    const ends = [this.put(this.low), this.put(this.high)];
    const air = (ends[1] - ends[0]) * AIR || (this.kind === "linear" ? Math.abs(ends[0]) * AIR || 1 : 0.5);
    /** Where it begins and ends, as `place` counts. @type {[number, number]} */
    this.range = [ends[0] - air, ends[1] + air];
  }

  /** Where a value stands; what has no place (zero on a log axis) stands at the foot. @param {number} value */
  place(value) {
    if (Number.isNaN(value)) return NaN;
    return Math.min(this.range[1], Math.max(this.range[0], this.put(value)));
  }

  /** @param {number} value */
  put(value) {
    if (this.kind === "linear") return value;
    if (this.kind === "log") return value > 0 ? Math.log10(value) : -Infinity;
    return Math.sign(value) * Math.log10(1 + Math.abs(value) / this.unit);
  }

  /** The ticks: values, not exponents. @param {number} [many] @returns {{at: number, text: string}[]} */
  ticks(many = 5) {
    const values =
      this.kind === "linear"
        ? steady(this.range[0], this.range[1], many)
        : this.kind === "log"
          ? this.#decades(many)
          : this.#bothSides(many);
    return values.map((value) => ({ at: this.put(value), text: number(value, FORM) }));
  }

  /** @param {number} many */
  #decades(many) {
    const [from, to] = this.range;
    const whole = decadesBetween(from, to, many);
    if (whole.length >= 2) return whole;
    const mantissas = to - from > 0.7 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9];
    const fine = [];
    for (let power = Math.floor(from); power <= Math.ceil(to); power += 1) {
      for (const mantissa of mantissas) {
        const value = mantissa * 10 ** power;
        if (Math.log10(value) >= from && Math.log10(value) <= to) fine.push(Number(value.toPrecision(6)));
      }
    }
    return fine.length >= 2 ? fine : steady(10 ** from, 10 ** to, many).filter((value) => value > 0);
  }

  /** @param {number} many */
  #bothSides(many) {
    const power = Math.floor(Math.log10(this.unit * 10 ** DECADES));
    const side = [];
    const every = Math.ceil(DECADES / Math.max(1, Math.floor(many / 2)));
    for (let down = 0; down < DECADES; down += every) side.push(Number(`1e${power - down}`));
    const [from, to] = this.range;
    return [...side.map((value) => -value), 0, ...side.reverse()].filter(
      (value) => this.put(value) >= from && this.put(value) <= to,
    );
  }
}

/**
 * Powers of ten between two exponents, at most about a given number.
 * @param {number} from
 * @param {number} to
 * @param {number} many
 */
function decadesBetween(from, to, many) {
  const first = Math.ceil(from);
  const last = Math.floor(to);
  const every = Math.max(1, Math.ceil((last - first + 1) / (many + 1)));
  const values = [];
  for (let power = Math.ceil(first / every) * every; power <= last; power += every) values.push(Number(`1e${power}`));
  return values;
}

/** Round values at equal distances. @param {number} low @param {number} high @param {number} many */
export function steady(low, high, many) {
  const rough = (high - low) / many;
  if (!(rough > 0) || !Number.isFinite(rough)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= rough) ?? 10 * power;
  const values = [];
  for (let place = Math.ceil(low / step); place * step <= high; place += 1)
    values.push(Number((place * step).toPrecision(12)));
  return values;
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
