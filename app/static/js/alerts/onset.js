/** The values around an incident's first step, as the incident keeps them. */
import { get, numberOf } from "../api.js";
import { byId } from "../dom.js";
import { tapWords } from "../format.js";
import { Refresh } from "../live/refresh.js";
import { LineChart } from "../plot/plot.js";

/** @import { Evidence } from "../answers.js"
 * @import { Page } from "../page.js"
 * @import { YAxis } from "../plot/lines.js"
 * @import { Line } from "../plot/thin.js" */

/** Known even if no value is finite. */
const COUNTS = new Set(["nan", "inf", "zero"]);

/** One line for each tensor, the culprit first. Pure. @param {Evidence} evidence @param {string} stat @returns {Line[]}
 */
export function linesOf(evidence, stat) {
  const { taps, steps, stats } = evidence;
  return taps
    .map((tap, place) => {
      const seen = Array.from(steps.keys()).filter((row) => !Number.isNaN(numberOf(stats.count[row][place])));
      const column = (/** @type {string} */ name) => seen.map((row) => numberOf(stats[name][row][place]));
      const [nan, inf, values] = [column("nan"), column("inf"), column(stat)];
      const at = seen.map((row) => steps[row]);
      const bad = nan.map((many, row) => (COUNTS.has(stat) ? 0 : many + inf[row]));
      const mean = values.map((value, row) => (bad[row] ? NaN : value));
      const infinite = nan.map((many) => !many);
      const name = tapWords(tap);
      return { name, first: at, last: at, mean, nonfinite: bad, infinite, dashed: place > 0 };
    })
    .filter(({ first }) => first.length);
}

export class OnsetChart {
  /** @type {Evidence | null} */
  #evidence = null;
  /** @type {YAxis} */
  axis = { title: "", scale: "log" };

  /** @param {Page} page @param {string} id of the incident */
  constructor(page, id) {
    this.page = page;
    const figure = byId("chart");
    figure.hidden = false;
    const title = "Culprit and neighbors";
    this.chart = new LineChart(page, figure, { title, captured: true, y: this.axis, query: () => null });
    this.asking = new Refresh(async (signal) => {
      const path = /** @type {`incidents/${string}`} */ (`incidents/${encodeURIComponent(id)}`);
      const { evidence } = await get(path, { run: page.run }, signal);
      this.#evidence = evidence;
      this.show();
    });
    this.asking.now();
  }

  /** Asks for later steps, as long as there can be some. */
  renew() {
    if (!this.#isComplete) this.asking.soon();
  }

  get #isComplete() {
    const last = this.#evidence?.steps.at(-1) ?? 0;
    const onset = Number(this.page.state.defaults.step);
    return (this.#evidence?.steps.filter((step) => step > onset).length ?? 0) >= 50 && last > onset;
  }

  show() {
    if (!this.#evidence) return;
    const stat = this.page.state.get("stat");
    this.axis.title = stat;
    const lines = linesOf(this.#evidence, stat);
    const isAbove = lines.every(({ mean = [] }) => Array.from(mean).every((value) => !(value <= 0)));
    this.axis.scale = isAbove ? "log" : "symlog";
    if (lines.length) this.chart.show(lines, stat);
    else this.chart.say("None of these tensors was captured around the first step.");
  }
}
