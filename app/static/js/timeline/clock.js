/** What stands on the axis of the charts: steps, times, or samples, by straight lines between known steps. */
import { get, numberOf } from "../api.js";
import { count, counted } from "../format.js";
import { Refresh } from "../live/refresh.js";
import { countOf, evenTicks } from "../scale.js";
import { Emitter } from "../state.js";
import { SAMPLES_RATE, STEPS_RATE, TIME } from "../vocabulary.js";
/** @import { Follow } from "../follow.js"
 * @import { State } from "../state.js" */

/** @typedef {"step" | "time" | "samples"} By */

/** Steps with their values, both ascending. @typedef {{steps: number[], values: number[]}} Knots */
/** @typedef {{first_step: ArrayLike<number>, last_step: ArrayLike<number>, min: ArrayLike<number>, max:
 * ArrayLike<number>, mean: ArrayLike<number>}} Points as `scalars` sends them, with numbers */

/** The value at a step; beyond the ends, it goes on at the pace of all. @param {Knots} knots @param {number} step */
export function valueAt({ steps, values }, step) {
  return along(steps, values, step);
}

/** The step of a value. @param {Knots} knots @param {number} value */
export function stepOf({ steps, values }, value) {
  return along(values, steps, value);
}

/** @param {number[]} from ascending @param {number[]} to @param {number} at */
function along(from, to, at) {
  const last = from.length - 1;
  if (!last) return to[0];
  if (at <= from[0] || at >= from[last]) {
    const pace = (to[last] - to[0]) / (from[last] - from[0] || 1);
    return at <= from[0] ? to[0] + (at - from[0]) * pace : to[last] + (at - from[last]) * pace;
  }
  const next = countOf(last, (place) => from[place] <= at);
  const share = (at - from[next - 1]) / (from[next] - from[next - 1] || 1);
  return to[next - 1] + share * (to[next] - to[next - 1]);
}

/** When each step ended, as it was recorded. Of merged steps, the first and the last one are known.
 * @param {Points} points @returns {Knots | null} null if there are fewer than two */
export function timeKnots({ first_step, last_step, min, max }) {
  /** @type {Knots} */
  const knots = { steps: [], values: [] };
  for (let place = 0; place < first_step.length; place += 1) {
    push(knots, first_step[place], min[place]);
    if (last_step[place] > first_step[place]) push(knots, last_step[place], max[place]);
  }
  return knots.steps.length > 1 ? knots : null;
}

/** A clock that was set back must not turn the axis around. @param {Knots} knots @param {number} step @param {number}
 * value */
function push({ steps, values }, step, value) {
  const last = values.length - 1;
  if (!Number.isFinite(value) || (last >= 0 && step <= steps[last])) return;
  steps.push(step);
  values.push(last >= 0 ? Math.max(value, values[last] + 1e-9) : value);
}

/** The samples up to each step: steps times the rows of the batch, which are known where the machine was sampled.
 * @param {Points} rates of samples @param {Points} paces of steps, both per second @param {number} first
 * @param {number} newest step of the run @returns {Knots | null} null if no batch is known */
export function sampleKnots(rates, paces, first, newest) {
  const pace = new Map(Array.from(paces.last_step, (step, place) => [step, paces.mean[place]]));
  const rows = Array.from(rates.last_step, (step, place) => ({
    step,
    rows: Math.round(rates.mean[place] / (pace.get(step) ?? NaN)),
  })).filter((row) => Number.isFinite(row.rows) && row.rows > 0);
  if (!rows.length) return null;
  /** @type {Knots} */
  const knots = { steps: [first - 1], values: [0] };
  let [step, sum] = [first - 1, 0];
  for (const [place, row] of rows.entries()) {
    const until = place === rows.length - 1 ? Math.max(newest, row.step) : row.step;
    if (until <= step) continue;
    sum += (until - step) * row.rows;
    step = until;
    knots.steps.push(step);
    knots.values.push(sum);
  }
  return knots.steps.length > 1 ? knots : null;
}

const [SECOND, MINUTE, HOUR, DAY] = [1, 60, 3600, 86_400];
const SIZES = [
  ...[1, 2, 5, 10, 15, 30].map((many) => many * SECOND),
  ...[1, 2, 5, 10, 15, 30].map((many) => many * MINUTE),
  ...[1, 2, 3, 6, 12].map((many) => many * HOUR),
  ...[1, 2, 7, 14, 30, 90, 365].map((many) => many * DAY),
];

/** Ticks at whole minutes, hours, or days of the reader's clock. @param {number} from seconds since 1970 @param
 * {number} to @param {number} many at most @param {number} [offset] seconds that the reader's clock is ahead of UTC */
export function timeTicks(from, to, many, offset = -60 * new Date(from * 1000).getTimezoneOffset()) {
  const rough = (to - from) / Math.max(1, many);
  if (rough < 1) return evenTicks(from, to, many).map((at) => ({ at, text: timeText(at, to - from, offset) }));
  const size = SIZES.find((candidate) => candidate >= rough) ?? Math.ceil(rough / (365 * DAY)) * 365 * DAY;
  const ticks = [];
  for (let at = Math.ceil((from + offset) / size) * size - offset; at <= to; at += size)
    ticks.push({ at, text: timeText(at, size, offset) });
  return ticks;
}

/** A time in as much detail as a distance asks for. @param {number} at @param {number} size seconds
 * @param {number} [offset] */
export function timeText(at, size, offset = -60 * new Date(at * 1000).getTimezoneOffset()) {
  const text = new Date((at + offset) * 1000).toISOString();
  if (size >= DAY) return text.slice(5, 10);
  if (size >= MINUTE) return text.slice(11, 16);
  return size < 1 ? text.slice(11, 23).replace(/0+$/, "").replace(/\.$/, "") : text.slice(11, 19);
}

/** Ticks of a time since a start. @param {number} from seconds @param {number} to @param {number} many at most */
export function elapsedTicks(from, to, many) {
  const ticks = timeTicks(from, to, many, 0);
  const size = ticks.length > 1 ? ticks[1].at - ticks[0].at : to - from;
  return ticks.map(({ at }) => ({ at, text: elapsedText(at, size) }));
}

/** A time since a start in as much detail as a distance asks for: "0.5 s", "1:05", "2:00:00", "3 d 4 h".
 * @param {number} at @param {number} size seconds */
export function elapsedText(at, size) {
  if (size < 1) return `${Number(at.toPrecision(4))} s`;
  const [days, seconds] = [Math.floor(at / DAY), Math.round(at % DAY)];
  if (size >= HOUR && days) return `${days} d ${Math.floor(seconds / HOUR)} h`;
  const [hours, minutes] = [Math.floor(seconds / HOUR) + 24 * days, Math.floor((seconds % HOUR) / MINUTE)];
  const rest = [minutes, seconds % MINUTE].map((part) => String(part).padStart(2, "0"));
  return hours ? [hours, ...rest].join(":") : `${minutes}:${rest[1]}`;
}

/** @param {number} from @param {number} to @param {number} many */
export function countTicks(from, to, many) {
  return evenTicks(from, to, many)
    .filter(Number.isInteger)
    .map((at) => ({ at, text: count(at) }));
}

const POINTS = 1000;
export const PACKED = "captured";
const RENEWED_MS = 1000;

const WHY = {
  time: "The times of these steps are unknown, so the x-axis shows steps.",
  samples: "The batch size is unknown, so the x-axis shows steps.",
};

/** Emits "change" when steps stand elsewhere. */
export class Clock extends Emitter {
  /** @type {Knots | null} */
  #knots = null;
  /** What the knots are of. @type {By} */
  #of = "step";
  /** Why the axis is not what the reader chose. */
  why = "";

  /** @param {{run: string | null, state: State, follow: Follow}} page
   * @param {{ask?: (path: "scalars", query: Record<string, any>, signal: AbortSignal) => Promise<any>}} [world] */
  constructor({ run, state, follow }, { ask = get } = {}) {
    super();
    this.run = run;
    this.state = state;
    this.follow = follow;
    this.ask = ask;
    this.refresh = new Refresh((signal) => this.#load(signal), { min: RENEWED_MS, max: 10_000 });
    state.on("by", () => {
      this.#look();
      this.emit("change");
    });
    follow.on("change", () => this.#look());
    follow.on("newest", () => this.asked !== "step" && !follow.paused && this.refresh.soon());
    this.#look();
  }

  /** What the reader chose. @returns {By} */
  get asked() {
    const by = this.state.optional("by");
    return by === "time" || by === "samples" ? by : "step";
  }

  /** Whether captured steps stand side by side, with a mark where steps were left out. */
  get packs() {
    return this.state.optional("by") === PACKED;
  }

  /** What the axis is of. @returns {By} */
  get by() {
    return this.#knots && this.#of === this.asked ? this.#of : "step";
  }

  #look() {
    if (this.run === null) return;
    if (this.asked !== "step") void this.refresh.now();
    else if (this.set("step", null)) this.emit("change");
  }

  /** @param {AbortSignal} signal */
  async #load(signal) {
    const { asked, follow } = this;
    const span = follow.span;
    if (asked === "step" || !span) return;
    const answer = await this.ask("scalars", { run: this.run }, signal);
    const knots =
      asked === "time" ? await this.#times(answer.names, span, signal) : await this.#samples(answer.names, signal);
    signal.throwIfAborted();
    if (asked === this.asked && this.set(asked, knots, knots ? "" : WHY[asked])) this.emit("change");
  }

  /** @param {string[]} names @param {[number, number]} span @param {AbortSignal} signal */
  async #times(names, [from, to], signal) {
    if (!names.includes(TIME)) return null;
    const query = { run: this.run, name: TIME, from, to, points: POINTS };
    return timeKnots(pointsOf((await this.ask("scalars", query, signal)).series[0]));
  }

  /** Of the whole run, because they are added up. @param {string[]} names @param {AbortSignal} signal */
  async #samples(names, signal) {
    if (!names.includes(SAMPLES_RATE) || !names.includes(STEPS_RATE)) return null;
    const query = { run: this.run, name: [SAMPLES_RATE, STEPS_RATE], points: POINTS };
    const { series } = await this.ask("scalars", query, signal);
    const [rates, paces] = series.map(pointsOf);
    return sampleKnots(rates, paces, this.follow.first, this.follow.newest ?? 0);
  }

  /** Returns whether that is new. @param {By} of @param {Knots | null} knots
   * @param {string} [why] the axis isn't what the reader chose */
  set(of, knots, why = "") {
    const before = JSON.stringify([this.#of, this.#knots, this.why]);
    [this.#of, this.#knots, this.why] = [of, knots, why];
    return JSON.stringify([of, knots, why]) !== before;
  }

  /** Where a step stands on the axis. @param {number} step */
  place(step) {
    return this.by === "step" || !this.#knots ? step : valueAt(this.#knots, step);
  }

  /** The step at a place of the axis. @param {number} place */
  step(place) {
    return this.by === "step" || !this.#knots ? place : stepOf(this.#knots, place);
  }

  /** Ticks between two places. @param {number} from @param {number} to @param {number} many */
  ticks(from, to, many) {
    return this.by === "time" ? timeTicks(from, to, many) : countTicks(from, to, many);
  }

  /** What a tick at a step says. @param {number} step @param {[number, number]} span the steps on the axis */
  text(step, span) {
    if (this.by === "step") return count(step);
    const size = this.place(span[1]) - this.place(span[0]);
    return this.by === "time" ? timeText(this.place(step), size / 10) : count(Math.round(this.place(step)));
  }

  /** The text next to "step 120" in a tooltip: empty if the axis shows steps. @param {number} step */
  beside(step) {
    if (this.by === "step") return "";
    return this.by === "time" ? timeText(this.place(step), 1) : counted(Math.round(this.place(step)), "sample");
  }

  /** The name of the axis. @returns {string} */
  get title() {
    return this.by === "step" ? "step" : this.by;
  }
}

/** @param {{first_step: number[], last_step: number[], min: unknown[], max: unknown[], mean: unknown[]}} series
 * @returns {Points} */
export function pointsOf({ first_step, last_step, min, max, mean }) {
  const [low, high, middle] = [min, max, mean].map((values) => values.map(numberOf));
  return { first_step, last_step, min: low, max: high, mean: middle };
}
