/** Charts of lines that a person inspects. */
import { get } from "../api.js";
import { Card } from "../card.js";
import { h } from "../dom.js";
import { number } from "../format.js";
import { failedWords } from "../live/refresh.js";
import { colors, onTheme, SANS } from "../theme.js";
import { blobOf, CONFIG, plotly } from "./library.js";
import { LineFigure } from "./lines.js";
import { Panel } from "./panel.js";
import { sketchOf } from "./sketch.js";
import { isMerged } from "./words.js";

/** @import { Series } from "../answers.js"
 * @import { CardOptions } from "../card.js"
 * @import { Page } from "../page.js"
 * @import { YAxis } from "./lines.js"
 * @import { Line } from "./thin.js" */

const GAP_MS = 250; // one chart is drawn at most four times a second,
const MAX_LIVE = 4; // and no more than four of a page are there at once

/** How much more of the values a key shows, and how far up. @type {Record<string, [number, number]>} */
const ZOOMS = { "+": [0.5, 0], "=": [0.5, 0], "-": [2, 0], ArrowUp: [1, 0.2], ArrowDown: [1, -0.2] };

/** The charts that Plotly has drawn, the newest last. @type {Set<LineChart>} */
const live = new Set();

/** @type {CanvasRenderingContext2D | null | undefined} */
let pen;

/** How wide a text of an axis is. @param {string} text */
function widthOf(text) {
  pen ??= document.createElement("canvas").getContext("2d");
  if (!pen) return Infinity;
  pen.font = `11px ${SANS}`;
  return pen.measureText(text).width;
}

let isListening = false;

/** Frees Plotly's charts when the reader leaves the page, and draws them again when the reader comes back. */
function listenToPage() {
  if (isListening) return;
  isListening = true;
  addEventListener("pagehide", () => {
    for (const chart of [...live]) chart.purge();
  });
  addEventListener("pageshow", ({ persisted }) => {
    if (!persisted) return;
    for (const plot of document.querySelectorAll(".chart .plot-area")) plot.dispatchEvent(new CustomEvent("seen"));
  });
}

/**
 * Lines over steps, with a card around them. Zoom and cursor are those of the page.
 * @typedef {object} ChartOptions
 * @property {string} title
 * @property {YAxis} [y]
 * @property {boolean} [legend] false for a single line, which the title names
 * @property {CardOptions["query"]} [query] the same at full resolution
 * @property {boolean} [captured] whether the lines have values of captured steps only
 * @property {boolean} [several] whether lines are of several runs: one that diverged doesn't flatten the others
 * @property {boolean} [pins] false if it is on the board already
 * @property {(series: Series[]) => Line[]} [linesOf] the lines of an answer
 *   to the query: that of a single step is asked for on a page that is held at one that shares a point with others
 * @property {Promise<unknown>} [after] what Plotly waits for, because it is needed more urgently
 */
export class LineChart {
  #drawnAt = -Infinity;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #alive = true;
  #listens = false;
  /** The last drawing. Plotly draws in several turns, and fails if its chart is gone by then. */
  #drawing = Promise.resolve();
  /** What is shown until Plotly is there. @type {SVGElement | null} */
  #sketch = null;
  #tellFirst = () => {};
  /** The first drawing, before which Plotly isn't loaded: to run it takes longer than to draw lines. */
  #first = new Promise((/** @type {(drawn: void) => void} */ drawn) => {
    this.#tellFirst = drawn;
  });

  /** @param {Page} page @param {HTMLElement} element the figure @param {ChartOptions} options */
  constructor(page, element, options) {
    listenToPage();
    this.page = page;
    this.linesOf = options.linesOf;
    this.panel = new Panel(page, element, options);
    this.figure = new LineFigure(page, options, widthOf);
    this.card = new Card(page, element, {
      title: options.title,
      table: () => this.figure.table(),
      png: () => this.picture("png"),
      svg: async () => (await this.picture("svg")).text(),
      query: options.query,
      pins: options.pins,
    });
    this.card.tools.prepend(this.panel.reset);
    this.panel.reset.addEventListener("click", () => this.resetZoom());
    const { plot } = this.panel;
    plot.addEventListener("keydown", (event) => this.#hear(event));
    page.schedule.watch(plot, () => this.ask(true));
    const again = () => this.ask(true);
    this.ends = [
      onTheme(again),
      page.follow.on("change", again),
      page.cursor.on("move", () => this.point()),
      page.clock.on("change", again),
      page.notes.on("change", () => {
        if (!this.#isDrawn) return;
        this.panel.showNotes(this.figure);
        this.point();
      }),
      ...["smooth", "y"].map((name) => page.state.on(name, again)),
    ];
    this.panel.onSize = again;
    Promise.all([this.#first, options.after])
      .then(plotly)
      .then(again, (error) => this.#sketch || this.say(error.message));
  }

  /** @param {Line[]} lines
   * @param {string} [about] what they are of, in a chart whose subject changes: a zoom ends with its subject */
  show(lines, about = "") {
    this.figure.take(lines, about);
    if (!this.figure.zoomed) this.#brushed = "";
    this.panel.reset.hidden = !this.figure.zoomed;
    this.panel.say("");
    this.ask();
  }

  /** Asks for the values of the held step if it shares a point with others. Until they are there, the legend has
   * none. */
  async #askHeld() {
    const { figure, page } = this;
    const { held } = page.follow;
    if (!this.linesOf || held === null || figure.exact?.step === held) return;
    if (!figure.drawn.some((points) => isMerged(points, held))) return;
    const exact = { step: held };
    figure.exact = exact;
    try {
      const [{ path, query }] = this.card.queries;
      const of = /** @type {"series" | "scalars"} */ (path);
      const { series } = await get(of, { ...query, from: held, to: held, points: 1 });
      if (figure.exact === exact) figure.exact = { step: held, lines: this.linesOf(series) };
    } catch {
      if (figure.exact === exact) figure.exact = null; // asked for again with the next drawing
    }
    if (this.#alive) this.point();
  }

  /** Names the chart and its files after another subject. @param {string} title */
  rename(title) {
    this.figure.options.title = title;
    this.panel.plot.setAttribute("aria-label", title);
    this.card.rename(title);
  }

  /** Shows words in place of the chart. @param {string} words */
  say(words) {
    this.figure.lines = [];
    this.purge();
    this.panel.say(words);
  }

  /** Says why values could not be loaded, unless lines of the same subject are there: those are still true.
   * @param {unknown} error @param {string} [about] as in `show` */
  fail(error, about = "") {
    if (!this.figure.lines.length || about !== this.figure.about) this.say(failedWords(error));
  }

  /** Draws in its turn; `now` is for what a hand asked for. @param {boolean} [now] */
  ask(now = false) {
    if (!this.#alive) return;
    if (!this.page.schedule.isSeen(this.panel.plot)) return this.card.refresh();
    const wait = now ? 0 : this.#drawnAt + GAP_MS * Math.max(1, live.size / MAX_LIVE) - performance.now();
    if (wait <= 0) return this.page.schedule.inTurn(this, () => this.draw());
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      this.ask();
    }, wait);
  }

  draw() {
    this.panel.measure();
    const { width, height } = this.panel;
    if (!this.#alive || !width || !this.figure.lines.length) return;
    this.#drawnAt = performance.now();
    const figure = this.figure.make(colors(), width, height);
    if ("Plotly" in globalThis) this.#plot(figure);
    else this.#showSketch(sketchOf(figure));
    mark("hookcore:chart");
    this.#tellFirst();
    this.panel.describe(this.figure.summary());
    this.panel.showNotes(this.figure);
    this.point();
    void this.#askHeld();
    this.card.refresh();
    makeRoom();
  }

  /** @param {{traces: any[], layout: any}} figure */
  #plot({ traces, layout }) {
    live.delete(this);
    live.add(this);
    const { Plotly } = /** @type {any} */ (globalThis);
    this.#drawing = Plotly.react(this.panel.plot, traces, layout, CONFIG).then(() => this.#told());
    if (!this.#listens) this.#listen();
  }

  /** @param {SVGElement | null} sketch */
  #showSketch(sketch) {
    this.#sketch?.remove();
    this.#sketch = sketch;
    if (sketch) this.panel.plot.append(sketch);
  }

  /** Marks for benchmarks: when which step was visible. */
  #told() {
    this.#showSketch(null);
    mark("hookcore:plot");
    const detail = { kind: "plot", step: this.figure.newest, ms: performance.now() - this.#drawnAt };
    document.dispatchEvent(new CustomEvent("hookcore:drawn", { detail }));
  }

  get #isDrawn() {
    return live.has(this) || this.#sketch !== null;
  }

  /** The cursor's line and what the lines say there. */
  point() {
    if (this.#isDrawn) this.panel.point(this.figure);
  }

  #listen() {
    this.#listens = true;
    const plot = /** @type {any} */ (this.panel.plot);
    plot.on("plotly_relayout", (/** @type {any} */ change) => this.#zoom(change));
    plot.on("plotly_doubleclick", () => this.resetZoom());
  }

  /** Zooms to a box: its width is the range of all charts, its height that of this one. @param {any} change */
  #zoom(change) {
    const { figure, page } = this;
    const [low, high] = [change["yaxis.range[0]"], change["yaxis.range[1]"]];
    if (Number.isFinite(low) && Number.isFinite(high) && figure.axis) figure.zoomed = figure.axis.values([low, high]);
    const [from, to] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (Number.isFinite(from) && Number.isFinite(to)) {
      const first = Math.max(0, Math.ceil(figure.along.step(from)));
      page.follow.zoom(first, Math.max(first, Math.floor(figure.along.step(to))));
      if (figure.zoomed) this.#brushed = page.state.get("steps");
    }
    this.#showReset();
  }

  /** The values are zoomed by key, too. @param {KeyboardEvent} event */
  #hear(event) {
    const { figure } = this;
    const how = ZOOMS[event.key];
    const isMove = how?.[0] === 1;
    if (!how || !figure.axis || event.ctrlKey || event.metaKey || event.altKey || (isMove && !figure.zoomed)) return;
    event.preventDefault();
    event.stopPropagation();
    figure.zoomed = figure.axis.part(...how);
    this.#showReset();
    const [low, high] = figure.zoomed ?? [];
    this.page.announce(figure.zoomed ? `${number(Number(low))} to ${number(Number(high))}` : "All values");
  }

  /** The range that came with the zoom of this chart. */
  #brushed = "";

  #showReset() {
    this.panel.reset.hidden = !this.figure.zoomed;
    this.ask(true);
  }

  /** Shows all values again, and the steps from before if they were chosen with them. */
  resetZoom() {
    const { state, follow } = this.page;
    this.figure.zoomed = null;
    if (this.#brushed && this.#brushed === state.get("steps")) follow.whole();
    this.#brushed = "";
    this.#showReset();
  }

  /** The chart as a file, with its title and its legend. @param {"png" | "svg"} format */
  async picture(format) {
    const Plotly = await plotly();
    const [width, height] = [Math.max(480, this.panel.width), this.panel.height + 60];
    const { traces, layout } = this.figure.make(colors(), width, height, true);
    const url = await Plotly.toImage({ data: traces, layout, config: CONFIG }, { format, width, height, scale: 2 });
    return blobOf(url);
  }

  /** Frees what Plotly holds. The chart is drawn again when it comes into view. */
  purge() {
    this.#showSketch(null);
    if (!live.delete(this)) return;
    const purge = () => {
      if (live.has(this)) return;
      this.#listens = false;
      /** @type {any} */ (globalThis).Plotly.purge(this.panel.plot);
    };
    this.#drawing.then(purge, purge);
  }

  /** Removes the chart. */
  remove() {
    this.#alive = false;
    clearTimeout(this.#timer);
    this.purge();
    for (const end of this.ends) end();
    this.panel.remove();
    this.card.remove();
  }
}

/** Marks for benchmarks: when something was visible for the first time. @param {string} name */
function mark(name) {
  if (!performance.getEntriesByName(name).length) performance.mark(name);
}

/** Frees charts that are out of view, as long as there are more than four. */
function makeRoom() {
  for (const chart of [...live]) {
    if (live.size <= MAX_LIVE) return;
    if (!chart.page.schedule.isSeen(chart.panel.plot)) chart.purge();
  }
}

/** @template {{id: string, title: string}} P */
export class PlannedCharts {
  /** @type {{plan: P, chart: LineChart, figure: HTMLElement}[]} */
  shown = [];
  /** Of a chart. */
  heading = "h2";

  /** @param {Page} page @param {HTMLElement} place @param {(plan: P) => Omit<ChartOptions, "title">} optionsOf */
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
    const [heading, plot] = [h("header", {}, h(this.heading, {}, title)), h("div", { class: "plot" })];
    const figure = h("figure", { class: "card chart", id: `chart-${id}` }, heading, plot);
    this.place.append(figure);
    return { plan, figure, chart: new LineChart(this.page, figure, { title, ...this.optionsOf(plan) }) };
  }

  /** @param {(plan: P) => Line[]} linesOf
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
