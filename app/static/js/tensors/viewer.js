/** The selected snapshot, and another one to compare: one view, one part, one scale for both. */
import { getAll } from "../api.js";
import { Card } from "../card.js";
import { byId, h, makeButton } from "../dom.js";
import { tapWords } from "../format.js";
import { MAX_PAGE } from "../limits.js";
import { failedWords, isPassing, Refresh } from "../live/refresh.js";
import { Side, TILES, viewsOf } from "./side.js";
import { rangeOf, Tiles } from "./tiles.js";

/** @import { Snapshot } from "../answers.js"
 * @import { Page } from "../page.js"
 * @import { Look } from "./side.js" */

const TRIFLES = ["view", "at", "pool", "scale", "ends", "zoom", "after"];

export class Viewer {
  /** @type {Side[]} */
  sides = [];
  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    this.figure = byId("viewer");
    this.refresh = new Refresh((signal) => this.#load(signal));
    this.card = new Card(page, this.figure, { title: "Tensor", table: () => this.table(), png: () => this.png() });
    for (const name of TRIFLES) page.state.on(name, () => this.look());
    byId("view").addEventListener("change", (/** @type {any} */ event) =>
      page.state.set({ view: event.target.value, at: "", zoom: "", after: "" }),
    );
    for (const button of byId("zoom").querySelectorAll("button"))
      button.addEventListener("click", () => this.zoom(button.dataset.zoom, null));
    byId("panes").addEventListener("dblclick", (/** @type {MouseEvent} */ event) => this.zoom("in", event));
    page.keys.add("+", "zoom in", () => this.zoom("in", null), { group: "Tensor" });
    page.keys.add("-", "zoom out", () => this.zoom("out", null), { group: "Tensor" });
  }

  /** @param {Snapshot[]} entries one snapshot, or two */
  show(entries) {
    this.refresh.stop();
    for (const side of this.sides) side.close();
    this.sides = entries.map((entry) => new Side(this.page, entry));
    byId("panes").replaceChildren(...this.sides.map((side) => side.element));
    this.figure.hidden = !entries.length;
    byId("viewer-empty").hidden = entries.length > 0;
    byId("viewer-tools").hidden = !entries.length;
    if (entries.length) return this.look();
  }

  /** What the address says of how to look at it. @returns {Look} */
  get wanted() {
    const { state } = this.page;
    const { kept_shape: shape, tap } = this.sides[0].entry;
    const views = viewsOf(shape, tap);
    const view = views.find(({ name }) => name === state.get("view")) ?? views[0];
    const written = state.get("at").split(",").map(Number);
    const picks = view.pickers.map(({ size }, place) =>
      Math.max(0, Math.min(size - 1, Math.floor(written[place]) || 0)),
    );
    const part = /^(\d+):(\d+),(\d+):(\d+)$/.exec(state.get("zoom"))?.slice(1).map(Number);
    return {
      view,
      picks,
      part: part ? { rows: [part[0], part[1]], columns: [part[2], part[3]] } : null,
      pool: state.get("pool"),
      scale: state.get("scale"),
      ends: state.get("ends"),
      after: Math.max(0, Number(state.get("after")) || 0),
    };
  }

  /** Asks for it and draws it. */
  look() {
    return this.refresh.now();
  }

  /** Without a picture, there are words in its place: the one before was of another look.
   * @param {AbortSignal} signal */
  async #load(signal) {
    if (!this.sides.length) return;
    const look = this.wanted;
    this.#controls(look);
    const loaded = await Promise.allSettled(this.sides.map((side) => side.load(look, signal)));
    signal.throwIfAborted();
    const failures = loaded.map((result) => (result.status === "rejected" ? result.reason : null));
    for (const [place, error] of failures.entries()) if (error) this.sides[place].say(failedWords(error));
    this.#draw(look);
    const again = failures.find((error) => error && isPassing(error));
    if (again) throw again;
  }

  /** @param {Look} look */
  #draw(look) {
    const range =
      this.sides.length > 1
        ? rangeOf(
            Float64Array.from(this.sides.flatMap((side) => Array.from(side.data?.values ?? []))),
            look.ends === "all",
          )
        : undefined;
    for (const side of this.sides) side.draw(range);
    this.#label(look);
    byId("pool-row").hidden =
      !this.sides.some((side) => side.data && side.data.factors[0] * side.data.factors[1] > 1) ||
      look.view.draws === "trace";
    this.#pages(look);
    this.card.refresh();
  }

  /** @param {Look} look */
  #controls({ view, picks }) {
    const { entry } = this.sides[0];
    byId("viewer-title").textContent = tapWords(entry.tap);
    const views = viewsOf(entry.kept_shape, entry.tap);
    byId("view").replaceChildren(
      ...views.map(({ name, words }) => h("option", { value: name, selected: name === view.name }, words)),
    );
    const inputs = view.pickers.map(({ words, size }, place) => {
      const input = /** @type {HTMLInputElement} */ (
        h("input", { type: "number", min: 0, max: size - 1, value: picks[place], size: 5 })
      );
      input.addEventListener("change", () => this.pick(place, Number(input.value)));
      return h("label", {}, words, " ", input, h("span", { class: "quiet" }, `of ${size}`));
    });
    // A hand that is in a field keeps it.
    if (!byId("pickers").contains(document.activeElement) || byId("pickers").childElementCount !== inputs.length)
      byId("pickers").replaceChildren(...inputs);
    for (const name of ["scale", "ends"]) {
      const label = document.querySelector(`#viewer-tools [name=${name}]`)?.closest("label");
      if (label) label.hidden = view.draws === "trace";
    }
    byId("zoom").hidden = view.draws === "trace" || entry.kept_shape.length < 2;
  }

  /** Shows what the chosen sample is called. @param {Look} look */
  #label({ view, picks }) {
    const place = view.pickers.findIndex(({ axis }) => axis === 0);
    const label = place < 0 ? "" : (this.sides[0]?.names.labels[picks[place]] ?? "");
    const of = byId("pickers").querySelectorAll("label > span")[place];
    if (of) of.textContent = `of ${view.pickers[place].size}${label && ` \u00b7 ${label}`}`;
  }

  /** @param {number} place @param {number} value */
  pick(place, value) {
    const picks = [...this.wanted.picks];
    picks[place] = Math.max(0, Math.floor(value) || 0);
    this.page.state.set({ at: picks.every((pick) => pick === 0) ? "" : picks.join(","), after: "" });
  }

  /** @param {string | undefined} how @param {MouseEvent | null} event */
  zoom(how, event) {
    const [side] = this.sides;
    if (!side?.data || side.entry.kept_shape.length < 2 || this.wanted.view.draws === "trace") return;
    const cell = event && side.picture instanceof Tiles ? side.picture.at : null;
    const next = zoomed(side.entry.kept_shape.slice(-2), this.wanted.part, how ?? "whole", cell, side.data.factors);
    this.page.state.set({ zoom: next ? `${next.rows.join(":")},${next.columns.join(":")}` : "" });
  }

  /** @param {Look} look */
  #pages({ after }) {
    const total = this.sides[0].total;
    const go = (/** @type {number} */ to, /** @type {string} */ words, /** @type {boolean} */ off) =>
      makeButton(words, () => this.page.state.set({ after: to > 0 ? String(to) : "" }), { disabled: off });
    byId("pages").hidden = total <= TILES;
    byId("pages").replaceChildren(
      go(after - TILES, "Previous", after <= 0),
      h("span", { class: "quiet" }, `${after}\u2013${Math.min(total, after + TILES) - 1} of ${total}`),
      go(after + TILES, "Next", after + TILES >= total),
    );
  }

  /** What is in the picture: the values of a matrix, of many tiles what each is. */
  table() {
    const data = this.sides[0]?.data;
    if (!data) return { columns: ["row"], rows: [] };
    const [tiles, rows, columns] = data.shape;
    if (tiles === 1 && rows * columns <= 20000) {
      const names = /** @type {any} */ (this.sides[0].picture)?.picture?.names;
      const line = (/** @type {number} */ row) => [
        names?.rows[row] ? `${row} ${names.rows[row]}` : row,
        ...data.values.subarray(row * columns, (row + 1) * columns),
      ];
      return {
        columns: ["row", ...Array.from({ length: columns }, (_, at) => `${at} ${names?.columns[at] ?? ""}`.trim())],
        rows: Array.from({ length: rows }, (_, row) => line(rows - 1 - row)),
      };
    }
    const lines = Array.from({ length: tiles }, (_, tile) => {
      const part = Float64Array.from(data.values.subarray(tile * rows * columns, (tile + 1) * rows * columns));
      const finite = part.filter(Number.isFinite);
      const sum = finite.reduce((a, b) => a + b, 0);
      return [
        tile + (this.wanted.after || 0),
        finite.length ? finite.reduce((a, b) => Math.min(a, b)) : NaN,
        sum / finite.length,
        finite.length ? finite.reduce((a, b) => Math.max(a, b)) : NaN,
        part.length - finite.length,
      ];
    });
    return { columns: ["tile", "min", "mean", "max", "non-finite"], rows: lines.reverse() };
  }

  /** @returns {Promise<Blob>} */
  async png() {
    const picture = this.sides[0]?.picture;
    if (!picture) throw new Error("no tensor is shown");
    return picture.image();
  }
}

const MIN_LENGTH = 4;

/** @typedef {{rows: [number, number], columns: [number, number]}} Part */

/** Half of it, twice of it, or the whole (null). @param {number[]} shape rows and columns @param {Part | null} part
 * @param {string} how in, out, whole @param {{row: number, column: number} | null} [cell] to zoom at; else the middle
 * @param {[number, number]} [factors] values of a cell @returns {Part | null} */
export function zoomed(shape, part, how, cell = null, factors = [1, 1]) {
  if (how === "whole") return null;
  const before = part ?? { rows: [0, shape[0]], columns: [0, shape[1]] };
  const change = (
    /** @type {[number, number]} */ [from, to],
    /** @type {number} */ size,
    /** @type {number | null} */ at,
  ) => {
    const length = Math.min(
      size,
      Math.max(Math.min(MIN_LENGTH, size), Math.round((to - from) * (how === "in" ? 0.5 : 2))),
    );
    const center = at ?? (from + to) / 2;
    const start = Math.max(0, Math.min(size - length, Math.round(center - length / 2)));
    return /** @type {[number, number]} */ ([start, start + length]);
  };
  const rows = change(before.rows, shape[0], cell && before.rows[0] + (cell.row + 0.5) * factors[0]);
  const columns = change(before.columns, shape[1], cell && before.columns[0] + (cell.column + 0.5) * factors[1]);
  return rows[1] - rows[0] === shape[0] && columns[1] - columns[0] === shape[1] ? null : { rows, columns };
}

/** All of a run, oldest first. @param {string} run @returns {Promise<Snapshot[]>} */
export async function snapshotsOf(run) {
  return (await getAll("snapshots", { run, limit: MAX_PAGE })).flatMap(({ snapshots }) => snapshots);
}

/** The newest step first; within a step in the order of the requests, attention before its gradients. Pure.
 * @param {Snapshot[]} snapshots */
export function listed(snapshots) {
  return [...snapshots].sort((one, two) => two.step - one.step || one.number - two.number);
}
