/** The lines of two runs in one chart. */
import { get, only } from "../api.js";
import { kindWords, moduleName, streamWords } from "../format.js";
import { lineOf } from "../live/curve.js";
import { LineChart } from "../plot/plot.js";

/** @import { Series } from "../answers.js"
 * @import { Line } from "../plot/thin.js"
 * @import { RunsClock } from "../timeline/runsclock.js" */

const POINTS = 1000;
const MAX_TAPS = 4; // of one layer: parameters, calls

/** @typedef {{id: string, name: string}} Side */
/** @typedef {import("../page.js").Page & {clock: RunsClock}} Page whose axis is that of runs */

/** The lines of both runs. @param {Page} page @param {Side[]} sides @param {Series[][]} answers of each run
 * @param {(series: Series, of: Series[]) => string} [more] what the name of a line says besides its run */
function linesOf(page, sides, answers, more = () => "") {
  return answers.flatMap((series, place) =>
    series.flatMap((line) => {
      const name = `${place ? "B" : "A"}: ${sides[place].name}${more(line, series)}`;
      return page.clock.moved({ ...lineOf(line), name, dashed: place === 1 }, sides[place].id) ?? [];
    }),
  );
}

/** @param {LineChart} chart @param {string} about @param {AbortSignal} signal @param {() => Promise<Line[] | string>}
 * load the lines, or why there are none */
async function draw(chart, about, signal, load) {
  try {
    const lines = await load();
    signal.throwIfAborted();
    if (typeof lines === "string") chart.say(lines);
    else chart.show(lines, about);
  } catch (error) {
    if (!signal.aborted) chart.fail(error, about);
    throw error;
  }
}

/** @param {Page} page @param {HTMLElement | null} figure @param {Side[]} sides
 * @param {() => Record<string, any>} asked the parameters of the comparison
 * @returns {(module: string, signal: AbortSignal) => Promise<void>} shows a layer, by its name in A */
export function makeOverlay(page, figure, sides, asked) {
  if (!figure) return async () => {};
  /** The numbers of the layer's taps, in A and in B. @type {number[][]} */
  let numbers = [[], []];
  const queryOf = (/** @type {number} */ place) => {
    const { id } = sides[place];
    const query = { tap: numbers[place], stat: asked().stat, ...page.clock.stepsOf(id), points: POINTS, run: id };
    return { path: "series", query };
  };
  const chart = new LineChart(page, figure, {
    title: "A layer in both runs",
    captured: true,
    y: { title: asked().stat, scale: "log" },
    query: () => sides.map((_, place) => queryOf(place)),
  });
  const heading = /** @type {HTMLElement} */ (figure.querySelector("h2"));
  return (module, signal) => {
    const about = `${moduleName(module)}: ${asked().stat} of ${kindWords(asked().kind)}`;
    heading.textContent = about;
    return draw(chart, about, signal, async () => {
      const query = { ...asked(), match: null, ...only(module), points: 1, limit: MAX_TAPS };
      const { layers } = await get("compare", query, signal);
      if (!layers.length) return "Only one of the runs has this layer.";
      numbers = [0, 1].map((place) => layers.map((layer) => layer.numbers[place]));
      const answers = await Promise.all([0, 1].map((place) => get("series", queryOf(place).query, signal)));
      /** @param {Series} line @param {Series[]} of */
      const more = ({ tap }, of) => (of.length > 1 && tap ? ` ${streamWords(tap)}` : "");
      return linesOf(
        page,
        sides,
        answers.map(({ series }) => series),
        more,
      );
    });
  };
}

/** @param {Page} page @param {HTMLElement | null} figure @param {Side[]} sides
 * @returns {(signal: AbortSignal) => Promise<void>} shows the newest */
export function makeLoss(page, figure, sides) {
  if (!figure) return async () => {};
  const name = figure.dataset.name ?? "loss";
  const queryOf = (/** @type {string} */ run) => ({ name, ...page.clock.stepsOf(run), points: POINTS, run });
  const chart = new LineChart(page, figure, {
    title: "Loss in both runs",
    y: { title: name, scale: "linear" },
    query: () => sides.map(({ id }) => ({ path: "scalars", query: queryOf(id) })),
  });
  return (signal) =>
    draw(chart, "", signal, async () => {
      const answers = await Promise.all(sides.map(({ id }) => get("scalars", queryOf(id), signal)));
      return linesOf(
        page,
        sides,
        answers.map(({ series }) => series),
      );
    });
}
