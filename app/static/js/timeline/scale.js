// @ts-check
/** Where steps are on the timeline, and which captured step is meant. Pure. */
import { countOf } from "../search.js";

/** @typedef {{first: ArrayLike<number>, last: ArrayLike<number>}} Rows captured steps, or merged ones, ascending */

/** The timeline from the first to the last step. */
export class Strip {
  /** @param {number} first @param {number} last */
  constructor(first, last) {
    this.first = first;
    this.last = Math.max(first, last);
  }

  get length() {
    return this.last - this.first + 1;
  }

  /** Where the middle of a step is: 0 to 1, and no further. @param {number} step */
  place(step) {
    return Math.min(1, Math.max(0, (step - this.first + 0.5) / this.length));
  }

  /** Where a range begins and how wide it is. @param {[number, number]} range @returns {[number, number]} */
  band([from, to]) {
    const [begin, end] = [this.place(from - 0.5), this.place(to + 0.5)];
    return [begin, Math.max(0, end - begin)];
  }

  /** The step at a place. @param {number} place */
  step(place) {
    const share = Math.min(1, Math.max(0, place));
    return Math.min(this.last, this.first + Math.floor(share * this.length));
  }
}

/** The place of the first row that doesn't end before a step. @param {Rows} rows @param {number} step */
function placeOf({ last }, step) {
  return countOf(last.length, (row) => last[row] < step);
}

/** Whether a step was captured. @param {Rows} rows @param {number} step */
export function isIn(rows, step) {
  const place = placeOf(rows, step);
  return place < rows.first.length && rows.first[place] <= step;
}

/** The captured step nearest to a step, if it is no farther than `reach`; else the step itself.
 * @param {Rows} rows @param {number} step @param {number} reach */
export function snapped(rows, step, reach) {
  const place = placeOf(rows, step);
  let found = step;
  let distance = reach + 1;
  for (const each of [place - 1, place]) {
    if (each < 0 || each >= rows.first.length) continue;
    if (rows.first[each] <= step && step <= rows.last[each]) return step;
    const end = rows.last[each] < step ? rows.last[each] : rows.first[each];
    if (Math.abs(end - step) < distance) [found, distance] = [end, Math.abs(end - step)];
  }
  return found;
}

/** The captured step so many rows further; null if the rows end before it.
 * @param {Rows} rows @param {number} step @param {number} by negative: back */
export function further(rows, step, by) {
  const place = placeOf(rows, step);
  const wanted = isIn(rows, step) || by < 0 ? place + by : place + by - 1;
  return wanted < 0 || wanted >= rows.first.length ? null : rows.first[wanted];
}

/** The step of the next mark after (or before) a step; null if there is none.
 * @param {number[]} steps ascending @param {number} step @param {number} by 1 or -1 */
export function nextMark(steps, step, by) {
  const found = by > 0 ? steps.find((each) => each > step) : steps.findLast((each) => each < step);
  return found ?? null;
}

/** The step that was typed; null if it is none. @param {string} text */
export function readStep(text) {
  const digits = text.replace(/[\s,.\u00a0\u202f']/g, "");
  return /^\d{1,15}$/.test(digits) ? Number(digits) : null;
}

/** What a key does to a handle: how far in captured steps, or a share of the run, or an end.
 * @param {string} key @param {boolean} shift @returns {{steps: number} | {share: number} | {end: 0 | 1} | null} */
export function movedBy(key, shift) {
  const far = shift ? 10 : 1;
  if (key === "ArrowLeft" || key === "ArrowDown") return { steps: -far };
  if (key === "ArrowRight" || key === "ArrowUp") return { steps: far };
  if (key === "PageDown") return { share: -0.1 };
  if (key === "PageUp") return { share: 0.1 };
  if (key === "Home") return { end: 0 };
  return key === "End" ? { end: 1 } : null;
}
