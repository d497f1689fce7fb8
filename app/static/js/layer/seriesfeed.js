// @ts-check
/** The series of a module's charts. */
import { get } from "../api.js";
import { CurveFeed, POINTS } from "../live/curvefeed.js";
import { leadOf } from "../plot/smooth.js";

const SMOOTH_POINTS = 4000; // smoothing needs unmerged points

/** @typedef {import("../answers.js").Series} Series */
/** @typedef {{taps: (number | null)[], stats: string[]}} Ask */

export class SeriesFeed extends CurveFeed {
  /** @type {Ask[]} */
  asks = [];
  #merged = false;

  /** @param {import("../page.js").Page} page */
  constructor(page) {
    super(
      page,
      (range, signal) =>
        this.asks.map(({ taps, stats }) =>
          get("series", { run: page.run, tap: taps, stat: stats.join(","), ...range }, signal),
        ),
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
