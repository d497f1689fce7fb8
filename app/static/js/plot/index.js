// @ts-check
/**
 * Charts of lines that a person inspects. The only module that calls Plotly: its settings are here and nowhere else.
 */
import { Card } from "../card.js";
import { colors, onTheme } from "../theme.js";
import { blobOf } from "./files.js";
import { LineFigure } from "./lines.js";
import { Panel } from "./panel.js";

const GAP_MS = 250; // one chart is drawn at most four times a second,
const MAX_LIVE = 4; // and no more than four of a page are there at once
const CONFIG = {
  displayModeBar: false,
  displaylogo: false,
  showSendToCloud: false,
  responsive: false,
  doubleClick: false,
  scrollZoom: false,
  showTips: false,
};

/** @type {Promise<any> | null} */
let loading = null;

/** Plotly, loaded when it is needed first. @returns {Promise<any>} */
export function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = `${document.body.dataset.static}/vendor/plotly-cartesian.min.js`;
    script.onload = () => resolve(/** @type {any} */ (globalThis).Plotly);
    script.onerror = () => {
      loading = null;
      reject(new Error("the chart library did not load: reload the page"));
    };
    document.head.append(script);
  });
  return loading;
}

/** Those that are drawn now; who was drawn last is last. @type {Set<LineChart>} */
const live = new Set();

addEventListener("pagehide", () => {
  for (const chart of [...live]) chart.purge();
});
addEventListener("pageshow", ({ persisted }) => {
  if (!persisted) return;
  for (const plot of document.querySelectorAll(".chart .plot")) plot.dispatchEvent(new CustomEvent("seen"));
});

/**
 * Lines over steps, with a card around them. Zoom and cursor are those of the page.
 * @typedef {object} ChartOptions
 * @property {string} title
 * @property {import("./lines.js").YAxis} [y]
 * @property {boolean} [legend] false for a single line, which the title names
 * @property {import("../card.js").CardOptions["query"]} [query] the same at full resolution
 */
export class LineChart {
  #drawnAt = -Infinity;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #alive = true;

  /** @param {import("../page.js").Page} page @param {HTMLElement} element the figure @param {ChartOptions} options */
  constructor(page, element, options) {
    this.page = page;
    this.panel = new Panel(page, element, options);
    this.figure = new LineFigure(page, options);
    this.card = new Card(page, element, {
      title: options.title,
      table: () => this.figure.table(),
      png: () => this.picture("png"),
      svg: async () => (await this.picture("svg")).text(),
      query: options.query,
    });
    const { plot } = this.panel;
    page.schedule.watch(plot);
    plot.addEventListener("seen", () => this.ask(true));
    const again = () => this.ask(true);
    this.ends = [
      onTheme(again),
      page.follow.on("change", again),
      page.cursor.on("move", () => this.point()),
      ...["smooth", "y"].map((name) => page.state.on(name, again)),
    ];
    this.panel.onSize = again;
    plotly().then(again, (error) => this.say(error.message));
  }

  /** @param {import("./thin.js").Line[]} lines */
  show(lines) {
    this.figure.lines = lines;
    this.panel.say("");
    this.ask();
  }

  /** Words in the place of the chart: why there is none. @param {string} words */
  say(words) {
    this.figure.lines = [];
    this.purge();
    this.panel.say(words);
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
    const { Plotly } = /** @type {any} */ (globalThis);
    const { plot, width, height } = this.panel;
    if (!Plotly || !this.#alive || !width || !this.figure.lines.length) return;
    this.#drawnAt = performance.now();
    const { traces, layout } = this.figure.make(colors(), width, height);
    const fresh = !live.delete(this);
    live.add(this);
    Plotly.react(plot, traces, layout, CONFIG).then(() => this.#told());
    if (fresh) this.#listen();
    this.panel.describe(this.figure.summary());
    this.point();
    this.card.refresh();
    makeRoom();
  }

  /** For who measures: when which step was there to be seen. */
  #told() {
    if (!performance.getEntriesByName("hookcore:plot").length) performance.mark("hookcore:plot");
    const detail = { kind: "plot", step: this.figure.newest, ms: performance.now() - this.#drawnAt };
    document.dispatchEvent(new CustomEvent("hookcore:drawn", { detail }));
  }

  /** The cursor's line and what the lines say there. */
  point() {
    if (live.has(this)) this.panel.point(this.figure);
  }

  #listen() {
    const plot = /** @type {any} */ (this.panel.plot);
    plot.on("plotly_relayout", (/** @type {any} */ change) => {
      const [from, to] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (Number.isFinite(from) && Number.isFinite(to))
        this.page.follow.zoom(Math.max(0, Math.ceil(from)), Math.max(0, Math.ceil(from), Math.floor(to)));
    });
    plot.on("plotly_doubleclick", () => {
      this.page.follow.live();
      this.page.state.set({ steps: this.page.state.defaults.steps });
    });
  }

  /** The chart as a file, with its title and its legend. @param {"png" | "svg"} format */
  async picture(format) {
    const Plotly = await plotly();
    const [width, height] = [Math.max(480, this.panel.width), this.panel.height + 60];
    const { traces, layout } = this.figure.make(colors(), width, height, true);
    const url = await Plotly.toImage({ data: traces, layout, config: CONFIG }, { format, width, height, scale: 2 });
    return blobOf(url);
  }

  /** Gives back what Plotly holds; it is drawn again when it comes into sight. */
  purge() {
    if (live.delete(this)) /** @type {any} */ (globalThis).Plotly.purge(this.panel.plot);
  }

  /** It is no more. */
  remove() {
    this.#alive = false;
    clearTimeout(this.#timer);
    this.purge();
    for (const end of this.ends) end();
    this.panel.remove();
    this.card.remove();
  }
}

/** Of more than four those make room that are out of sight. */
function makeRoom() {
  for (const chart of [...live]) {
    if (live.size <= MAX_LIVE) return;
    if (!chart.page.schedule.isSeen(chart.panel.plot)) chart.purge();
  }
}
