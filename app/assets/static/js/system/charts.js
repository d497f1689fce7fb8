// @ts-check
/** The charts of the System page. A chart stays as long as its plan does. */

import { get } from "../api.js";
import { byId, h } from "../dom.js";
import { stepWords } from "../format.js";
import { MAX_POINTS, MAX_SCALARS } from "../limits.js";
import { lineIn } from "../live/curve.js";
import { CurveFeed } from "../live/curvefeed.js";
import { LineChart } from "../plot/index.js";
import { lineOf, plansOf } from "./plan.js";

export class SystemCharts {
  /** @type {{plan: import("./plan.js").Plan, chart: LineChart, figure: HTMLElement}[]} */
  #shown = [];
  #names = "";

  /** @param {import("../page.js").Page} page */
  constructor(page) {
    this.page = page;
    this.place = byId("charts");
    this.feed = new SystemFeed(page);
    this.feed.on("data", () => this.#draw());
    this.feed.on("error", (error) => {
      for (const { chart } of this.#shown) chart.fail(error);
    });
  }

  /** @param {string[]} names of all sampled scalars; a GPU may come later */
  show(names) {
    if (names.join() === this.#names) return;
    this.#names = names.join();
    for (const { chart, figure } of this.#shown) {
      chart.remove();
      figure.remove();
    }
    const plans = plansOf(names);
    this.#shown = plans.map((plan) => this.#make(plan));
    this.place.hidden = !plans.length;
    this.feed.show(plans.flatMap(({ parts }) => parts.map(({ name }) => name)));
  }

  /** @param {import("./plan.js").Plan} plan */
  #make(plan) {
    const figure = h(
      "figure",
      { class: "card chart", id: `chart-${plan.id}` },
      h("header", {}, h("h2", {}, plan.title)),
      h("div", { class: "plot" }),
    );
    this.place.append(figure);
    const names = plan.parts.map((part) => part.name);
    const query = () => ({
      path: "scalars",
      query: { run: this.page.run, name: names, ...this.page.follow.shown, points: MAX_POINTS },
    });
    const y = { title: plan.title, fixed: true, low: 0 };
    const at = async (/** @type {number} */ step) => linesOf(plan, await this.feed.at(names, step));
    return {
      plan,
      figure,
      chart: new LineChart(this.page, figure, { title: plan.title, y, query, at, legend: plan.parts.length > 1 }),
    };
  }

  #draw() {
    const { span } = this.page.follow;
    const words = span ? `Nothing was sampled in ${stepWords(...span)}: show more steps.` : "No steps.";
    for (const { plan, chart } of this.#shown) {
      const lines = linesOf(plan, (name) => this.feed.find(name));
      if (lines.length) chart.show(lines);
      else chart.say(words);
    }
  }
}

/** @param {import("./plan.js").Plan} plan @param {(name: string) => import("../plot/thin.js").Line | null} find */
function linesOf(plan, find) {
  return plan.parts.flatMap(({ name, words, color }) => {
    const found = find(name);
    return found?.first.length ? [lineOf(found, words, plan.unit, color)] : [];
  });
}

const EVERY_MS = 2000; // the machine is sampled no more often

class SystemFeed extends CurveFeed {
  /** @type {string[]} */
  #names = [];

  /** @param {import("../page.js").Page} page */
  constructor(page) {
    const request = (/** @type {import("../live/curvefeed.js").Range} */ range, /** @type {AbortSignal} */ signal) =>
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

  /** @param {string} name @returns {import("../plot/thin.js").Line | null} */
  find(name) {
    return this.curves.get(name)?.line(name) ?? null;
  }

  /** The lines of one step, in which no other one is. @param {string[]} name @param {number} step
   * @returns {Promise<(name: string) => import("../plot/thin.js").Line | null>} */
  async at(name, step) {
    const { series } = await get("scalars", { run: this.page.run, name, from: step, to: step, points: 1 });
    return (each) => lineIn(series, each);
  }
}
