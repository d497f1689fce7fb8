// @ts-check
/** The charts of the System page. A chart stays as long as its plan does. */
import { byId, h } from "../dom.js";
import { count } from "../format.js";
import { MAX_POINTS } from "../limits.js";
import { LineChart } from "../plot/index.js";
import { SystemFeed } from "./feed.js";
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
    const query = () => {
      const { span } = this.page.follow;
      return {
        path: "scalars",
        query: { run: this.page.run, name: names, from: span?.[0], to: span?.[1], points: MAX_POINTS },
      };
    };
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
    const words = span
      ? `Nothing was sampled in steps ${count(span[0])} to ${count(span[1])}: show more steps.`
      : "No steps.";
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
