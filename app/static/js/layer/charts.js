/** The charts of a module, and the series that they show. */
import { get } from "../api.js";
import { byId, h, tell } from "../dom.js";
import { stepWords } from "../format.js";
import { MAX_POINTS } from "../limits.js";
import { CurveFeed, lineIn, POINTS } from "../live/curve.js";
import { failedWords } from "../live/refresh.js";
import { PlannedCharts } from "../plot/plot.js";
import { leadOf } from "../plot/thin.js";
import { linesOf } from "./plan.js";

/** @import { Series } from "../answers.js"
 * @import { Plan } from "./plan.js"
 * @import { Page } from "../page.js"
 * @import { Line } from "../plot/thin.js" */

const SMOOTH_POINTS = 4000; // smoothing needs unmerged points

/** @typedef {{taps: (number | null)[], stats: string[]}} Ask */

export class SeriesFeed extends CurveFeed {
  /** @type {Ask[]} */
  asks = [];
  #merged = false;

  /** @param {Page} page */
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

  /** @param {number | null} tap @param {string} stat @returns {Line | null} */
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

/** @extends {PlannedCharts<Plan>} */
export class Charts extends PlannedCharts {
  /** @param {Page} page @param {HTMLElement} [place] @param {boolean} [pins] whether charts can be pinned */
  constructor(page, place = byId("charts"), pins = true) {
    super(page, place, (plan) => ({
      y: plan.y,
      captured: true,
      query: () => ({ path: "series", query: { ...queryOf(plan), ...page.follow.shown, points: MAX_POINTS } }),
      linesOf: (series) => linesOf(plan, (tap, stat) => lineIn(series, stat, tap)),
      // Shares are computed here, of several stats.
      pins: pins && plan.parts.every(({ make }) => make !== "shares"),
    }));
    /** One sentence instead of four if there is no data. */
    this.empty = h("p", { class: "empty", role: "status" }, "Loading\u2026");
    this.place.append(this.empty);
    this.place.hidden = false;
    this.feed = new SeriesFeed(page);
    this.feed.on("data", () => this.#draw());
    this.feed.on("error", (error) => this.fail(error));
  }

  /** Says why there are no charts, or no lines in them. @override @param {unknown} error */
  fail(error) {
    super.fail(error);
    if (!this.shown.length) this.empty.textContent = failedWords(error);
  }

  /** @param {Plan[]} plans @param {string} [none] in the place of the charts, if there are none */
  show(plans, none = "") {
    if (this.plan(plans)) this.empty.hidden = true;
    if (none) tell(this.empty, none);
    this.place.hidden = !plans.length && !none;
    this.feed.show(plans.map((plan) => ({ taps: tapsOf(plan), stats: plan.stats })));
  }

  #draw() {
    if (!this.shown.length) return; // it isn't known yet what there is to draw
    const { span } = this.page.follow;
    const words = span ? `Nothing was captured in ${stepWords(...span)}.` : "No steps.";
    const nothing = !this.draw((plan) => linesOf(plan, (tap, stat) => this.feed.find(tap, stat)), words);
    this.empty.textContent = nothing ? words : "";
    this.empty.hidden = !nothing;
    for (const { figure } of this.shown) figure.hidden = nothing;
  }
}

/** @param {Plan} plan */
function tapsOf(plan) {
  return [...new Set(plan.parts.map(({ tap }) => tap.number))];
}

/** What a plan asks the server for. @param {Plan} plan */
export function queryOf({ parts, stats }) {
  return { tap: [...new Set(parts.map(({ tap }) => tap.label))], stat: stats.join(",") };
}
