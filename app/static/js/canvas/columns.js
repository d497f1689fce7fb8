/** The newest columns of a heatmap in a ring buffer, and the worst of the values that share a pixel. Pure. */
import { placesOf } from "../along.js";
import { countOf } from "../scale.js";

export const MISSING = 0x7fc00001; // not sampled
export const NAN = 0x7fc00000;
export const INFINITE = 0x7f800000;
export const MAGNITUDE = 0x7fffffff; // without the sign
export const MANTISSA = 0x007fffff; // not zero in NaN, zero in an infinity

/** How bad a value is, as an integer; -1 is not sampled. @param {number} bits */
export function badness(bits) {
  return bits === MISSING ? -1 : bits & MAGNITUDE;
}

/** Whether a value is NaN or infinite. @param {number} bits */
export function isBad(bits) {
  return bits !== MISSING && (bits & INFINITE) === INFINITE;
}

/** The bits of the worse one. @param {number} a @param {number} b */
export function worse(a, b) {
  return badness(b) > badness(a) ? b : a;
}

/** The worst of column[order[from]] to column[order[to - 1]]; without an order, of column[from] to column[to - 1].
 * @param {Uint32Array} column @param {number} from @param {number} to @param {ArrayLike<number> | null} [order] */
export function worstOf(column, from, to, order = null) {
  let worst = MISSING;
  let most = -1;
  for (let place = from; place < to; place += 1) {
    const bits = column[order === null ? place : order[place]];
    const bad = bits === MISSING ? -1 : bits & MAGNITUDE;
    if (bad > most) {
      most = bad;
      worst = bits;
    }
  }
  return worst;
}

/** The first row of a pixel when rows share pixels.
 * @param {number} pixel @param {number} rows @param {number} pixels */
export function startOf(pixel, rows, pixels) {
  return Math.ceil((pixel * rows) / pixels);
}

/** The bits of float32, column by column. @param {(number | string)[][]} values [row][column]
 * @param {(value: number, row: number, column: number) => number | null} signOf the bits of a cell that is no finite
 *   number; null of one that is @returns {Uint32Array} */
export function bitsOf(values, signOf) {
  const [n, k] = [values.length, values[0]?.length ?? 0];
  const bits = new Uint32Array(n * k);
  const floats = new Float32Array(bits.buffer);
  for (let row = 0; row < n; row += 1) {
    for (let column = 0; column < k; column += 1) {
      const [place, value] = [column * n + row, Number(values[row][column])];
      const sign = signOf(value, row, column);
      if (sign === null) floats[place] = value;
      else bits[place] = sign;
    }
  }
  return bits;
}

/** The columns of a picture, by their number. @typedef {{find: (step: number) => number, last: (column: number) =>
 * number}} Stops `find` is the newest column that doesn't begin after a step, or -1; `last` is the last step of a
 * column */

/** The captured step that a step stands for, or the one so many columns further: the last one of its column. Between
 * two columns, that is the one before. It stays in the steps that are shown, if any of them was captured.
 * @param {Stops} stops @param {number} step @param {[number, number]} shown @param {number} [by] columns */
export function stopAt(stops, step, shown, by = 0) {
  const [begin, last] = shown.map((end) => stops.find(end));
  const first = begin < 0 || stops.last(begin) < shown[0] ? begin + 1 : begin;
  if (first > last) return step;
  const place = stops.find(step);
  const isBetween = place < 0 || stops.last(place) < step;
  const wanted = place + by + (isBetween && by < 0 ? 1 : 0);
  return Math.min(shown[1], stops.last(Math.min(last, Math.max(first, wanted))));
}

/** @typedef {{kind: string, k: number, n: number, bits: Uint32Array, first: ArrayLike<number>, last:
 * ArrayLike<number>, nonfinite?: ArrayLike<number>}} Taken */

export class Columns {
  /** Increases with every frame, so that a painter notices new data. */
  version = 0;
  length = 0;
  #begin = 0;

  /** @param {number} rows @param {number} capacity the columns that are kept @param {number} [width] steps that share a
   * column, the worst of them in it: more than one where the window is longer than the capacity */
  constructor(rows, capacity, width = 1) {
    this.rows = rows;
    this.width = width;
    this.capacity = Math.max(1, capacity);
    this.#bits = new Uint32Array(rows * this.capacity);
    this.#values = new Float32Array(this.#bits.buffer);
    this.#first = new Float64Array(this.capacity);
    this.#last = new Float64Array(this.capacity);
    this.#nonfinite = new Uint32Array(this.capacity);
    this.#places = new Float64Array(this.capacity);
  }

  #bits;
  #values;
  #first;
  #last;
  #nonfinite;
  #places;

  /** Appends the columns of a frame. Repeated steps replace the old ones; for a snapshot too, so that what the page
   * knows of older steps outlives a server that has forgotten them. A column in which nothing was sampled is none.
   * @param {Taken} frame @returns {[number, number] | null} the steps that changed */
  take(frame) {
    if (frame.k === 0 || frame.n === 0) return null;
    if (frame.n !== this.rows) throw new Error(`a frame has ${frame.n} rows, expected ${this.rows}`);
    if (frame.kind === "snapshot" && !this.#adjoins(frame)) this.length = 0;
    const before = this.length ? this.last(this.length - 1) + 1 : frame.first[0];
    this.#dropFrom(frame.first[0]);
    for (let column = 0; column < frame.k; column += 1) {
      const bits = frame.bits.subarray(column * this.rows, (column + 1) * this.rows);
      if (bits.every((value) => value === MISSING)) continue;
      const nonfinite = frame.nonfinite?.[column] ?? bits.filter(isBad).length;
      this.#add(bits, frame.first[column], frame.last[column], nonfinite);
    }
    this.version += 1;
    return [Math.min(before, frame.first[0]), frame.last[frame.k - 1]];
  }

  /** Whether what is there ends near where a frame begins: a window of long ago is no part of this one.
   * @param {Taken} frame */
  #adjoins(frame) {
    if (!this.length || this.first(0) >= frame.first[0]) return false;
    return frame.first[0] - this.last(this.length - 1) <= this.capacity * this.width;
  }

  /** Drops everything from a step on; a column that only ends there keeps its earlier part. @param {number} step */
  #dropFrom(step) {
    while (this.length && this.first(this.length - 1) >= step) this.length -= 1;
    const place = this.#place(this.length - 1);
    if (this.length && this.#last[place] >= step) this.#last[place] = step - 1;
  }

  /** @param {Uint32Array} bits @param {number} first @param {number} last @param {number} nonfinite */
  #add(bits, first, last, nonfinite) {
    const newest = this.#place(this.length - 1);
    const joins =
      this.width > 1 &&
      this.length > 0 &&
      Math.floor(this.#first[newest] / this.width) === Math.floor(last / this.width);
    if (!joins) return this.#append(bits, first, last, nonfinite);
    const held = this.bits(this.length - 1);
    for (let row = 0; row < this.rows; row += 1) held[row] = worse(held[row], bits[row]);
    this.#last[newest] = last;
    this.#nonfinite[newest] = Math.max(this.#nonfinite[newest], nonfinite);
  }

  /** @param {Uint32Array} bits @param {number} first @param {number} last @param {number} nonfinite */
  #append(bits, first, last, nonfinite) {
    if (this.length === this.capacity) {
      this.#begin = (this.#begin + 1) % this.capacity;
      this.length -= 1;
    }
    const [place, before] = [this.#place(this.length), this.#place(this.length - 1)];
    const stride = first - this.#last[before];
    this.#places[place] = this.length
      ? this.#places[before] + placesOf(this.#first[before], this.#last[before], stride)
      : first;
    this.#bits.set(bits, place * this.rows);
    this.#first[place] = first;
    this.#last[place] = last;
    this.#nonfinite[place] = nonfinite;
    this.length += 1;
  }

  /** How many steps lie between two columns, about. */
  get pace() {
    return this.length > 1 ? (this.first(this.length - 1) - this.first(0)) / (this.length - 1) : 1;
  }

  /** @param {number} i */
  #place(i) {
    return (this.#begin + i + this.capacity) % this.capacity;
  }

  /** The first step of a column; 0 is the oldest one. @param {number} i */
  first(i) {
    return this.#first[this.#place(i)];
  }

  /** @param {number} i */
  last(i) {
    return this.#last[this.#place(i)];
  }

  /** Where a column stands, if all stand side by side; it stays there when older ones go. @param {number} i */
  begin(i) {
    return this.#places[this.#place(i)];
  }

  /** How many rows of a column were not finite. @param {number} i */
  nonfinite(i) {
    return this.#nonfinite[this.#place(i)];
  }

  /** A view, true until the next frame. @param {number} i */
  column(i) {
    const place = this.#place(i) * this.rows;
    return this.#values.subarray(place, place + this.rows);
  }

  /** The same as integers. @param {number} i */
  bits(i) {
    const place = this.#place(i) * this.rows;
    return this.#bits.subarray(place, place + this.rows);
  }

  /** @param {number} i @param {number} row */
  value(i, row) {
    return this.#values[this.#place(i) * this.rows + row];
  }

  /** The column of a step: the newest one that does not begin after it; -1 if there is none. @param {number} step */
  find(step) {
    return countOf(this.length, (i) => this.first(i) <= step) - 1;
  }

  /** The column that contains a step; -1 if the step was not captured. @param {number} step */
  at(step) {
    const i = this.find(step);
    return i >= 0 && step <= this.last(i) ? i : -1;
  }
}
