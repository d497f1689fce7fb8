/** A pinned chart of the board, or one of a scalar, for the page's run and steps. */
import { get } from "../api.js";
import { h } from "../dom.js";
import { tapWords, titled } from "../format.js";
import { extremesOf, fanOf, shortOf } from "../layer/plan.js";
import { lineOf } from "../live/curve.js";
import { isPassing, Refresh } from "../live/refresh.js";
import { LineChart } from "../plot/plot.js";
import { linesOf as machineLines } from "../system/charts.js";
import { queryOf } from "./pin.js";

/** @import { Series } from "../answers.js"
 * @import { Page } from "../page.js"
 * @import { Line } from "../plot/thin.js"
 * @import { Plan } from "../system/charts.js" */

const EXTREMES = ["mean", "min", "max"];
const POSITIVE = ["norm", "rms", "ratio"]; // over magnitudes

/** The scale of a chart as on the page that it is from. @param {string} stats @returns {"log" | "linear"} */
export function scaleOf(stats) {
  return stats.split(",").every((stat) => POSITIVE.includes(stat)) ? "log" : "linear";
}

/** @param {readonly Series[]} many @param {Plan | null} [plan] of a chart of the machine @returns {Line[]} */
export function linesOf(many, plan = null) {
  const lines = many.map((series) => ({ series, line: lineOf(series) })).filter(({ line }) => line.first.length);
  if (plan) return machineLines(plan, (name) => lines.find(({ series }) => series.name === name)?.line ?? null);
  const modules = new Set(lines.map(({ series }) => series.tap?.module));
  const taps = new Set(lines.map(({ series }) => series.tap?.label ?? ""));
  const stats = new Set(lines.map(({ series }) => series.name));
  const of = (/** @type {string} */ stat) => lines.find(({ series }) => series.name === stat)?.line ?? null;
  if (taps.size === 1 && stats.size === lines.length) {
    const fan = stats.has("p50") ? fanOf(of) : [];
    if (fan.length > 1) return fan;
    if (EXTREMES.every((stat) => stats.has(stat)) && stats.size === EXTREMES.length) return extremesOf(of);
  }
  return lines.map(({ series, line }) => ({
    ...line,
    name: nameOf(series, taps.size, stats.size, modules.size === 1),
  }));
}

/** @param {Series} series @param {number} taps @param {number} stats @param {boolean} inside one module */
function nameOf({ name, tap }, taps, stats, inside) {
  if (!tap || taps === 1) return titled(name);
  const words = inside ? shortOf(tap) : tapWords(tap);
  return stats === 1 ? words : `${words} ${name}`;
}

const POINTS = 1000;
const MAX_MS = 10_000;

export class PinnedChart {
  /** @param {Page} page @param {HTMLElement} figure */
  constructor(page, figure) {
    const { name = "", path = "", query = "" } = figure.dataset;
    this.page = page;
    this.figure = figure;
    this.path = /** @type {"series" | "scalars"} */ (path);
    this.asked = queryOf(query);
    this.linesOf = (/** @type {readonly Series[]} */ many) => linesOf(many, JSON.parse(figure.dataset.plan ?? "null"));
    this.chart = new LineChart(page, figure, {
      title: titled(name),
      captured: path === "series",
      y: { title: "", scale: scaleOf(String(this.asked.stat ?? "")) },
      query: () => ({ path: this.path, query: this.query }),
      linesOf: this.linesOf,
      pins: page.name !== "board",
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
    const lines = this.linesOf(await this.#ask(signal));
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
      const passing = answers.find((answer) => answer.status === "rejected" && isPassing(answer.reason));
      if (passing?.status === "rejected") throw passing.reason;
      const there = answers.flatMap((answer) => (answer.status === "fulfilled" ? [answer.value.series] : []));
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
