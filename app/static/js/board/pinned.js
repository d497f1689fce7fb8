// @ts-check
/** A pinned chart of the board, for the page's run and steps. */
import { get } from "../api.js";
import { h } from "../dom.js";
import { isPassing } from "../live/failed.js";
import { Refresh } from "../live/refresh.js";
import { LineChart } from "../plot/index.js";
import { linesOf, scaleOf } from "./lines.js";
import { queryOf } from "./pin.js";

const POINTS = 1000;
const MAX_MS = 10_000;

export class PinnedChart {
  /** @param {import("../page.js").Page} page @param {HTMLElement} figure */
  constructor(page, figure) {
    const { name = "", path = "", query = "" } = figure.dataset;
    this.page = page;
    this.figure = figure;
    this.path = /** @type {"series" | "scalars"} */ (path);
    this.asked = queryOf(query);
    this.chart = new LineChart(page, figure, {
      title: name,
      y: { title: "", scale: scaleOf(String(this.asked.stat ?? "")) },
      query: () => ({ path: this.path, query: this.query }),
      linesOf,
      pins: false,
    });
    this.note = h("p", { class: "quiet small", role: "status" });
    figure.append(this.note);
    const unpin = figure.querySelector("[data-unpin]");
    if (unpin) this.chart.card.tools.append(unpin);
    const { plot } = this.chart.panel;
    this.refresh = new Refresh((signal) => this.#load(signal), {
      max: MAX_MS,
      ready: () => page.schedule.isSeen(plot),
      failed: (error) => this.chart.fail(error),
    });
    plot.addEventListener("seen", () => this.refresh.soon());
    this.ends = [
      page.follow.on("newest", () => page.follow.paused || this.refresh.soon()),
      page.follow.on("change", () => void this.refresh.now()),
    ];
    void this.refresh.now();
  }

  get query() {
    return { ...this.asked, run: this.page.run, ...this.page.follow.shown, points: POINTS };
  }

  /** @param {AbortSignal} signal */
  async #load(signal) {
    const lines = linesOf(await this.#ask(signal));
    if (lines.length) this.chart.show(lines);
    else this.chart.say("This run has no such values in these steps.");
  }

  /** A run may not have all layers of a chart. @param {AbortSignal} signal */
  async #ask(signal) {
    const { query } = this;
    const taps = /** @type {string[]} */ (this.asked.tap ?? []);
    try {
      const { series } = await get(this.path, query, signal);
      this.note.textContent = "";
      return series;
    } catch (error) {
      if (signal.aborted || isPassing(error) || taps.length < 2) throw error;
      const answers = await Promise.allSettled(taps.map((tap) => get(this.path, { ...query, tap }, signal)));
      const passing = answers.find((each) => each.status === "rejected" && isPassing(each.reason));
      if (passing?.status === "rejected") throw passing.reason;
      const there = answers.flatMap((each) => (each.status === "fulfilled" ? [each.value.series] : []));
      if (!there.length) throw error;
      const missing = taps.filter((_, place) => answers[place].status === "rejected");
      this.note.textContent = `Not in this run: ${missing.join(", ")}.`;
      return there.flat();
    }
  }

  remove() {
    this.refresh.close();
    for (const end of this.ends) end();
    this.chart.remove();
    this.figure.remove();
  }
}
