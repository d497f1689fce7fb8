/** The large lines of the losses, on the Summary. */
import { get, NoAnswer } from "../api.js";
import { byId } from "../dom.js";
import { titled } from "../format.js";
import { Curve, lineOf } from "../live/curve.js";
import { failedWords, Refresh } from "../live/refresh.js";
import { LineChart } from "../plot/plot.js";

/** @import { Series } from "../answers.js"
 * @import { Page } from "../page.js" */

const POINTS = 1000;
const MAX_POINTS = 3 * POINTS; // of a run that is shown whole, until its points are requested again
const HZ = 4;
const CALM_MS = 150; // an answer that comes sooner takes the place of the old line

export class ScalarChart {
  /** @type {{close: () => void, change: (query: Record<string, any>) => void} | null} */
  #stream = null;
  #shown = "";
  /** The scalars of the curves. */
  #of = "";
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #waiting;
  /** @type {Map<string, Curve>} */
  curves = new Map();

  /** @param {Page} page @param {string[]} names shown unless a scalar is chosen
   * @param {(name: string, value: number) => void} told called with the newest drawn value
   * @param {Promise<unknown>} after more urgent work than loading Plotly */
  constructor(page, names, told, after) {
    this.told = told;
    this.page = page;
    this.usual = names;
    this.refresh = new Refresh((signal) => this.#fetch(signal), {
      failed: (error) => {
        clearTimeout(this.#waiting);
        this.chart.fail(error, this.title);
      },
    });
    const query = () => ({ path: "scalars", query: { run: page.run, name: this.names, ...page.follow.shown } });
    this.chart = new LineChart(page, byId("chart"), {
      title: this.title || "Loss",
      y: { title: "", scale: "linear" },
      legend: false,
      query,
      linesOf: (series) => series.map(lineOf),
      after,
    });
    this.#begin();
    page.state.on("scalar", () => this.show());
    page.follow.on("change", () => this.show());
    page.stream.on("state", (state) => state !== "connecting" && this.#of !== this.title && this.#wait());
    this.show();
  }

  /** Shows the data that came with the page, if it is for the chosen scalars and steps. */
  #begin() {
    const { first } = byId("chart").dataset;
    const { span } = this.page.follow;
    const series = JSON.parse(document.getElementById("first-series")?.textContent ?? "null");
    if (!series || !span || titleOf(series.map(nameOf)) !== this.title || Number(first) > span[0]) return;
    this.#take(series);
    this.#draw();
    this.chart.draw(); // at once, so that it is in the first paint
  }

  /** Scalars may come later than the page. @param {string[]} usual */
  know(usual) {
    this.usual = usual;
    this.show();
  }

  get names() {
    const chosen = this.page.state.get("scalar");
    return chosen ? [chosen] : this.usual;
  }

  get title() {
    return titleOf(this.names);
  }

  /** Starts over if the scalar or the steps have changed. */
  show() {
    const { follow } = this.page;
    const live = !follow.paused && "live" in follow.window ? follow.window.live : null;
    const shown = JSON.stringify([this.names, live === null ? follow.span : String(live)]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.#stream?.close();
    this.#stream = null;
    this.refresh.stop();
    this.chart.rename(this.title || "Loss");
    if (!this.names.length)
      return this.chart.say(
        "No scalars logged. Call watcher.log(loss=loss.item()) in your training loop to plot it here.",
      );
    const isOther = this.#of !== this.title;
    if (isOther) this.curves.clear();
    if (live === null) void this.refresh.now();
    else this.#follow(live);
    if (isOther) this.#wait();
  }

  /** The lines of other scalars don't stay: they would be taken for these. */
  #wait() {
    clearTimeout(this.#waiting);
    const isAway = this.#stream !== null && this.page.stream.state === "waiting";
    const say = () =>
      this.title && this.#of !== this.title && this.chart.say(isAway ? failedWords(new NoAnswer()) : "Loading\u2026");
    this.#waiting = setTimeout(say, isAway ? 0 : CALM_MS);
  }

  /** @param {number} live */
  #follow(live) {
    const from = live === Infinity ? this.page.follow.first : -live;
    const wish = { view: "scalars", stats: this.names, columns: POINTS, hz: HZ, from };
    this.#stream = this.page.stream.subscribe(wish, {
      json: (message) => {
        if (message.type !== "scalars") return;
        if (message.snapshot) this.#take(message.scalars);
        else for (const series of message.scalars) this.#curveOf(series.name).take(series, false);
        const curves = [...this.curves.values()]; // of a run shown whole, sent again with fewer points if they are many
        if (live !== Infinity) for (const curve of curves) curve.forget((this.page.follow.newest ?? 0) - live + 1);
        else if (curves.some((curve) => curve.length > MAX_POINTS)) this.#stream?.change(wish);
        this.#draw();
      },
    });
  }

  /** @param {AbortSignal} signal */
  async #fetch(signal) {
    const { page, names } = this;
    const query = { run: page.run, name: names, points: POINTS, ...page.follow.shown };
    const answer = await get("scalars", query, signal);
    signal.throwIfAborted();
    this.#take(answer.series);
    this.#draw();
  }

  /** @param {readonly Series[]} series everything that is shown */
  #take(series) {
    this.#of = this.title;
    this.curves.clear();
    for (const line of series) this.#curveOf(line.name).take(line, true);
  }

  /** @param {string} name */
  #curveOf(name) {
    const curve = this.curves.get(name) ?? new Curve();
    this.curves.set(name, curve);
    return curve;
  }

  #draw() {
    const drawn = this.names.filter((name) => this.curves.get(name)?.length);
    if (!drawn.length) return this.chart.say(`${this.title} was not logged in these steps`);
    this.chart.show(
      drawn.map((name) => this.#curveOf(name).line(titled(name))),
      this.title,
    );
    for (const name of drawn) {
      const { newest } = this.#curveOf(name);
      if (newest !== null) this.told(name, newest);
    }
  }
}

/** @param {readonly string[]} names */
const titleOf = (names) => names.map(titled).join(", ");

/** @param {{name: string}} each */
const nameOf = ({ name }) => name;
