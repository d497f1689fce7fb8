/** A chart by Plotly that isn't over steps, such as points of runs. Its figure defines the chart. */
import { Card } from "../card.js";
import { h } from "../dom.js";
import { colors, onTheme } from "../theme.js";
import { blobOf, CONFIG, plotly } from "./library.js";

/** @import { Page } from "../page.js" */

/**
 * @typedef {object} Figure
 * @property {(colors: Record<string, string>, width: number, height: number) => {traces: any[], layout: any}} make
 * @property {() => {columns: string[], rows: any[][]}} table the same numbers
 * @property {() => string} summary the same in words
 */

let made = 0;

export class FreeChart {
  /** @type {Figure | null} */
  #figure = null;
  #alive = false; // whether Plotly has drawn in it
  #width = 0;
  #height = 0;

  /** @param {Page} page @param {HTMLElement} element the figure @param {{title: string, onPick?: (key: string) =>
   * void}} options `onPick` gets the `customdata` of the clicked point */
  constructor(page, element, options) {
    made += 1;
    this.page = page;
    this.options = options;
    const place = /** @type {HTMLElement} */ (element.querySelector(":scope > .plot"));
    this.summary = h("p", { class: "quiet-label", id: `free-${made}` });
    this.plot = h("div", {
      class: "plot-area",
      role: "img",
      "aria-label": options.title,
      "aria-describedby": `free-${made}`,
    });
    this.empty = h("p", { class: "empty", hidden: true });
    place.replaceChildren(this.plot, this.empty, this.summary);
    this.card = new Card(page, element, {
      title: options.title,
      table: () => this.#figure?.table() ?? { columns: [], rows: [] },
      png: () => this.picture("png"),
      svg: async () => (await this.picture("svg")).text(),
    });
    const draw = () => page.schedule.inTurn(this, () => this.draw());
    new ResizeObserver(([{ contentRect }]) => {
      const [width, height] = [Math.floor(contentRect.width), Math.floor(contentRect.height)];
      if (width === this.#width && height === this.#height) return;
      [this.#width, this.#height] = [width, height];
      draw();
    }).observe(this.plot);
    onTheme(draw);
    page.schedule.watch(this.plot, draw);
    plotly().then(draw, (error) => this.say(error.message));
    addEventListener("pagehide", () => this.#purge());
  }

  /** @param {Figure} figure */
  show(figure) {
    this.#figure = figure;
    this.#place("");
    this.page.schedule.inTurn(this, () => this.draw());
  }

  /** Words in the place of the chart: why there is none. @param {string} words */
  say(words) {
    this.#figure = null;
    this.#purge();
    this.#place(words);
    this.card.refresh();
  }

  /** @param {string} words */
  #place(words) {
    this.empty.textContent = words;
    this.empty.hidden = !words;
    this.plot.hidden = Boolean(words);
  }

  draw() {
    const { Plotly } = /** @type {any} */ (globalThis);
    if (!Plotly || !this.#figure || !this.#width || !this.page.schedule.isSeen(this.plot)) return;
    const { traces, layout } = this.#figure.make(colors(), this.#width, this.#height);
    Plotly.react(this.plot, traces, layout, CONFIG);
    if (!this.#alive) {
      this.#alive = true;
      const on = /** @type {any} */ (this.plot).on.bind(this.plot);
      on("plotly_click", (/** @type {any} */ event) => {
        const key = event.points[0]?.data?.meta ?? event.points[0]?.customdata;
        if (key) this.options.onPick?.(String(key));
      });
    }
    this.summary.textContent = this.#figure.summary();
    this.card.refresh();
  }

  /** @param {"png" | "svg"} format */
  async picture(format) {
    const Plotly = await plotly();
    if (!this.#figure) throw new Error("there is nothing to draw");
    const [width, height] = [Math.max(480, this.#width), Math.max(300, this.#height)];
    const { traces, layout } = this.#figure.make(colors(), width, height);
    const shown = { ...layout, paper_bgcolor: colors().card };
    return blobOf(
      await Plotly.toImage({ data: traces, layout: shown, config: CONFIG }, { format, width, height, scale: 2 }),
    );
  }

  #purge() {
    if (!this.#alive) return;
    this.#alive = false;
    /** @type {any} */ (globalThis).Plotly.purge(this.plot);
  }
}
