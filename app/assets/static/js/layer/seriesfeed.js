// @ts-check
/** The series of a module's charts. */
import { get } from "../api.js";
import { lineIn } from "../live/curve.js";
import { CurveFeed, POINTS } from "../live/curvefeed.js";
import { leadOf } from "../plot/smooth.js";

const SMOOTH_POINTS = 4000; // smoothing needs unmerged points

/** @typedef {import("../answers.js").Series} Series */
/** @typedef {{taps: (number | null)[], stats: string[]}} Ask */

export class SeriesFeed extends CurveFeed {
  /** @type {Ask[]} */
  asks = [];
  #merged = false;
  /** What was asked for of one step: charts share it. @type {{key: string, series: Promise<Series[]>} | null} */
  #held = null;

  /** @param {import("../page.js").Page} page */
  constructor(page) {
    super(
      page,
      (range, signal) => this.#request(range, signal),
      ({ tap, name }) => `${tap?.number ?? null} ${name}`,
      { min: 500, share: 1 },
    );
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
    return this.curves.get(`${tap} ${stat}`)?.line(stat) ?? null;
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
    const answers = await Promise.all(this.#request({ from: step, to: step, points: 1 }));
    return answers.flatMap((answer) => answer.series);
  }

  /** @param {import("../live/curvefeed.js").Range} range @param {AbortSignal} [signal] */
  #request(range, signal) {
    const { run } = this.page;
    return this.asks.map(({ taps, stats }) =>
      get("series", { run, tap: taps, stat: stats.join(","), ...range }, signal),
    );
  }

  /** The shown steps have changed; the loaded points may suffice. */
  #look() {
    const { span, paused } = this.page.follow;
    const [from, to] = this.loaded ?? [Infinity, -Infinity];
    if (!paused || !span || this.#merged || span[0] < from || span[1] > to) this.load();
    else this.emit("data");
  }

  /** @override */
  get extent() {
    const halfLife = Number(this.page.state.optional("smooth")) || 0;
    return { points: halfLife ? SMOOTH_POINTS : POINTS, lead: leadOf(halfLife) };
  }

  /** @override @param {Series} series @param {boolean} whole */
  take(series, whole) {
    super.take(series, whole);
    if (whole) this.#merged = this.#merged && this.curves.size > 1;
    this.#merged ||= series.first_step.some((first, place) => first !== series.last_step[place]);
  }
}
