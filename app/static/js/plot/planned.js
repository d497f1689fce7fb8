// @ts-check
/** Charts of lines by their plans. A chart stays as long as its plan does. */
import { h } from "../dom.js";
import { LineChart } from "./index.js";

/** @template {{id: string, title: string}} P */
export class PlannedCharts {
  /** @type {{plan: P, chart: LineChart, figure: HTMLElement}[]} */
  shown = [];

  /** @param {import("../page.js").Page} page @param {HTMLElement} place
   * @param {(plan: P) => Omit<import("./index.js").ChartOptions, "title">} optionsOf */
  constructor(page, place, optionsOf) {
    this.page = page;
    this.place = place;
    this.optionsOf = optionsOf;
  }

  /** Makes the charts. @param {P[]} plans @returns {boolean} whether they are others than before */
  plan(plans) {
    this.place.hidden = !plans.length;
    if (JSON.stringify(plans) === JSON.stringify(this.shown.map(({ plan }) => plan))) return false;
    for (const { chart, figure } of this.shown) {
      chart.remove();
      figure.remove();
    }
    this.shown = plans.map((plan) => this.#make(plan));
    return true;
  }

  /** @param {P} plan */
  #make(plan) {
    const { id, title } = plan;
    const [heading, plot] = [h("header", {}, h("h2", {}, title)), h("div", { class: "plot" })];
    const figure = h("figure", { class: "card chart", id: `chart-${id}` }, heading, plot);
    this.place.append(figure);
    return { plan, figure, chart: new LineChart(this.page, figure, { title, ...this.optionsOf(plan) }) };
  }

  /** @param {(plan: P) => import("./thin.js").Line[]} linesOf
   * @param {string} words in the place of a chart without lines @returns {boolean} whether there is any line */
  draw(linesOf, words) {
    const drawn = this.shown.map(({ plan, chart }) => {
      const lines = linesOf(plan);
      if (lines.length) chart.show(lines);
      else chart.say(words);
      return lines.length > 0;
    });
    return drawn.some(Boolean);
  }

  /** Says in charts without lines why there are none. @param {unknown} error */
  fail(error) {
    for (const { chart } of this.shown) chart.fail(error);
  }
}
