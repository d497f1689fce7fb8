/** Where steps stand along the axis of one chart. Captured steps stand side by side, and the axis has a mark where
 * steps were left out; or each step has its true place, and what was not captured is empty. Pure. */
import { count, counted } from "./format.js";
import { countOf, evenTicks } from "./scale.js";

/** Columns of captured steps, ascending; a column of several has their merged values. `begin` is where it stands if
 * all stand side by side. @typedef {{length: number, first: (i: number) => number, last: (i: number) => number,
 * begin: (i: number) => number}} Captured */
/** Steps that the axis leaves out, and where. @typedef {{place: number, many: number}} Gap */

/** How many places a column takes: as many as steps were captured in it, if all are as far apart as it is from its
 * neighbor. @param {number} first @param {number} last @param {number} stride */
export function placesOf(first, last, stride) {
  return Math.max(1, Math.round((last - first) / Math.max(1, stride)) + 1);
}

/** Columns side by side; the first one is at its own step, so that the others are too if no step is left out. @param
 * {ArrayLike<number>} first @param {ArrayLike<number>} last @returns {Captured} */
export function sideBySide(first, last) {
  const begins = Float64Array.from(first);
  for (let i = 1; i < first.length; i += 1)
    begins[i] = begins[i - 1] + placesOf(first[i - 1], last[i - 1], first[i] - last[i - 1]);
  return { length: first.length, first: (i) => first[i], last: (i) => last[i], begin: (i) => begins[i] };
}

/** The columns of several lines: where they overlap, they are one. @param {{first: ArrayLike<number>, last:
 * ArrayLike<number>}[]} lines @returns {Captured} */
export function together(lines) {
  const spans = lines.flatMap(({ first, last }) => Array.from(first, (begin, i) => [begin, last[i]]));
  spans.sort((one, other) => one[0] - other[0]);
  /** @type {number[][]} */
  const joined = [];
  for (const [first, last] of spans) {
    const newest = joined.at(-1);
    if (newest && first <= newest[1]) newest[1] = Math.max(newest[1], last);
    else joined.push([first, last]);
  }
  return sideBySide(
    joined.map(([first]) => first),
    joined.map(([, last]) => last),
  );
}

export class Along {
  /** The columns in the span. */
  #shown = [0, -1];

  /** @param {Captured | null} columns @param {[number, number]} span the first and the last step @param {boolean} packs
   * whether captured steps stand side by side @param {{place: (step: number) => number, step: (place: number) =>
   * number} | null} [clock] where steps stand that don't */
  constructor(columns, span, packs, clock = null) {
    this.columns = columns;
    this.span = span;
    this.clock = clock;
    if (columns) {
      const from = countOf(columns.length, (i) => columns.last(i) < span[0]);
      this.#shown = [from, countOf(columns.length, (i) => columns.first(i) <= span[1]) - 1];
    }
    /** Whether captured steps stand side by side: only if there are any. */
    this.packs = packs && this.#shown[0] <= this.#shown[1];
    /** Both ends of the axis. */
    this.from = this.place(span[0] - 0.5);
    this.to = this.place(span[1] + 0.5);
  }

  /** Where a step stands. One that is left out stands between its neighbors. @param {number} step its middle */
  place(step) {
    const { columns } = this;
    if (!columns || !this.packs) return this.clock?.place(step) ?? step;
    const [from, to] = this.#shown;
    const i = Math.min(to, countOf(columns.length, (other) => columns.first(other) - 0.5 <= step) - 1);
    if (i < from) return columns.begin(from) - 0.5;
    const [begin, first, last] = [columns.begin(i), columns.first(i), columns.last(i)];
    return begin - 0.5 + ((Math.min(step, last + 0.5) - first + 0.5) / (last - first + 1)) * (this.#end(i) - begin);
  }

  /** The step at a place: if steps are left out, one that was captured. @param {number} place */
  step(place) {
    const { columns } = this;
    if (!columns || !this.packs) return this.clock?.step(place) ?? place;
    const [from, to] = this.#shown;
    const i = Math.min(to, Math.max(from, this.#standing(place + 0.5)));
    const [begin, first, last] = [columns.begin(i), columns.first(i), columns.last(i)];
    const share = (place - begin + 0.5) / (this.#end(i) - begin);
    return first - 0.5 + Math.min(1 - 1e-9, Math.max(0, share)) * (last - first + 1);
  }

  /** The whole step at a share of the axis. @param {number} share from 0 to 1 */
  stepAt(share) {
    const [first, last] = this.span;
    const inside = Math.min(1 - 1e-9, Math.max(0, share));
    return Math.min(last, Math.max(first, Math.round(this.step(this.from + inside * (this.to - this.from)))));
  }

  /** How far along the axis a step is: 0 to 1 for those of the span. @param {number} step */
  share(step) {
    return (this.place(step) - this.from) / (this.to - this.from || 1);
  }

  /** The newest column that does not begin after a place; -1 if there is none. @param {number} place a whole one */
  find(place) {
    const { columns } = this;
    if (!columns) return -1;
    return this.packs ? this.#standing(place) : countOf(columns.length, (i) => columns.first(i) <= place) - 1;
  }

  /** The last place of a column. @param {number} i */
  last(i) {
    return this.packs ? this.#end(i) - 1 : (this.columns?.last(i) ?? -1);
  }

  /** The whole places on the axis: the first and the last one. @returns {[number, number]} */
  get cells() {
    return [Math.round(this.from + 0.5), Math.round(this.to - 0.5)];
  }

  /** Where the axis leaves steps out. @returns {Gap[]} */
  get gaps() {
    const { columns } = this;
    if (!columns || !this.packs) return [];
    const gaps = [];
    for (let i = this.#shown[0]; i < this.#shown[1]; i += 1) {
      const many = columns.first(i + 1) - columns.last(i) - 1;
      if (many > 0) gaps.push({ place: columns.begin(i + 1) - 0.5, many });
    }
    return gaps;
  }

  /** How far along the axis each mark of a gap is, and no two nearer than some pixels.
   * @param {number} width of the axis in pixels @param {number} apart */
  marks(width, apart) {
    let free = -Infinity;
    return this.gaps.flatMap(({ place }) => {
      const share = (place - this.from) / (this.to - this.from || 1);
      if (share * width < free) return [];
      free = share * width + apart;
      return [share];
    });
  }

  /** Whether nothing lies between two steps on the axis: only then may a line lead from one to the other.
   * @param {number} before @param {number} after */
  adjoin(before, after) {
    return after - before <= 1 || (this.packs && this.place(after - 0.5) - this.place(before + 0.5) < 1e-6);
  }

  /** How many steps each mark of the axis stands for; empty if none is left out. */
  get words() {
    const many = this.gaps.map((gap) => gap.many).sort((one, other) => one - other);
    if (!many.length) return "";
    const [least, most] = [many[0], many[many.length - 1]];
    const each = least === most ? counted(most, "step") : `${count(least)} to ${count(most)} steps`;
    return many.length === 1 ? `${each} left out at the mark` : `${each} left out at each mark`;
  }

  /** The steps that the axis names: round ones, or captured ones that are as round as their neighbors allow.
   * @param {number} many about so many at most @returns {number[]} */
  ticks(many) {
    const { columns } = this;
    if (!columns || !this.packs) {
      const few = evenTicks(...this.span, many);
      return (few.length > 1 ? few : evenTicks(...this.span, many * 2)).filter(Number.isInteger);
    }
    const [from, to] = this.#shown;
    const apart = (this.to - this.from) / Math.max(1, many);
    const steps = /** @type {number[]} */ ([]);
    for (let place = this.from + apart / 2; place < this.to; place += apart) {
      const ends = [place - apart / 4, place + apart / 4].map((end) =>
        Math.min(to, Math.max(from, this.#standing(end + 0.5))),
      );
      let best = { size: 0, step: columns.first(ends[0]) };
      for (let i = ends[0]; i <= ends[1]; i += 1) {
        const found = roundest(columns.first(i), columns.last(i));
        if (found.size > best.size) best = found;
      }
      if (best.step !== steps.at(-1)) steps.push(best.step);
    }
    return steps;
  }

  /** The newest column that stands before a place. @param {number} place */
  #standing(place) {
    const { columns } = this;
    return columns ? countOf(columns.length, (i) => columns.begin(i) <= place) - 1 : -1;
  }

  /** Where a column ends, if all stand side by side. @param {number} i */
  #end(i) {
    const columns = /** @type {Captured} */ (this.columns);
    if (i + 1 < columns.length) return columns.begin(i + 1);
    const stride = i > 0 ? columns.first(i) - columns.last(i - 1) : 1;
    return columns.begin(i) + placesOf(columns.first(i), columns.last(i), stride);
  }
}

/** The roundest of some steps, and what it is a multiple of. @param {number} first @param {number} last */
function roundest(first, last) {
  if (first <= 0) return { size: Infinity, step: 0 };
  for (let power = 10 ** Math.floor(Math.log10(last)); power >= 1; power /= 10)
    for (const times of [5, 2, 1]) {
      const step = Math.ceil(first / (power * times)) * power * times;
      if (step <= last) return { size: power * times, step };
    }
  return { size: 1, step: first };
}
