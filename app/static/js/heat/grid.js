/** The cells of a heatmap: the worst value of each, possibly relative to its row. Pure. */
import { INFINITE, MAGNITUDE, MISSING } from "../canvas/columns.js";

/** @import { Along } from "../along.js"
 * @import { Columns } from "../canvas/columns.js" */

const SAMPLES = 33;
const DECADES = Math.log10(2) / 2 ** 23; // of one unit of the bits

/** The median magnitude of each row over its values; 0 if a row has no finite value. @param {Columns} columns */
export function usualOf(columns) {
  const usual = new Float32Array(columns.rows);
  const many = Math.min(SAMPLES, columns.length);
  const picked = Array.from({ length: many }, (_, place) =>
    columns.column(Math.floor((place * columns.length) / many)),
  );
  const held = new Float32Array(many);
  for (let row = 0; row < usual.length; row += 1) {
    let count = 0;
    for (const column of picked) {
      const value = Math.abs(column[row]);
      if (value < Infinity) insert(held, count++, value);
    }
    if (count) usual[row] = held[count >> 1];
  }
  return usual;
}

/** Puts a value among the first `count`, which ascend.
 * @param {Float32Array} held @param {number} count @param {number} value */
function insert(held, count, value) {
  let place = count;
  for (; place > 0 && held[place - 1] > value; place -= 1) held[place] = held[place - 1];
  held[place] = value;
}

/** Makes columns relative: 0 is usual, 1 ten times as much, -1 a tenth. What is not finite stays. The logarithm is that
 * of the float's own bits, straight between powers of two: within 0.03, which no color shows, and ten times as fast.
 * @param {Float32Array} usual @returns {(bits: Uint32Array) => Uint32Array} its answer holds until it is called again
 */
export function relativeTo(usual) {
  const into = new Uint32Array(usual.length);
  const values = new Float32Array(into.buffer);
  const zero = new Uint32Array(usual.buffer, usual.byteOffset, usual.length);
  return (bits) => {
    for (let row = 0; row < bits.length; row += 1) {
      if ((bits[row] & INFINITE) === INFINITE) into[row] = bits[row];
      else values[row] = ((bits[row] & MAGNITUDE) - zero[row]) * DECADES;
    }
    return into;
  };
}

export class Grid {
  /** Pixel rows. */
  height = 0;
  /** Places of the axis in a cell's width. */
  per = 1;
  /** Cells that have room side by side. */
  ring = 1;
  /** One cell after the other, each of `height`. */
  bits = new Uint32Array(0);
  /** The cells that are made, by their number: place / per. @type {[number, number] | null} */
  have = null;
  /** The cells that are shown. @type {[number, number]} */
  shown = [0, 0];
  /** @type {[number, number] | null} */
  #dirty = null;
  /** @type {Int32Array} */
  #starts = new Int32Array(1);
  /** @type {Int32Array} */
  #order = new Int32Array(0);

  /** Which rows are where: pixel row y holds order[starts[y]] up to order[starts[y + 1] - 1].
   * @param {Int32Array} starts @param {Int32Array} order */
  shape(starts, order) {
    this.height = starts.length - 1;
    this.#starts = starts;
    this.#order = order;
    this.#resize(this.ring);
  }

  /** @param {number} first @param {number} last places @param {number} pixels there is room for */
  show(first, last, pixels) {
    const per = Math.max(1, Math.ceil((last - first + 1) / Math.max(1, pixels)));
    const shown = /** @type {[number, number]} */ ([Math.floor(first / per), Math.floor(last / per)]);
    const needed = shown[1] - shown[0] + 2;
    if (per !== this.per || needed > this.ring || needed * 2 < this.ring) {
      this.per = per;
      this.#resize(needed);
    }
    this.shown = shown;
  }

  /** @param {number} ring */
  #resize(ring) {
    this.ring = ring;
    if (this.bits.length !== ring * this.height) this.bits = new Uint32Array(ring * this.height);
    this.forget();
  }

  /** Marks everything as outdated. */
  forget() {
    this.have = null;
    this.#dirty = null;
  }

  /** These steps are others now. @param {[number, number] | null} steps */
  changed(steps) {
    if (steps === null) return;
    const [from, to] = steps;
    this.#dirty = this.#dirty === null ? [from, to] : [Math.min(from, this.#dirty[0]), Math.max(to, this.#dirty[1])];
  }

  /** Creates the shown cells that don't exist yet. @param {Columns} columns @param {Along} along where they stand
   * @param {((bits: Uint32Array) => Uint32Array) | null} [convert] @returns {[number, number] | null} the cells that
   * are new */
  fill(columns, along, convert = null) {
    const [from, to] = this.shown;
    const all =
      this.have === null ||
      from < this.have[0] ||
      from > this.have[1] + 1 ||
      Math.max(to, this.have[1]) - from >= this.ring;
    const fresh = all ? /** @type {[number, number]} */ ([from, to]) : this.#missing(along);
    this.#dirty = null;
    if (fresh === null) return null;
    for (let cell = fresh[0]; cell <= fresh[1]; cell += 1) this.#make(columns, along, cell, convert);
    this.have = all || this.have === null ? [from, to] : [from, Math.max(to, this.have[1])];
    return fresh;
  }

  /** @param {Along} along @returns {[number, number] | null} */
  #missing(along) {
    const [from, to] = this.shown;
    const dirty = this.#dirty?.map((step) => Math.floor(Math.round(along.place(step)) / this.per));
    const end = Math.max(to, this.have?.[1] ?? to);
    const begin = (this.have?.[1] ?? from) + 1;
    const low = Math.max(from, Math.min(begin, dirty?.[0] ?? begin));
    const high = Math.max(begin <= to ? to : -1, Math.min(end, dirty?.[1] ?? -1));
    return low <= high ? [low, high] : null;
  }

  /** The worst of the columns that stand in a cell; nothing if none does. @param {Columns} columns @param {Along} along
   * @param {number} cell @param {((bits: Uint32Array) => Uint32Array) | null} convert */
  #make(columns, along, cell, convert) {
    const [first, last] = [cell * this.per, (cell + 1) * this.per - 1];
    const into = this.at(cell).fill(MISSING);
    for (let i = along.find(last); i >= 0 && along.last(i) >= first; i -= 1) {
      const bits = columns.bits(i);
      this.#add(into, convert === null ? bits : convert(bits));
    }
  }

  /** @param {number} cell */
  #slot(cell) {
    return ((cell % this.ring) + this.ring) % this.ring;
  }

  /** `worstOf` for every pixel row: written out, for this is where the time goes.
   * @param {Uint32Array} into @param {Uint32Array} column */
  #add(into, column) {
    const [starts, order] = [this.#starts, this.#order];
    let place = starts[0];
    for (let y = 0; y < into.length; y += 1) {
      let worst = into[y];
      let most = worst === MISSING ? -1 : worst & MAGNITUDE;
      for (const end = starts[y + 1]; place < end; place += 1) {
        const bits = column[order[place]];
        const bad = bits & MAGNITUDE;
        if (bad > most && bits !== MISSING) {
          most = bad;
          worst = bits;
        }
      }
      into[y] = worst;
    }
  }

  /** The values of a cell, from the first pixel row on; -1 is in the ring too. @param {number} cell */
  at(cell) {
    const place = this.#slot(cell) * this.height;
    return this.bits.subarray(place, place + this.height);
  }

  /** A sample of the shown values, to find a range. @param {number} [most] @returns {Float32Array} */
  sample(most = 20000) {
    const [from, to] = this.shown;
    const stride = Math.max(1, Math.ceil(((to - from + 1) * this.height) / most));
    const cells = Math.ceil((to - from + 1) / stride);
    const sampled = new Uint32Array(cells * this.height);
    for (let place = 0; place < cells; place += 1) sampled.set(this.at(from + place * stride), place * this.height);
    return new Float32Array(sampled.buffer);
  }
}
