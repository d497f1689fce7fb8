// @ts-check
/** The series of a module's charts: everything at first, then only new points while the page follows. */
import { get } from "../api.js";
import { Emitter } from "../emitter.js";
import { Curve, lineIn } from "../live/curve.js";
import { Refresh } from "../live/refresh.js";
import { leadOf } from "../plot/smooth.js";

const POINTS = 1000;
const SMOOTH_POINTS = 4000; // smoothing needs unmerged points
const MAX_GROWTH = 3; // times as many, until a curve is loaded whole again

/** @typedef {import("../answers.js").Series} Series */
/** @typedef {{taps: (number | null)[], stats: string[]}} Ask */

/** Emits "data" when the curves have changed, "error" with the server's error. */
export class SeriesFeed extends Emitter {
  /** @type {Ask[]} */
  asks = [];
  /** @type {Map<string, Curve>} */
  #curves = new Map();
  /** The loaded steps; null if everything must be loaded again. @type {[number, number] | null} */
  #loaded = null;
  #merged = false;
  /** What was asked for of one step: charts share it. @type {{key: string, series: Promise<Series[]>} | null} */
  #held = null;

  /** @param {import("../page.js").Page} page */
  constructor(page) {
    super();
    this.page = page;
    const ready = () => this.#loaded === null || !page.follow.paused;
    this.refresh = new Refresh((signal) => this.#ask(signal), { min: 500, share: 1, ready });
    page.follow.on("change", () => this.#look());
    page.follow.on("newest", () => page.follow.paused || this.refresh.soon());
    page.state.on("smooth", () => this.load());
  }

  /** @param {Ask[]} asks */
  show(asks) {
    this.asks = asks;
    this.load();
  }

  /** @param {number | null} tap @param {string} stat @returns {import("../plot/thin.js").Line | null} */
  find(tap, stat) {
    return this.#curves.get(`${tap} ${stat}`)?.line(stat) ?? null;
  }

  /** The lines of one step, in which no other one is. @param {number} step
   * @returns {Promise<(tap: number | null, stat: string) => import("../plot/thin.js").Line | null>} */
  async at(step) {
    const key = JSON.stringify([step, this.asks]);
    if (this.#held?.key !== key) this.#held = { key, series: this.#seriesOf(step) };
    const found = await this.#held.series;
    return (tap, stat) => lineIn(found, stat, tap);
  }

  /** @param {number} step */
  async #seriesOf(step) {
    const at = { run: this.page.run, from: step, to: step, points: 1 };
    const asked = this.asks.map(({ taps, stats }) => get("series", { ...at, tap: taps, stat: stats.join(",") }));
    return (await Promise.all(asked)).flatMap((answer) => answer.series);
  }

  /** Loads everything again. */
  load() {
    this.#loaded = null;
    void this.refresh.now();
  }

  /** The shown steps have changed; the loaded points may suffice. */
  #look() {
    const { span, paused } = this.page.follow;
    const [from, to] = this.#loaded ?? [Infinity, -Infinity];
    if (!paused || !span || this.#merged || span[0] < from || span[1] > to) this.load();
    else this.emit("data");
  }

  get #halfLife() {
    return Number(this.page.state.optional("smooth")) || 0;
  }

  /** The points of a curve that is loaded whole. */
  get #points() {
    return this.#halfLife ? SMOOTH_POINTS : POINTS;
  }

  /** @param {AbortSignal} signal */
  async #ask(signal) {
    const { span, paused } = this.page.follow;
    if (!span || !this.asks.length) return this.emit("data");
    const whole = this.#loaded === null;
    const first = Math.max(0, span[0] - leadOf(this.#halfLife));
    const from = whole ? first : this.#lastStep;
    const to = whole && paused ? span[1] : null;
    const points = whole ? this.#points : POINTS;
    try {
      const answers = await Promise.all(
        this.asks.map(({ taps, stats }) =>
          get("series", { run: this.page.run, tap: taps, stat: stats.join(","), from, to, points }, signal),
        ),
      );
      signal.throwIfAborted();
      if (whole) this.#curves.clear();
      for (const series of answers.flatMap((answer) => answer.series)) this.#take(series, whole);
      if (!whole) for (const curve of this.#curves.values()) curve.forget(first);
      this.#loaded = [Math.max(this.#loaded?.[0] ?? first, first), span[1]];
      // A whole run that is followed grows without end: it is loaded again, in fewer points.
      if (!whole && [...this.#curves.values()].some(({ length }) => length > MAX_GROWTH * this.#points))
        this.#loaded = null;
      this.emit("data");
    } catch (error) {
      if (!signal.aborted) this.emit("error", error);
      throw error;
    }
  }

  /** The first step that all curves may lack; their last point may be incomplete. */
  get #lastStep() {
    const firsts = [...this.#curves.values()].map((curve) => curve.line("").first);
    const last = Math.min(...firsts.map((first) => first[first.length - 1] ?? Infinity));
    return Number.isFinite(last) ? last : (this.#loaded?.[0] ?? 0);
  }

  /** @param {Series} series @param {boolean} whole */
  #take(series, whole) {
    const key = `${series.tap?.number ?? null} ${series.name}`;
    const curve = this.#curves.get(key) ?? new Curve();
    this.#curves.set(key, curve);
    curve.take(series, whole);
    if (whole) this.#merged = this.#merged && this.#curves.size > 1;
    this.#merged ||= series.first_step.some((first, place) => first !== series.last_step[place]);
  }
}
