/** Attention over all layers: what each position of the last one sees of each before the first. */
import { get, numberOf } from "../api.js";
import { Card } from "../card.js";
import { byId, h, tell } from "../dom.js";
import { count, counted, moduleName, number, percent, stepWords } from "../format.js";
import { failedWords, Refresh } from "../live/refresh.js";
import { showScale, Tiles } from "./tiles.js";
import { Trace } from "./trace.js";

/** @import { Rollout, RolloutLayer } from "../answers.js"
 * @import { Page } from "../page.js" */

/** @typedef {{from?: number, to?: number}} Steps as `follow.values`: nothing for the newest */

/** How far a step is from the steps of the page. @param {number} step @param {Steps} steps */
function distance(step, { from, to }) {
  return from === undefined || to === undefined ? 0 : Math.max(from - step, step - to, 0);
}

/** The nearest one; of several, the first. @template {{step: number}} T @param {T[]} items @param {Steps} steps
 * @returns {T | null} */
export function nearestOf(items, steps) {
  return items.reduce(
    (/** @type {T | null} */ best, item) =>
      best === null || distance(item.step, steps) < distance(best.step, steps) ? item : best,
    null,
  );
}

/** What must be known of something of a step, if the page is about others; else "".
 * @param {string} what @param {number} step @param {Steps} steps @param {boolean} chosen whether the reader chose it */
export function aboutStep(what, step, steps, chosen) {
  if (!distance(step, steps)) return "";
  const { from = 0, to = 0 } = steps;
  const about = stepWords(from, to);
  const rest = chosen ? `; the page is held at ${about}` : `, the nearest to ${about}`;
  return `${what} of step ${count(step)}${rest}.`;
}

const TRIFLES = ["rollout", "sample", "fuse", "discard", "gradient"];
const LISTED = 3; // layers that are named

/** Positions without the class token in a square, where they are one: those of a picture. Pure.
 * @param {number} positions @returns {{side: number, from: number} | null} */
export function squareOf(positions) {
  for (const from of [1, 0]) {
    const side = Math.round(Math.sqrt(positions - from));
    if (side > 2 && side * side === positions - from) return { side, from };
  }
  return null;
}

/** @param {RolloutLayer[]} layers */
function namesOf(layers) {
  const names = layers.map((layer) => moduleName(layer.tap.module));
  return names.length <= LISTED ? names.join(", ") : `${names[0]} to ${names[names.length - 1]}`;
}

export class Rolled {
  /** @type {(Omit<Rollout, "matrix"> & {matrix: number[][]}) | null} */
  rollout = null;
  /** @type {Tiles | Trace | null} */
  row = null;

  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    const { state } = page;
    this.figure = byId("rollout");
    this.refresh = new Refresh((signal) => this.#look(signal), { failed: (error) => this.#fail(error) });
    this.matrix = new Tiles(page, byId("rollout-matrix"), {
      title: "Attention rollout",
      height: 420,
      onPoint: (cell) => this.#say(cell),
      onChoose: ({ row }) => state.set({ position: String(row) }),
    });
    this.card = new Card(page, this.figure, {
      title: "Attention rollout",
      table: () => this.table(),
      query: () => ({ path: "attention-rollout", query: this.query }),
      png: () => this.matrix.image(),
    });
    for (const name of TRIFLES) state.on(name, () => this.look());
    page.follow.on("change", () => this.rollout && this.look());
    for (const name of ["position", "image"]) state.on(name, () => this.#showRow());
    byId("rollout-step").addEventListener("change", (/** @type {any} */ event) =>
      state.set({ rollout: event.target.value }),
    );
  }

  get query() {
    const { state } = this.page;
    return {
      run: this.page.run,
      step: state.get("rollout"),
      sample: state.get("sample"),
      fuse: state.get("fuse"),
      discard: state.get("discard"),
      gradient: state.get("gradient") === "1",
    };
  }

  /** Requests the rollout; without captured maps there is nothing to show. */
  look() {
    return this.refresh.now();
  }

  /** @param {AbortSignal} signal */
  async #look(signal) {
    byId("discard-words").textContent = percent(Number(this.page.state.get("discard"))).replace(".0", "");
    const answer = await this.#ask(signal);
    this.rollout = { ...answer, matrix: answer.matrix.map((row) => row.map(numberOf)) };
    tell(byId("rollout-problem"), "");
    byId("rollout-shown").hidden = false;
    this.figure.hidden = !answer.layers.length;
    this.#show();
  }

  /** @param {unknown} error */
  #fail(error) {
    tell(byId("rollout-problem"), failedWords(error));
    byId("rollout-shown").hidden = true; // it is of other choices
    this.figure.hidden = false;
    if (this.page.state.get("gradient") === "1") byId("gradient-row").hidden = false;
  }

  /** The rollout of the chosen step, or of the one nearest to those of the page. */
  async #ask(/** @type {AbortSignal} */ signal) {
    const { query, page } = this;
    const answer = await get("attention-rollout", query, signal);
    const steps = answer.steps.map((step) => ({ step }));
    const near = query.step ? null : nearestOf(steps.reverse(), page.follow.values);
    return near === null || near.step === answer.step
      ? answer
      : await get("attention-rollout", { ...query, step: near.step }, signal);
  }

  #show() {
    if (!this.rollout?.layers.length) return;
    const { label, layers, matrix, step, steps, sample, samples, tokens } = this.rollout;
    const size = matrix.length;
    byId("rollout-step").replaceChildren(
      ...[...steps].reverse().map((other) => h("option", { value: other, selected: other === step }, count(other))),
    );
    const heads = layers.reduce((sum, layer) => sum + layer.heads, 0);
    const differ = layers.every((layer) => layer.gradient !== null);
    byId("gradient-row").hidden = !differ && this.page.state.get("gradient") !== "1";
    const named = `${layers.length} ${layers.length === 1 ? "layer" : "layers"} (${namesOf(layers)})`;
    const of = `sample ${sample} of ${samples}${label && ` (${label})`}`;
    const { follow, state } = this.page;
    byId("rollout-about").textContent = [
      ...[aboutStep("Maps", step ?? NaN, follow.values, state.get("rollout") !== "")].filter(Boolean),
      `${named}, ${counted(heads, "head")}, ${counted(size, "position")}, ${of}.`,
      "Each row shows what a position of the last layer attends to before the first; rows sum to 1.",
      "Discard drops the smallest weights of each row, but never those of the first position.",
      ...(differ ? [] : ["Weighting by gradient isn\u2019t available: this step has no snapshots of gradients."]),
    ].join(" ");
    this.matrix.show({
      values: Float32Array.from(matrix.flat()),
      shape: [1, size, size],
      shared: true,
      names: { rows: tokens, columns: tokens },
    });
    showScale(byId("rollout-scale"), this.matrix);
    this.#showRow();
    this.card.refresh();
  }

  /** The row of one position: a line; if the reader says that the positions are those of an image, an image. */
  #showRow() {
    if (!this.rollout) return;
    const { matrix } = this.rollout;
    const place = Math.max(0, Math.min(matrix.length - 1, Number(this.page.state.get("position")) || 0));
    const fits = squareOf(matrix.length);
    const square = this.page.state.get("image") === "1" ? fits : null;
    byId("image-row").hidden = fits === null;
    if (fits) byId("image-words").textContent = `show as a ${fits.side} \u00d7 ${fits.side} image`;
    this.row?.close();
    const element = byId("rollout-row");
    const as = square ? ` (as a ${square.side} \u00d7 ${square.side} image)` : "";
    const called = this.#called(place);
    const words = `What position ${called} attends to${as}. Click a row of the matrix to choose another position.`;
    element.replaceChildren(h("p", { class: "quiet small" }, words));
    const title = `What position ${called} attends to`;
    if (square) {
      this.row = new Tiles(this.page, element, {
        title,
        height: 380,
        onPoint: (cell) =>
          this.#say(cell && { row: place, column: cell.row * square.side + cell.column + square.from }),
      });
      this.row.show({
        values: Float32Array.from(matrix[place].slice(square.from)),
        shape: [1, square.side, square.side],
        shared: true,
      });
    } else {
      this.row = new Trace(this.page, element, {
        title,
        onPoint: (at) => this.#say(at === null ? null : { row: place, column: at }),
      });
      this.row.show(matrix[place], matrix[place]);
    }
  }

  /** @param {{row: number, column: number} | null} cell */
  #say(cell) {
    const weight = cell && number(this.rollout?.matrix[cell.row]?.[cell.column]);
    const words = cell ? `position ${this.#called(cell.row)} \u2192 ${this.#called(cell.column)}: ${weight}` : "\u00a0";
    byId("rollout-words").textContent = words;
    return words;
  }

  /** A position, and its token. @param {number} place */
  #called(place) {
    const token = this.rollout?.tokens[place];
    return token === undefined ? String(place) : `${place} (${token})`;
  }

  table() {
    const matrix = this.rollout?.matrix ?? [];
    return {
      columns: ["position", ...matrix.map((_, place) => this.#called(place))],
      rows: matrix.map((row, place) => [this.#called(place), ...row]).reverse(),
    };
  }
}
