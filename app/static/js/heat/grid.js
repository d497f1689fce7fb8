// @ts-check
/** The cells of a heatmap as they are seen: pixel rows by spans of steps, the worst of each, in a ring. Only what is
 * new is made. Pure. */
import { MAGNITUDE, MISSING } from "../canvas/worst.js";

/** @typedef {import("../canvas/columns.js").Columns} Columns */

export class Grid {
  /** Pixel rows. */
  height = 0;
  /** Steps in a cell's width. */
  per = 1;
  /** Cells that have room side by side. */
  ring = 1;
  /** One cell after the other, each of `height`. */
  bits = new Uint32Array(0);
  /** Which cells of the ring hold no captured step: they show the nearest one before them. */
  #skipped = new Uint8Array(1);
  /** The cells that are made, by their number: step / per. @type {[number, number] | null} */
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

  /** @param {number} first @param {number} last steps @param {number} pixels there is room for */
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
    this.#skipped = new Uint8Array(ring);
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
    const [from, to] = steps.map((step) => Math.floor(step / this.per));
    this.#dirty = this.#dirty === null ? [from, to] : [Math.min(from, this.#dirty[0]), Math.max(to, this.#dirty[1])];
  }

  /** Creates the shown cells that don't exist yet.
   * @param {Columns} columns @param {((bits: Uint32Array) => Uint32Array) | null} [convert]
   * @returns {[number, number] | null} the cells that are new */
  fill(columns, convert = null) {
    const [from, to] = this.shown;
    const all =
      this.have === null ||
      from < this.have[0] ||
      from > this.have[1] + 1 ||
      Math.max(to, this.have[1]) - from >= this.ring;
    const fresh = all ? /** @type {[number, number]} */ ([from, to]) : this.#missing();
    this.#dirty = null;
    if (fresh === null) return null;
    for (let cell = fresh[0]; cell <= fresh[1]; cell += 1) this.#make(columns, cell, convert);
    this.have = all || this.have === null ? [from, to] : [from, Math.max(to, this.have[1])];
    return fresh;
  }

  /** @returns {[number, number] | null} */
  #missing() {
    const [from, to] = this.shown;
    const end = Math.max(to, this.have?.[1] ?? to);
    const begin = (this.have?.[1] ?? from) + 1;
    const low = Math.max(from, Math.min(begin, this.#dirty?.[0] ?? begin));
    const high = Math.max(begin <= to ? to : -1, Math.min(end, this.#dirty?.[1] ?? -1));
    return low <= high ? [low, high] : null;
  }

  /** @param {Columns} columns @param {number} cell @param {((bits: Uint32Array) => Uint32Array) | null} convert */
  #make(columns, cell, convert) {
    const [first, last] = [cell * this.per, (cell + 1) * this.per - 1];
    const into = this.at(cell).fill(MISSING);
    let place = columns.find(last);
    const skipped = place >= 0 && columns.last(place) < first;
    this.#skipped[this.#slot(cell)] = Number(skipped);
    for (let more = true; more && place >= 0; place -= 1) {
      const bits = columns.bits(place);
      this.#add(into, convert === null ? bits : convert(bits));
      more = !skipped && place > 0 && columns.last(place - 1) >= first;
    }
  }

  /** Whether no step of a cell was captured, so that it shows an older value. @param {number} cell */
  isSkipped(cell) {
    return this.#skipped[this.#slot(cell)] === 1;
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
      let found = into[y];
      let most = found === MISSING ? -1 : found & MAGNITUDE;
      for (const end = starts[y + 1]; place < end; place += 1) {
        const bits = column[order[place]];
        const bad = bits & MAGNITUDE;
        if (bad > most && bits !== MISSING) {
          most = bad;
          found = bits;
        }
      }
      into[y] = found;
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
    const found = new Uint32Array(cells * this.height);
    for (let place = 0; place < cells; place += 1) found.set(this.at(from + place * stride), place * this.height);
    return new Float32Array(found.buffer);
  }
}
