// @ts-check
/** The charts of the drawer: norms over the steps, and the histogram of the step that is shown. */
import { get } from "../api.js";
import { byId } from "../dom.js";
import { HistProfile } from "../histograms/profile.js";
import { barsOf } from "../histograms/shape.js";
import { ofParameters } from "../kinds.js";
import { queryOf } from "../layer/charts.js";
import { linesOf } from "../layer/lines.js";
import { shortOf } from "../layer/plan.js";
import { SeriesFeed } from "../layer/seriesfeed.js";
import { MAX_POINTS } from "../limits.js";
import { lineIn } from "../live/curve.js";
import { failedWords } from "../live/failed.js";
import { Refresh } from "../live/refresh.js";
import { LineChart } from "../plot/index.js";

const MIN_MS = 2000;
const COLUMNS = 240;
const BINS = 80;
const MAX_PARTS = 4;
const KINDS = ["output", "output_grad", "param_grad", "param", "input", "input_grad", "update"];

/** @typedef {import("../answers.js").Tap} Tap */

export class DrawerCharts {
  /** @type {import("../layer/plan.js").Plan | null} */
  #plan = null;
  /** @type {LineChart | null} */
  #chart = null;
  /** @type {Tap | null} */
  #tap = null;
  /** The step that is shown unless the page is held at another one. @type {number | null} */
  #step = null;
  /** The words if there is nothing to show. */
  #none = "";

  /** @param {import("../page.js").Page} page */
  constructor(page) {
    this.page = page;
    this.figure = byId("drawer-lines");
    this.feed = new SeriesFeed(page);
    this.feed.on("data", () => this.#draw());
    this.feed.on("error", (error) => this.#plan && this.#chart?.fail(error, this.#about));
    const place = byId("drawer-histogram");
    this.words = /** @type {HTMLElement} */ (place.querySelector("p"));
    this.histogram = new HistProfile(page, /** @type {HTMLElement} */ (place.querySelector(".plot")), {
      title: "Distribution",
      height: 130,
      mode: "bars",
    });
    this.refresh = new Refresh((signal) => this.#ask(signal), {
      min: MIN_MS,
      ready: () => this.#tap !== null,
      failed: (error) => this.histogram.canvas.hidden && this.#say(failedWords(error)),
    });
    page.follow.on("change", () => this.#tap && this.refresh.promptly());
    page.follow.on("newest", () => this.#tap && this.#step === null && !page.follow.paused && this.refresh.soon());
  }

  /** @param {Tap[]} taps of a module @param {import("./index.js").Layer} layer */
  show(taps, { call, phase, kind, step = null }) {
    this.#step = step;
    const own = taps.filter((tap) => ofParameters(tap.kind) || (tap.call === call && tap.phase === phase));
    const every = KINDS.flatMap((each) => own.filter((tap) => tap.kind === each));
    const parts = every.slice(0, MAX_PARTS);
    const heading = /** @type {HTMLElement} */ (this.figure.querySelector("h3"));
    heading.textContent =
      every.length > MAX_PARTS ? `Norms over steps, ${MAX_PARTS} of ${every.length}` : "Norms over steps";
    this.#plan = {
      id: "norms",
      title: "Norms over steps",
      y: { title: "norm", scale: "log", fixed: true }, // what the page says is about its own charts
      stats: ["norm"],
      parts: parts.map((tap) => ({ tap, name: shortOf(tap), make: "norm" })),
    };
    this.#chart ??= new LineChart(this.page, this.figure, {
      title: "Norms over steps",
      y: this.#plan.y,
      query: () =>
        this.#plan && {
          path: "series",
          query: { ...queryOf(this.#plan), ...this.page.follow.shown, points: MAX_POINTS },
        },
      pins: false,
      linesOf: (series) => (this.#plan ? linesOf(this.#plan, (tap, stat) => lineIn(series, stat, tap)) : []),
    });
    this.#none = `No tensor of this ${taps.length ? "call" : "layer"} was captured.`;
    this.feed.show(parts.length ? [{ taps: parts.map(({ number }) => number), stats: ["norm"] }] : []);
    const before = this.#tap;
    this.#tap = own.find((tap) => tap.kind === kind) ?? parts[0] ?? null;
    byId("drawer-histogram").hidden = this.#tap === null;
    if (this.#tap?.number !== before?.number) this.histogram.canvas.hidden = true; // until its own is there
    byId("drawer-histogram-title").textContent = this.#tap ? `Distribution of ${shortOf(this.#tap)}` : "Distribution";
    if (this.#tap) void this.refresh.now();
  }

  /** The tensors of the lines. */
  get #about() {
    return this.#plan?.parts.map(({ tap }) => tap.label).join() ?? "";
  }

  #draw() {
    if (!this.#plan || !this.#chart) return;
    const lines = linesOf(this.#plan, (tap, stat) => this.feed.find(tap, stat));
    if (!this.#plan.parts.length) this.#chart.say(this.#none);
    else if (lines.length) this.#chart.show(lines, this.#about);
    else this.#chart.say("Nothing was captured in these steps.");
  }

  /** @param {AbortSignal} signal */
  async #ask(signal) {
    const { span, held } = this.page.follow;
    if (!this.#tap || !span) return;
    const bars = barsOf({ held: held ?? this.#step, span }, COLUMNS);
    const query = { run: this.page.run, tap: this.#tap.number, ...bars, bins: BINS };
    const said = await get("histograms", query, signal);
    if (!("edges" in said) || signal.aborted) return;
    const none = !said.first_step.length;
    this.#say(none ? "No histogram was captured in these steps." : "");
    this.histogram.canvas.hidden = none;
    this.histogram.show(said, span);
  }

  /** Words in the place of the histogram. @param {string} words */
  #say(words) {
    this.words.hidden = !words;
    this.words.textContent = words;
  }

  /** Words in the place of the lines. @param {string} words */
  say(words) {
    this.#chart ??= new LineChart(this.page, this.figure, { title: "Norms over steps" });
    this.#chart.say(words);
  }

  /** Nothing is shown: the drawer is closed, or waits for what another layer has. */
  clear() {
    this.#tap = null;
    this.#plan = null;
    this.refresh.stop();
    this.feed.show([]);
    this.#chart?.say("");
    byId("drawer-histogram").hidden = true;
  }
}
