// @ts-check
/** The values around an incident's first step, as they were kept when it happened. */
import { get } from "../api.js";
import { byId } from "../dom.js";
import { Refresh } from "../live/refresh.js";
import { LineChart } from "../plot/index.js";
import { linesOf } from "./evidence.js";

export class OnsetChart {
  /** @type {import("../answers.js").Evidence | null} */
  #evidence = null;
  /** @type {import("../plot/lines.js").YAxis} */
  axis = { title: "", scale: "log" };

  /** @param {import("../page.js").Page} page @param {string} id of the incident */
  constructor(page, id) {
    this.page = page;
    const figure = byId("chart");
    figure.hidden = false;
    this.chart = new LineChart(page, figure, { title: "Culprit and neighbors", y: this.axis, query: () => null });
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
    const lines = linesOf(this.#evidence, stat);
    const isAbove = lines.every(({ mean = [] }) => Array.from(mean).every((value) => !(value <= 0)));
    this.axis.scale = isAbove ? "log" : "symlog";
    if (lines.length) this.chart.show(lines, stat);
    else this.chart.say("None of these tensors was captured around the first step.");
  }
}
