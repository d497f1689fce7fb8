// @ts-check
/** What stands on the axis of the charts: steps, times, or samples. One choice for all pages, in the address. */
import { get, numberOf } from "../api.js";
import { Emitter } from "../emitter.js";
import { count, counted } from "../format.js";
import { Refresh } from "../live/refresh.js";
import { SAMPLES_RATE, STEPS_RATE, TIME } from "../vocabulary.js";
import { countTicks, sampleKnots, stepOf, timeKnots, timeText, timeTicks, valueAt } from "./knots.js";

const POINTS = 1000;
const RENEWED_MS = 1000;

/** @typedef {"step" | "time" | "samples"} By */

const WHY = {
  time: "The times of these steps are unknown, so the x-axis shows steps.",
  samples: "The batch size is unknown, so the x-axis shows steps.",
};

/** Emits "change" when steps stand elsewhere. */
export class Clock extends Emitter {
  /** @type {import("./knots.js").Knots | null} */
  #knots = null;
  /** What the knots are of. @type {By} */
  #of = "step";
  /** Why the axis is not what the reader chose. */
  why = "";

  /** @param {{run: string | null, state: import("../state.js").State, follow: import("../follow.js").Follow}} page
   * @param {{ask?: (path: "scalars", query: Record<string, any>, signal: AbortSignal) => Promise<any>}} [world] */
  constructor({ run, state, follow }, { ask = get } = {}) {
    super();
    this.run = run;
    this.state = state;
    this.follow = follow;
    this.ask = ask;
    this.refresh = new Refresh((signal) => this.#load(signal), { min: RENEWED_MS, max: 10_000 });
    state.on("by", () => this.#look());
    follow.on("change", () => this.#look());
    follow.on("newest", () => this.asked !== "step" && !follow.paused && this.refresh.soon());
    this.#look();
  }

  /** What the reader chose. @returns {By} */
  get asked() {
    const by = this.state.optional("by");
    return by === "time" || by === "samples" ? by : "step";
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
    const known = await this.ask("scalars", { run: this.run }, signal);
    const knots =
      asked === "time" ? await this.#times(known.names, span, signal) : await this.#samples(known.names, signal);
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

  /** Returns whether that is new. @param {By} of @param {import("./knots.js").Knots | null} knots
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
 * @returns {import("./knots.js").Points} */
export function pointsOf({ first_step, last_step, min, max, mean }) {
  const [low, high, middle] = [min, max, mean].map((values) => values.map(numberOf));
  return { first_step, last_step, min: low, max: high, mean: middle };
}
