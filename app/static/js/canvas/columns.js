// @ts-check
/** The newest columns of a heatmap, in a ring buffer: new columns overwrite the oldest, and nothing else moves. Pure.
 */
import { countOf } from "../search.js";
import { isBad, MISSING, worse } from "./worst.js";

/**
 * @typedef {{kind: string, k: number, n: number, bits: Uint32Array | null, first: ArrayLike<number>, last:
 * ArrayLike<number>, nonfinite?: ArrayLike<number>}} Taken
 */

export class Columns {
  /** Increases with every frame, so that a painter notices new data. */
  version = 0;
  length = 0;
  #begin = 0;

  /** @param {number} rows @param {number} capacity the columns that are kept
   * @param {number} [width] steps that share a column, the worst of them in it: more than one where the window is
   * longer than the capacity */
  constructor(rows, capacity, width = 1) {
    this.rows = rows;
    this.width = width;
    this.capacity = Math.max(1, capacity);
    this.#bits = new Uint32Array(rows * this.capacity);
    this.#values = new Float32Array(this.#bits.buffer);
    this.#first = new Float64Array(this.capacity);
    this.#last = new Float64Array(this.capacity);
    this.#nonfinite = new Uint32Array(this.capacity);
  }

  #bits;
  #values;
  #first;
  #last;
  #nonfinite;

  /** Appends the columns of a frame. Repeated steps replace the old ones; for a snapshot too, so that what the page
   * knows of older steps outlives a server that has forgotten them. A column in which nothing was sampled is none.
   * @param {Taken} frame @returns {[number, number] | null} the steps that changed */
  take(frame) {
    if (frame.k === 0 || frame.n === 0) return null;
    if (frame.n !== this.rows || frame.bits === null)
      throw new Error(`a frame has ${frame.n} rows, expected ${this.rows}`);
    if (frame.kind === "snapshot" && !this.#adjoins(frame)) this.length = 0;
    const before = this.length ? this.last(this.length - 1) + 1 : frame.first[0];
    this.#dropFrom(frame.first[0]);
    for (let column = 0; column < frame.k; column += 1) {
      const bits = frame.bits.subarray(column * this.rows, (column + 1) * this.rows);
      if (bits.every((each) => each === MISSING)) continue;
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
    const place = this.#place(this.length);
    this.#bits.set(bits, place * this.rows);
    this.#first[place] = first;
    this.#last[place] = last;
    this.#nonfinite[place] = nonfinite;
    this.length += 1;
  }

  /** Whether a column has values of several steps. */
  get areMerged() {
    for (let i = 0; i < this.length; i += 1) if (this.first(i) !== this.last(i)) return true;
    return false;
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
