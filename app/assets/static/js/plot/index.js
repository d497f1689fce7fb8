// @ts-check
/** Charts of lines that a person inspects. */
import { get } from "../api.js";
import { titledSvg } from "../canvas/titled.js";
import { Card } from "../card.js";
import { number } from "../format.js";
import { failedWords } from "../live/failed.js";
import { colors, onTheme } from "../theme.js";
import { pngOf } from "./files.js";
import { isMerged } from "./held.js";
import { LineFigure } from "./lines.js";
import { Panel } from "./panel.js";
import { svg, svgOf } from "./svg.js";
import { colorOf } from "./traces.js";

const GAP_MS = 250; // one chart is drawn at most four times a second
const [LETTER, ROW, SIGN] = [6.5, 18, 20]; // pixels of the legend in a file

/** How much more of the values a key shows, and how far up. @type {Record<string, [number, number]>} */
const ZOOMS = { "+": [0.5, 0], "=": [0.5, 0], "-": [2, 0], ArrowUp: [1, 0.2], ArrowDown: [1, -0.2] };

/**
 * Lines over steps, with a card around them. Zoom and cursor are those of the page.
 * @typedef {object} ChartOptions
 * @property {string} title
 * @property {import("./lines.js").YAxis} [y]
 * @property {boolean} [legend] false for a single line, which the title names
 * @property {import("../card.js").CardOptions["query"]} [query] the same at full resolution
 * @property {boolean} [pins] false if it is on the board already
 * @property {(series: import("../answers.js").Series[]) => import("./thin.js").Line[]} [linesOf] the lines of an answer
 *   to the query: that of a single step is asked for on a page that is held at one that shares a point with others
 */
export class LineChart {
  #drawnAt = -Infinity;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #alive = true;
  #isDrawn = false;

  /** @param {import("../page.js").Page} page @param {HTMLElement} element the figure @param {ChartOptions} options */
  constructor(page, element, options) {
    this.page = page;
    this.linesOf = options.linesOf;
    this.panel = new Panel(page, element, options);
    this.figure = new LineFigure(page, options);
    this.card = new Card(page, element, {
      title: options.title,
      table: () => this.figure.table(),
      png: () => pngOf(this.picture()),
      svg: async () => this.picture(),
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
    this.panel.onZoom = (steps, shares) => this.#zoom(steps, shares);
    this.panel.onWhole = () => this.resetZoom();
  }

  /** @param {import("./thin.js").Line[]} lines
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
    const asked = { step: held };
    figure.exact = asked;
    try {
      const [{ path, query }] = this.card.queries;
      const of = /** @type {"series" | "scalars"} */ (path);
      const { series } = await get(of, { ...query, from: held, to: held, points: 1 });
      if (figure.exact === asked) figure.exact = { step: held, lines: this.linesOf(series) };
    } catch {
      if (figure.exact === asked) figure.exact = null; // asked for again with the next drawing
    }
    if (this.#alive) this.point();
  }

  /** Another subject, which names the chart and its files. @param {string} title */
  rename(title) {
    this.figure.options.title = title;
    this.panel.plot.setAttribute("aria-label", title);
    this.card.rename(title);
  }

  /** Words in the place of the chart: why there is none. @param {string} words */
  say(words) {
    this.figure.lines = [];
    this.#isDrawn = false;
    this.panel.plot.replaceChildren();
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
    const wait = now ? 0 : this.#drawnAt + GAP_MS - performance.now();
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
    this.panel.plot.replaceChildren(svgOf(this.figure.make(colors(), width, height)));
    this.#isDrawn = true;
    reportDrawn(this.figure.newest, performance.now() - this.#drawnAt);
    this.panel.describe(this.figure.summary());
    this.panel.showNotes(this.figure);
    this.point();
    void this.#askHeld();
    this.card.refresh();
  }

  /** The cursor's line and what the lines say there. */
  point() {
    if (this.#isDrawn) this.panel.point(this.figure);
  }

  /** A box was drawn: its width is the range of all charts, its height is of this one.
   * @param {[number, number] | null} steps @param {[number, number] | null} shares of the upright axis */
  #zoom(steps, shares) {
    const { figure, page } = this;
    const [low, high] = figure.axis?.range ?? [0, 1];
    const up = (/** @type {number} */ share) => low + share * (high - low);
    if (shares && figure.axis) figure.zoomed = figure.axis.values([up(shares[0]), up(shares[1])]);
    if (steps) {
      const first = Math.max(0, Math.ceil(steps[0]));
      page.follow.zoom(first, Math.max(first, Math.floor(steps[1])));
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

  /** The chart as SVG, with its title and its legend. */
  picture() {
    const page = colors();
    const [width, height] = [Math.max(480, this.panel.width), this.panel.height];
    const chart = svgOf(this.figure.make(page, width, height, true));
    let [x, y] = [SIGN, height + ROW / 2];
    const legend = this.figure.lines.flatMap((line, place) => {
      const wide = 2 * SIGN + line.name.length * LETTER;
      if (x + wide > width && x > SIGN) [x, y] = [SIGN, y + ROW];
      const color = colorOf(line, place, page);
      const text = { x: x + SIGN, y: y + 4, fill: page.ink, "font-family": "sans-serif", "font-size": 12 };
      const entry = [svg("rect", { x, y: y - 1, width: 14, height: 2, fill: color }), svg("text", text, line.name)];
      x += wide;
      return entry;
    });
    const parts = [chart, ...legend].map((each) => each.outerHTML);
    return titledSvg(this.figure.options.title, width, y + ROW, ...parts);
  }

  /** It is no more. */
  remove() {
    this.#alive = false;
    clearTimeout(this.#timer);
    for (const end of this.ends) end();
    this.panel.remove();
    this.card.remove();
  }
}

/** For benchmarks: when the first chart was drawn, and what each drawing shows.
 * @param {number | null} step @param {number} ms */
function reportDrawn(step, ms) {
  if (!performance.getEntriesByName("hookcore:chart").length) performance.mark("hookcore:chart");
  document.dispatchEvent(new CustomEvent("hookcore:drawn", { detail: { kind: "plot", step, ms } }));
}
