/** From values to a range, to places between 0 and 1, and to ticks. Pure. */

/** @typedef {"log" | "linear" | "symlog"} Kind */

/** How many places fit of those from 0 on, where none fits after one that doesn't: a binary search. Pure.
 * @param {number} many @param {(place: number) => boolean} fits */
export function countOf(many, fits) {
  let [low, high] = [0, many];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (fits(middle)) low = middle + 1;
    else high = middle;
  }
  return low;
}

const MIN_MAGNITUDE = 1e-300;
const DECADES = 4; // of a symlog scale, between its straight part and its end

export class Scale {
  /** A log scale is of the magnitude. @param {Kind} kind @param {number} low @param {number} high
   * @param {number} [linear] a symlog scale is straight between minus and plus this */
  constructor(kind, low, high, linear = Math.max(Math.abs(low), Math.abs(high)) / 10 ** DECADES || 1) {
    this.kind = kind;
    this.low = low;
    this.high = high;
    this.linear = linear;
    this.from = this.bend(low);
    this.span = this.bend(high) - this.from || 1;
  }

  /** The value as distances on the scale count it. @param {number} value */
  bend(value) {
    if (this.kind === "linear") return value;
    if (this.kind === "log") return Math.log10(Math.max(MIN_MAGNITUDE, Math.abs(value)));
    return Math.sign(value) * Math.log10(1 + Math.abs(value) / this.linear);
  }

  /** Where a value is: 0 at the low end, 1 at the high one, and no further; NaN for NaN. @param {number} value */
  place(value) {
    const place = (this.bend(value) - this.from) / this.span;
    return Math.min(1, Math.max(0, place));
  }

  /** The value at a place. @param {number} place */
  value(place) {
    return this.unbend(this.from + place * this.span);
  }

  /** The value of what `bend` returns. @param {number} bent */
  unbend(bent) {
    if (this.kind === "linear") return bent;
    if (this.kind === "log") return 10 ** bent;
    return Math.sign(bent) * this.linear * (10 ** Math.abs(bent) - 1);
  }

  /** Whether another scale shows the same. @param {Scale | null} other */
  equals(other) {
    return other !== null && this.kind === other.kind && this.low === other.low && this.high === other.high;
  }
}

/** A range in which most values are: from p1 to p99 of what is finite; never empty. Of a log scale it is of the
 * magnitude, without zeros. @param {ArrayLike<number>} values @param {Kind} [kind] @param {number} [most] values that
 * are looked at @returns {[number, number]} */
export function percentiles(values, kind = "log", most = 20000) {
  const sample = sampleOf(values, kind, most);
  if (!sample.length) return kind === "log" ? [1e-6, 1] : [0, 1];
  const sorted = Float64Array.from(sample).sort();
  const at = (/** @type {number} */ share) => sorted[Math.round(share * (sorted.length - 1))];
  return widened(at(0.01), at(0.99), kind);
}

/** The values that a range is found by. @param {ArrayLike<number>} values @param {Kind} kind @param {number} most */
function sampleOf(values, kind, most) {
  const stride = Math.max(1, Math.ceil(values.length / most));
  const sample = [];
  for (let place = 0; place < values.length; place += stride) {
    const value = kind === "log" ? Math.abs(values[place]) : values[place];
    if (Number.isFinite(value) && (kind !== "log" || value > 0)) sample.push(value);
  }
  return sample;
}

/** @param {number} low @param {number} high @param {Kind} kind @returns {[number, number]} */
function widened(low, high, kind) {
  if (kind === "log") return high >= low * 2 ? [low, high] : [low / 3, high * 3];
  if (kind === "symlog" && low < 0 && high > 0) {
    high = Math.max(high, -low);
    low = -high;
  }
  const least = 1e-6 * Math.max(Math.abs(low), Math.abs(high));
  return high - low > least ? [low, high] : [low - (Math.abs(low) / 2 || 0.5), high + (Math.abs(high) / 2 || 0.5)];
}

const MIN_CHANGE = 0.2; // of the range's width: less would only make colors flicker
const MIN_MS = 1000;

/** The range of a picture as its values change: it changes only if it differs clearly, and not in every frame. */
export class Range {
  /** @type {[number, number] | null} */
  #held = null;
  #since = -Infinity;

  /** The range, if it is too early to compute it again. @param {number} now milliseconds */
  held(now) {
    return now - this.#since < MIN_MS ? this.#held : null;
  }

  /** @param {ArrayLike<number>} values @param {Kind} kind @param {number} now milliseconds @returns {[number, number]}
   */
  of(values, kind, now) {
    const held = this.held(now);
    if (held !== null) return held;
    const next = percentiles(values, kind);
    if (!sampleOf(values, kind, 1000).length) return this.#held ?? next; // nothing to see yet: no range to keep
    this.#since = now;
    if (this.#held === null || changes(this.#held, next, kind)) this.#held = next;
    return this.#held;
  }

  /** Another quantity: the earlier range no longer applies. */
  forget() {
    this.#held = null;
    this.#since = -Infinity;
  }
}

/** @param {[number, number]} before @param {[number, number]} after @param {Kind} kind */
function changes(before, after, kind) {
  const scale = new Scale(kind, ...before);
  const straight = new Scale(kind, ...after);
  const [low, high] = [straight.from - scale.from, straight.from + straight.span - scale.from - scale.span];
  return Math.max(Math.abs(low), Math.abs(high)) >= MIN_CHANGE * scale.span;
}

/** Round values in a scale's range, ascending: 1, 2, 5 times a power of ten.
 * @param {Scale} scale @param {number} [many] about so many at most @returns {number[]} */
export function ticks(scale, many = 6) {
  if (scale.kind === "linear") return evenTicks(scale.low, scale.high, many);
  if (scale.kind === "log") return logTicks(Math.abs(scale.low), Math.abs(scale.high), many);
  const side = logTicks(scale.linear, Math.max(Math.abs(scale.low), Math.abs(scale.high)), Math.max(2, many / 2));
  const inside = [...side.map((value) => -value).reverse(), 0, ...side].filter(
    (value) => value >= scale.low && value <= scale.high,
  );
  return inside.length > 1 ? inside : evenTicks(scale.low, scale.high, many);
}

/** @param {number} low @param {number} high @param {number} [many] @returns {number[]} */
export function evenTicks(low, high, many = 6) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, many);
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * size).find((candidate) => candidate >= rough * 0.999) ?? size * 10;
  const values = [];
  // Counted in whole steps: sums of fractions drift.
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place += 1)
    values.push(Number((place * step).toPrecision(12)));
  return values;
}

/** @param {number} low @param {number} high @param {number} many @returns {number[]} */
function logTicks(low, high, many) {
  const [from, to] = [Math.log10(Math.max(MIN_MAGNITUDE, low)), Math.log10(Math.max(MIN_MAGNITUDE, high))];
  const decades = to - from;
  if (decades < 0.7) return evenTicks(low, high, many);
  const times = decades * 3 <= many ? [1, 2, 5] : decades * 2 <= many ? [1, 3] : [1];
  const every = Math.max(1, Math.ceil(decades / many));
  const values = [];
  for (let power = Math.floor(from); power <= Math.ceil(to); power += 1) {
    if (((power % every) + every) % every) continue;
    for (const digit of times) values.push(Number(`${digit}e${power}`));
  }
  const inside = values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  return inside.length > 1 ? inside : evenTicks(low, high, many);
}
