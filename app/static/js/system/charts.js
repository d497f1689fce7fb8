/** The charts of the machine, as the server plans them (app/pages/views/overview.py). */
import { get } from "../api.js";
import { byId } from "../dom.js";
import { stepWords } from "../format.js";
import { MAX_POINTS, MAX_SCALARS } from "../limits.js";
import { CurveFeed, lineIn } from "../live/curve.js";
import { PlannedCharts } from "../plot/plot.js";

/** @import { Range } from "../live/curve.js"
 * @import { Page } from "../page.js"
 * @import { Line } from "../plot/thin.js" */

/** @typedef {{name: string, words: string, color?: string}} Part a line: the scalar, and what the legend calls it
 * @typedef {{id: string, title: string, unit: number, parts: Part[]}} Plan a chart; values are divided by `unit` */

/** The line of a scalar in the units of its chart. @param {Line} line @param {string} words
 * @param {number} unit @param {string} [color] @returns {Line} */
export function lineOf(line, words, unit, color) {
  const scaled = (/** @type {ArrayLike<number> | undefined} */ values) => values && Array.from(values, (v) => v / unit);
  const values = { mean: scaled(line.mean), min: scaled(line.min), max: scaled(line.max) };
  return { ...line, ...(color ? { color } : {}), name: words, ...values };
}

/** @extends {PlannedCharts<Plan>} */
export class SystemCharts extends PlannedCharts {
  /** @param {Page} page */
  constructor(page) {
    super(page, byId("charts"), (plan) => {
      const name = plan.parts.map((part) => part.name);
      return {
        y: { title: plan.title, fixed: true, low: 0 },
        query: () => ({ path: "scalars", query: { name, ...page.follow.shown, points: MAX_POINTS } }),
        linesOf: (series) => linesOf(plan, (each) => lineIn(series, each)),
        legend: plan.parts.length > 1,
      };
    });
    this.feed = new SystemFeed(page);
    this.feed.on("data", () => this.#draw());
    this.feed.on("error", (error) => this.fail(error));
  }

  /** @param {Plan[]} plans of all sampled scalars; a GPU may come later */
  show(plans) {
    if (this.plan(plans)) this.feed.show(plans.flatMap(({ parts }) => parts.map(({ name }) => name)));
  }

  #draw() {
    const { span } = this.page.follow;
    const words = span ? `Nothing was sampled in ${stepWords(...span)}: show more steps.` : "No steps.";
    this.draw((plan) => linesOf(plan, (name) => this.feed.find(name)), words);
  }
}

/** @param {Plan} plan @param {(name: string) => Line | null} find */
export function linesOf(plan, find) {
  return plan.parts.flatMap(({ name, words, color }) => {
    const found = find(name);
    return found?.first.length ? [lineOf(found, words, plan.unit, color)] : [];
  });
}

const EVERY_MS = 2000; // the machine is sampled no more often

class SystemFeed extends CurveFeed {
  /** @type {string[]} */
  #names = [];

  /** @param {Page} page */
  constructor(page) {
    const request = (/** @type {Range} */ range, /** @type {AbortSignal} */ signal) =>
      this.#parts().map((name) => get("scalars", { run: page.run, name, ...range }, signal));
    super(page, request, ({ name }) => name, { min: EVERY_MS });
    page.follow.on("change", () => this.load());
    // While no step ends, samples are added to the last one, which is news of the run but no newer step.
    page.events.on("run", () => page.follow.paused || this.refresh.soon());
  }

  /** The names, as many as one question takes at a time. */
  #parts() {
    return Array.from({ length: Math.ceil(this.#names.length / MAX_SCALARS) }, (_, place) =>
      this.#names.slice(place * MAX_SCALARS, (place + 1) * MAX_SCALARS),
    );
  }

  /** @param {string[]} names */
  show(names) {
    this.#names = names;
    this.load();
  }

  /** @param {string} name @returns {Line | null} */
  find(name) {
    return this.curves.get(name)?.line(name) ?? null;
  }
}
