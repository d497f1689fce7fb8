// @ts-check
/** The charts of a module. */
import { byId, h } from "../dom.js";
import { stepWords } from "../format.js";
import { MAX_POINTS } from "../limits.js";
import { lineIn } from "../live/curve.js";
import { failedWords } from "../live/failed.js";
import { PlannedCharts } from "../plot/planned.js";
import { linesOf } from "./lines.js";
import { SeriesFeed } from "./seriesfeed.js";

/** @typedef {import("./plan.js").Plan} Plan */

/** @extends {PlannedCharts<Plan>} */
export class Charts extends PlannedCharts {
  /** @param {import("../page.js").Page} page */
  constructor(page) {
    super(page, byId("charts"), (plan) => ({
      y: plan.y,
      query: () => ({ path: "series", query: { ...queryOf(plan), ...page.follow.shown, points: MAX_POINTS } }),
      linesOf: (series) => linesOf(plan, (tap, stat) => lineIn(series, stat, tap)),
      // Shares are computed here, of several stats.
      pins: plan.parts.every(({ make }) => make !== "shares"),
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

  /** @param {Plan[]} plans */
  show(plans) {
    if (this.plan(plans)) this.empty.hidden = true;
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
