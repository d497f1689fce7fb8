// @ts-check
/** The large line of one scalar: the loss, or the one that was chosen. */
import { get, NoAnswer } from "../api.js";
import { byId } from "../dom.js";
import { Curve, lineOf } from "../live/curve.js";
import { failedWords } from "../live/failed.js";
import { Refresh } from "../live/refresh.js";
import { LineChart } from "../plot/index.js";

const POINTS = 1000;
const MAX_POINTS = 3 * POINTS; // of a run that is shown whole, until its points are requested again
const HZ = 4;
const CALM_MS = 150; // an answer that comes sooner takes the place of the old line

export class ScalarChart {
  /** @type {{close: () => void, change: (query: Record<string, any>) => void} | null} */
  #stream = null;
  #shown = "";
  /** The scalar of the curve. */
  #of = "";
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #waiting;
  curve = new Curve();

  /** @param {import("../page.js").Page} page @param {string} name shown unless another one is chosen
   * @param {(name: string, value: number) => void} told called with the newest drawn value
   * @param {Promise<unknown>} after more urgent work than loading Plotly */
  constructor(page, name, told, after) {
    this.told = told;
    this.page = page;
    this.usual = name;
    this.refresh = new Refresh((signal) => this.#fetch(signal), {
      failed: (error) => {
        clearTimeout(this.#waiting);
        this.chart.fail(error, this.name);
      },
    });
    const query = () => ({ path: "scalars", query: { run: page.run, name: this.name, ...page.follow.shown } });
    this.chart = new LineChart(page, byId("chart"), {
      title: this.name || "Loss",
      y: { title: "", scale: "linear" },
      legend: false,
      query,
      linesOf: (series) => series.map(lineOf),
      after,
    });
    this.#begin();
    page.state.on("scalar", () => this.show());
    page.follow.on("change", () => this.show());
    page.stream.on("state", (state) => state !== "connecting" && this.#of !== this.name && this.#wait());
    this.show();
  }

  /** Shows the data that came with the page, if it is for the chosen scalar and steps. */
  #begin() {
    const { first } = byId("chart").dataset;
    const { span } = this.page.follow;
    const series = JSON.parse(document.getElementById("first-series")?.textContent ?? "null");
    if (!series || !span || series.name !== this.name || Number(first) > span[0]) return;
    this.#of = this.name;
    this.curve.take(series, true);
    this.#draw();
    this.chart.draw(); // at once, so that it is in the first paint
  }

  /** Scalars may come later than the page. @param {string} usual */
  know(usual) {
    this.usual = usual;
    this.show();
  }

  get name() {
    return this.page.state.get("scalar") || this.usual;
  }

  /** Starts over if the scalar or the steps have changed. */
  show() {
    const { follow } = this.page;
    const live = !follow.paused && "live" in follow.window ? follow.window.live : null;
    const shown = JSON.stringify([this.name, live === null ? follow.span : String(live)]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.#stream?.close();
    this.#stream = null;
    this.refresh.stop();
    this.chart.rename(this.name || "Loss");
    if (!this.name)
      return this.chart.say(
        "No scalars logged. Call watcher.log(loss=loss.item()) in your training loop to plot it here.",
      );
    const isOther = this.#of !== this.name;
    if (isOther) this.curve = new Curve();
    if (live === null) void this.refresh.now();
    else this.#follow(live);
    if (isOther) this.#wait();
  }

  /** The line of another scalar doesn't stay: it would be taken for this one. */
  #wait() {
    clearTimeout(this.#waiting);
    const isAway = this.#stream !== null && this.page.stream.state === "waiting";
    const say = () =>
      this.name && this.#of !== this.name && this.chart.say(isAway ? failedWords(new NoAnswer()) : "Loading\u2026");
    this.#waiting = setTimeout(say, isAway ? 0 : CALM_MS);
  }

  /** @param {number} live */
  #follow(live) {
    const from = live === Infinity ? this.page.follow.first : -live;
    const wish = { view: "scalars", stats: [this.name], columns: POINTS, hz: HZ, from };
    this.#stream = this.page.stream.subscribe(wish, {
      json: (said) => {
        if (said.type !== "scalars") return;
        const mine = said.scalars.find((each) => each.name === this.name);
        if (said.snapshot) this.#of = this.name;
        if (mine) this.curve.take(mine, said.snapshot);
        else if (said.snapshot) this.curve = new Curve();
        if (live !== Infinity) this.curve.forget((this.page.follow.newest ?? 0) - live + 1);
        else if (this.curve.length > MAX_POINTS) this.#stream?.change(wish); // sent again, with fewer points
        this.#draw();
      },
    });
  }

  /** @param {AbortSignal} signal */
  async #fetch(signal) {
    const { page, name } = this;
    const answer = await get("scalars", { run: page.run, name, points: POINTS, ...page.follow.shown }, signal);
    signal.throwIfAborted();
    this.#of = name;
    this.curve.take(answer.series[0], true);
    this.#draw();
  }

  #draw() {
    if (this.curve.length) {
      this.chart.show([this.curve.line(this.name)], this.name);
      const { newest } = this.curve;
      if (newest !== null) this.told(this.name, newest);
    } else this.chart.say(`${this.name} was not logged in these steps`);
  }
}
