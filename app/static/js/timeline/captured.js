/** Where captured steps are on the timeline, loaded when they are needed: arrow keys and pointers stop there. */
import { get } from "../api.js";
import { countOf } from "../scale.js";

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
function isIn(rows, step) {
  const place = placeOf(rows, step);
  return place < rows.first.length && rows.first[place] <= step;
}

/** The captured step nearest to a step, if it is no farther than `reach`; else the step itself.
 * @param {Rows} rows @param {number} step @param {number} reach */
export function snapped(rows, step, reach) {
  const place = placeOf(rows, step);
  let nearest = step;
  let distance = reach + 1;
  for (const row of [place - 1, place]) {
    if (row < 0 || row >= rows.first.length) continue;
    if (rows.first[row] <= step && step <= rows.last[row]) return step;
    const end = rows.last[row] < step ? rows.last[row] : rows.first[row];
    if (Math.abs(end - step) < distance) [nearest, distance] = [end, Math.abs(end - step)];
  }
  return nearest;
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
  const next = by > 0 ? steps.find((other) => other > step) : steps.findLast((other) => other < step);
  return next ?? null;
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

const COLUMNS = 1000; // twice as many captured steps
const NEAR = 300; // captured steps on either side, if the whole run has too many
const RENEWED_MS = 1000;

/** @typedef {Rows & {all: boolean, many: number}} Known */

export class Captured {
  /** Of the whole run; every so-and-so-many one if there are too many. @type {Known | null} */
  #whole = null;
  /** All of them in some steps. @type {Known | null} */
  #near = null;
  #loadedAt = -Infinity;
  /** @type {Promise<Known | null> | null} */
  #loading = null;

  /** @param {{run: string | null, follow: {newest: number | null, first: number}}} page
   * @param {{ask?: (path: "timeline", query: Record<string, any>) => Promise<any>, now?: () => number}} [world] */
  constructor(page, { ask = get, now = () => performance.now() } = {}) {
    this.page = page;
    this.ask = ask;
    this.now = now;
  }

  /** The captured step that a pointer means: the nearest one in reach. @param {number} step @param {number} reach */
  snap(step, reach) {
    return this.#whole ? snapped(this.#whole, step, reach) : step;
  }

  /** The captured step so many captured steps further; at an end of the run, the last one.
   * @param {number} step @param {number} by @returns {Promise<number>} */
  async further(step, by) {
    const whole = await this.load();
    const { newest, first } = this.page.follow;
    const plain = Math.min(newest ?? step, Math.max(first, step + by));
    if (!whole?.first.length) return plain;
    const rows = whole.all ? whole : await this.#around(step, by, whole);
    const next = further(rows, step, by);
    if (next !== null) return next;
    const end = by > 0 ? rows.first[rows.first.length - 1] : rows.first[0];
    return by > 0 === end > step ? end : step; // nothing further was captured
  }

  /** The newest captured step up to a step: what a page shows that follows. @param {number} step */
  async upTo(step) {
    const whole = await this.load(true);
    if (!whole?.last.length) return step;
    const rows = whole.all ? whole : await this.#around(step, -1, whole);
    return isIn(rows, step) ? step : (further(rows, step, -1) ?? step);
  }

  /** Loads the captured steps of the whole run, unless they are known. @param {boolean} [exactly] or nearly known */
  load(exactly = false) {
    const newest = this.page.follow.newest ?? -1;
    const isRecent = !exactly && this.now() - this.#loadedAt <= RENEWED_MS;
    const isOld = !this.#whole || (this.#last(this.#whole) < newest && !isRecent);
    if (!isOld) return Promise.resolve(this.#whole);
    this.#loading ??= this.#fetch({ columns: COLUMNS }).then(
      (rows) => {
        this.#loading = null;
        this.#loadedAt = this.now();
        this.#whole = rows;
        return rows;
      },
      () => {
        this.#loading = null;
        return this.#whole;
      },
    );
    return this.#loading;
  }

  /** @param {number} step @param {number} by @param {Known} whole */
  async #around(step, by, whole) {
    if (this.#near?.all && further(this.#near, step, by) !== null && step >= this.#near.first[0]) return this.#near;
    const apart = Math.max(1, (this.#last(whole) - whole.first[0]) / Math.max(1, whole.many));
    const reach = Math.ceil(apart * (NEAR + Math.abs(by)));
    const near = await this.#fetch({ from: Math.max(0, step - reach), to: step + reach, columns: COLUMNS }).catch(
      () => null,
    );
    this.#near = near?.first.length ? near : whole;
    return this.#near;
  }

  /** @param {Record<string, any>} query @returns {Promise<Known>} */
  async #fetch(query) {
    const answer = await this.ask("timeline", { run: this.page.run, ...query });
    return {
      first: answer.captured_first,
      last: answer.captured_last,
      all: answer.captured_all,
      many: answer.captured,
    };
  }

  /** @param {Known} rows */
  #last(rows) {
    return rows.last[rows.last.length - 1] ?? -1;
  }
}
