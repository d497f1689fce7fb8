/** What stands on the axis of charts with lines of several runs: steps, the time since each run's start, or samples.
 * Each run has its own pace. The steps of the axis are those of the run that reaches farthest; points of the others
 * stand at the step that this one had reached after as much time, or as many samples. */
import { get } from "../api.js";
import { count } from "../format.js";
import { SAMPLES_RATE, STEPS_RATE, TIME } from "../vocabulary.js";
import { Clock, elapsedText, elapsedTicks, pointsOf, sampleKnots, stepOf, timeKnots, valueAt } from "./clock.js";

/** @import { Page } from "../page.js"
 * @import { Line } from "../plot/thin.js"
 * @import { Knots } from "./clock.js" */

/** @typedef {Pick<import("../answers.js").Run, "id" | "started_s" | "first_step" | "newest_step">} Run */

const POINTS = 1000;
const WORDS = { step: "step", time: "time since the start", samples: "samples" };

/** Emits "learned". It redraws no chart: lines are shown again when they have their places on the axis. */
export class RunsClock extends Clock {
  /** Of each run, as far as they are known. @type {Map<string, Knots>} */
  #knots = new Map();

  /** @param {Page} page of no run
   * @param {{ask?: (path: "overlay", query: Record<string, any>, signal: AbortSignal) => Promise<any>}} [world] */
  constructor(page, { ask = get } = {}) {
    super({ run: null, state: page.state, follow: page.follow });
    this.askRuns = ask;
  }

  /** Shows steps, although the reader may have chosen something else. @param {string} why */
  stay(why) {
    this.set("step", null, this.asked === "step" ? "" : why);
    this.emit("learned");
  }

  /** Learns the paces of runs, if the axis needs them. @param {Run[]} runs @param {AbortSignal} signal */
  async learn(runs, signal) {
    const { asked } = this;
    if (asked === "step") return this.stay("");
    const knots = asked === "time" ? await this.#times(runs, signal) : await this.#samples(runs, signal);
    signal.throwIfAborted();
    if (asked !== this.asked) return;
    this.#knots = knots;
    const ends = [...knots.values()].sort((one, other) => (other.values.at(-1) ?? 0) - (one.values.at(-1) ?? 0));
    this.set(asked, ends[0] ?? null, whyNot(asked, runs.length, knots.size));
    this.emit("learned");
  }

  /** @param {Run[]} runs @param {AbortSignal} signal @returns {Promise<Map<string, Knots>>} */
  async #times(runs, signal) {
    const lines = await this.#ask(runs, TIME, signal);
    return collect(runs, ({ id, started_s: started }) => {
      const knots = lines.has(id) ? timeKnots(pointsOf(lines.get(id))) : null;
      if (!knots) return null;
      const [first] = knots.values;
      const start = Number(started) > 0 && Number(started) <= first ? Number(started) : first;
      return { steps: knots.steps, values: knots.values.map((value) => value - start) };
    });
  }

  /** @param {Run[]} runs @param {AbortSignal} signal @returns {Promise<Map<string, Knots>>} */
  async #samples(runs, signal) {
    const [rates, paces] = await Promise.all([SAMPLES_RATE, STEPS_RATE].map((name) => this.#ask(runs, name, signal)));
    return collect(runs, ({ id, first_step: first, newest_step: newest }) => {
      const [rate, pace] = [rates.get(id), paces.get(id)];
      return rate && pace ? sampleKnots(pointsOf(rate), pointsOf(pace), first ?? 0, newest ?? 0) : null;
    });
  }

  /** @param {Run[]} runs @param {string} scalar @param {AbortSignal} signal @returns {Promise<Map<string, any>>} */
  async #ask(runs, scalar, signal) {
    if (!runs.length) return new Map();
    const query = { runs: runs.map(({ id }) => id).join(), scalar, points: POINTS };
    const { lines } = await this.askRuns("overlay", query, signal);
    return new Map(lines.map((/** @type {{run: string}} */ line) => [line.run, line]));
  }

  /** The line of a run on this axis; null if its place is unknown. @param {Line} line @param {string} run */
  moved(line, run) {
    if (this.by === "step") return line;
    const knots = this.#knots.get(run);
    if (!knots) return null;
    const place = (/** @type {number} */ step) => this.step(valueAt(knots, step));
    const { first, last } = line;
    return { ...line, first: Array.from(first, place), last: Array.from(last, place), steps: { first, last } };
  }

  /** The steps of a run that the page shows, as a query. @param {string} run @returns {{from?: number, to?: number}} */
  stepsOf(run) {
    const { values } = this.follow;
    const knots = this.#knots.get(run);
    const { from, to } = values;
    if (this.by === "step" || !knots || from === undefined || to === undefined) return values;
    const [first, last] = [from, to].map((step) => stepOf(knots, this.place(step)));
    return { from: Math.max(0, Math.floor(first)), to: Math.max(0, Math.ceil(last)) };
  }

  /** @override @param {number} from @param {number} to @param {number} many */
  ticks(from, to, many) {
    return this.by === "time" ? elapsedTicks(from, to, many) : super.ticks(from, to, many);
  }

  /** @override @param {number} step @param {[number, number]} span */
  text(step, span) {
    if (this.by !== "time") return super.text(step, span);
    return elapsedText(this.place(step), (this.place(span[1]) - this.place(span[0])) / 10);
  }

  /** @override @param {number} step */
  beside(step) {
    return this.by === "time" ? elapsedText(this.place(step), 1) : super.beside(step);
  }

  /** @override */
  get title() {
    return WORDS[this.by];
  }
}

/** @param {Run[]} runs @param {(run: Run) => Knots | null} knotsOf @returns {Map<string, Knots>} */
function collect(runs, knotsOf) {
  const knotsByRun = new Map();
  for (const run of runs) {
    const knots = knotsOf(run);
    if (knots) knotsByRun.set(run.id, knots);
  }
  return knotsByRun;
}

/** @param {"time" | "samples"} by @param {number} many runs @param {number} known */
function whyNot(by, many, known) {
  const what = by === "time" ? "The times" : "The batch sizes";
  if (!known) return `${what} of these runs are unknown, so the x-axis shows steps.`;
  return known < many ? `${what} of ${count(many - known)} of ${count(many)} runs are unknown: they have no line.` : "";
}
