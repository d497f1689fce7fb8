// @ts-check
/** The charts of a module. A chart stays as long as its plan does. */
import { byId, h } from "../dom.js";
import { stepWords } from "../format.js";
import { MAX_POINTS } from "../limits.js";
import { failedWords } from "../live/failed.js";
import { LineChart } from "../plot/index.js";
import { linesOf } from "./lines.js";
import { SeriesFeed } from "./seriesfeed.js";

/** @typedef {import("./plan.js").Plan} Plan */

export class Charts {
  /** @type {{plan: Plan, chart: LineChart, figure: HTMLElement}[]} */
  #shown = [];

  /** @param {import("../page.js").Page} page */
  constructor(page) {
    this.page = page;
    this.place = byId("charts");
    /** One sentence instead of four if there is no data. */
    this.empty = h("p", { class: "empty", role: "status" }, "Loading\u2026");
    this.place.append(this.empty);
    this.place.hidden = false;
    this.feed = new SeriesFeed(page);
    this.feed.on("data", () => this.#draw());
    this.feed.on("error", (error) => this.fail(error));
  }

  /** Says why there are no charts, or no lines in them. @param {unknown} error */
  fail(error) {
    for (const { chart } of this.#shown) chart.fail(error);
    if (!this.#shown.length) this.empty.textContent = failedWords(error);
  }

  /** @param {Plan[]} plans */
  show(plans) {
    this.place.hidden = !plans.length;
    if (JSON.stringify(plans) !== JSON.stringify(this.#shown.map(({ plan }) => plan))) {
      for (const { chart, figure } of this.#shown) {
        chart.remove();
        figure.remove();
      }
      this.#shown = plans.map((plan) => this.#make(plan));
      this.empty.hidden = true;
    }
    this.feed.show(plans.map((plan) => ({ taps: tapsOf(plan), stats: plan.stats })));
  }

  /** @param {Plan} plan */
  #make(plan) {
    const figure = h(
      "figure",
      { class: "card chart", id: `chart-${plan.id}` },
      h("header", {}, h("h2", {}, plan.title)),
      h("div", { class: "plot" }),
    );
    this.place.append(figure);
    return {
      plan,
      figure,
      chart: new LineChart(this.page, figure, {
        title: plan.title,
        y: plan.y,
        query: () => this.#query(plan),
        at: async (step) => linesOf(plan, await this.feed.at(step)),
        // Shares are computed here, of several stats.
        pins: plan.parts.every(({ make }) => make !== "shares"),
      }),
    };
  }

  /** @param {Plan} plan */
  #query(plan) {
    const { shown } = this.page.follow;
    return { path: "series", query: { tap: labelsOf(plan), stat: plan.stats.join(","), ...shown, points: MAX_POINTS } };
  }

  #draw() {
    if (!this.#shown.length) return; // it isn't known yet what there is to draw
    const { span } = this.page.follow;
    const words = span ? `Nothing was captured in ${stepWords(...span)}.` : "No steps.";
    const lines = this.#shown.map(({ plan }) => linesOf(plan, (tap, stat) => this.feed.find(tap, stat)));
    const nothing = lines.every((some) => !some.length);
    this.empty.textContent = nothing ? words : "";
    this.empty.hidden = !nothing;
    this.#shown.forEach(({ chart, figure }, place) => {
      figure.hidden = nothing;
      if (lines[place].length) chart.show(lines[place]);
      else chart.say(words);
    });
  }
}

/** @param {Plan} plan */
function tapsOf(plan) {
  return [...new Set(plan.parts.map(({ tap }) => tap.number))];
}

/** @param {Plan} plan */
function labelsOf(plan) {
  return [...new Set(plan.parts.map(({ tap }) => tap.label))];
}
