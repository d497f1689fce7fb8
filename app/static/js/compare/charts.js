/** The lines of two runs in one chart. */
import { get, only } from "../api.js";
import { kindWords, moduleName, streamWords } from "../format.js";
import { lineOf as curveOf } from "../live/curve.js";
import { LineChart } from "../plot/plot.js";

/** @import { Series } from "../answers.js"
 * @import { Line } from "../plot/thin.js"
 * @import { RunsClock } from "../timeline/runsclock.js" */

const POINTS = 1000;
const MAX_TAPS = 4; // of one layer: parameters, calls

/** @typedef {{id: string, name: string}} Side */
/** @typedef {import("../page.js").Page & {clock: RunsClock}} Page whose axis is that of runs */

/** @param {Series} series @param {Side} side @param {boolean} dashed @param {string} more @returns {Line} */
function lineOf(series, side, dashed, more) {
  return { ...curveOf(series), name: `${dashed ? "B" : "A"}: ${side.name}${more}`, dashed };
}

export class Overlay {
  /** @type {number[][]} the numbers of the layer's taps, in A and in B */
  #numbers = [[], []];

  /** @param {Page} page @param {HTMLElement} figure @param {Side[]} sides
   * @param {() => Record<string, any>} asked the parameters of the comparison */
  constructor(page, figure, sides, asked) {
    this.page = page;
    this.sides = sides;
    this.asked = asked;
    this.heading = /** @type {HTMLElement} */ (figure.querySelector("h2"));
    this.chart = new LineChart(page, figure, {
      title: "A layer in both runs",
      captured: true,
      y: { title: asked().stat, scale: "log" },
      query: () => sides.map((_, place) => this.query(place)),
    });
  }

  /** @param {number} place of the run */
  query(place) {
    const { stat } = this.asked();
    const { id } = this.sides[place];
    const query = { tap: this.#numbers[place], stat, ...this.page.clock.stepsOf(id), points: POINTS, run: id };
    return { path: "series", query };
  }

  /** @param {string} module its name in A @param {AbortSignal} signal */
  async show(module, signal) {
    const { kind, stat } = this.asked();
    const about = `${moduleName(module)}: ${stat} of ${kindWords(kind)}`;
    this.heading.textContent = about;
    try {
      const query = { ...this.asked(), match: null, ...only(module), points: 1, limit: MAX_TAPS };
      const { layers } = await get("compare", query, signal);
      signal.throwIfAborted();
      this.#numbers = [0, 1].map((place) => layers.map((layer) => layer.numbers[place]));
      if (!layers.length) return this.chart.say("Only one of the runs has this layer.");
      const answers = await Promise.all([0, 1].map((place) => get("series", this.query(place).query, signal)));
      signal.throwIfAborted();
      this.chart.show(
        answers.flatMap(({ series }, place) =>
          series.flatMap((line) => {
            const more = series.length > 1 ? ` ${line.tap ? streamWords(line.tap) : ""}` : "";
            const side = this.sides[place];
            return this.page.clock.moved(lineOf(line, side, place === 1, more), side.id) ?? [];
          }),
        ),
        about,
      );
    } catch (error) {
      if (!signal.aborted) this.chart.fail(error, about);
      throw error;
    }
  }
}

/** @param {Page} page @param {HTMLElement | null} figure @param {Side[]} sides
 * @returns {(signal: AbortSignal) => Promise<void>} shows the newest */
export function makeLoss(page, figure, sides) {
  if (!figure) return async () => {};
  const name = figure.dataset.name ?? "loss";
  const chart = new LineChart(page, figure, {
    title: "Loss in both runs",
    y: { title: name, scale: "linear" },
    query: () => sides.map(({ id }) => ({ path: "scalars", query: queryOf(id) })),
  });
  const queryOf = (/** @type {string} */ run) => ({ name, ...page.clock.stepsOf(run), points: POINTS, run });
  return async (signal) => {
    try {
      const answers = await Promise.all(sides.map(({ id }) => get("scalars", queryOf(id), signal)));
      signal.throwIfAborted();
      chart.show(
        answers.flatMap(({ series }, place) =>
          series.flatMap(
            (line) => page.clock.moved(lineOf(line, sides[place], place === 1, ""), sides[place].id) ?? [],
          ),
        ),
      );
    } catch (error) {
      if (!signal.aborted) chart.fail(error);
      throw error;
    }
  };
}
