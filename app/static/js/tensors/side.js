// @ts-check
/** The view of one snapshot: its picture, the value under the pointer, its statistics, its files. */
import { get, getFile, numberOf, urlOf } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, number, percent } from "../format.js";
import { tapWords } from "../kinds.js";
import { besides, NONE, wordsAt } from "./names.js";
import { readNpy } from "./npy.js";
import { indicesOf, sliceOf } from "./plan.js";
import { showScale } from "./scalebar.js";
import { Tiles } from "./tiles.js";
import { Trace } from "./trace.js";

const MAX_CELLS = 384; // of a tile, across and down: more is squeezed
const MAX_VALUES = 1_500_000; // of all tiles of a picture
export const TILES = 64; // on a page of them
const TRACE = 800;

/** @typedef {import("./plan.js").View} View */
/** @typedef {{rows: [number, number], columns: [number, number]}} Part */
/**
 * @typedef {{view: View, picks: number[], part: Part | null, pool: string, scale: string, ends: string, after:
 * number}} Look
 */

export class Side {
  /** @type {Tiles | Trace | null} */
  picture = null;
  /** @type {{values: Float32Array | Float64Array, shape: [number, number, number], factors: [number, number]} | null}
   */
  data = null;
  total = 0;
  /** @type {Record<string, number>} */
  statistics = {};
  slice = "";
  /** @type {import("./names.js").Names} */
  names = NONE;

  /** @param {import("../page.js").Page} page @param {import("../answers.js").Snapshot} entry
   * @param {number} [height] of its tiles, at most */
  constructor(page, entry, height) {
    this.page = page;
    this.entry = entry;
    this.height = height;
    this.about = h("p", { class: "quiet small" }, aboutOf(entry));
    this.plot = h("div", { class: "plot" });
    this.words = h("p", { class: "inspector", "aria-live": "off" }, "\u00a0");
    this.bar = h("div", { class: "scale-bar" });
    this.facts = h("dl", { class: "facts" });
    this.files = h("p", { class: "row" });
    this.why = h("p", { class: "quiet small", hidden: true });
    this.element = h(
      "div",
      { class: "pane" },
      this.about,
      this.why,
      this.plot,
      this.words,
      this.bar,
      this.facts,
      this.files,
    );
  }

  /** Asks for what a look needs. @param {Look} look @param {AbortSignal} signal */
  async load(look, signal) {
    const { run } = this.page;
    const shape = this.entry.kept_shape;
    this.look = look;
    this.slice = sliceOf(shape, look.view, look.picks, look.part);
    const asked = { run, slice: this.slice, after: look.after, limit: TILES };
    const path = /** @type {const} */ (`snapshots/${this.entry.number}`);
    const trace = look.view.draws === "trace";
    const tiles = Math.max(
      1,
      Math.min(
        TILES,
        shape
          .slice(look.view.pickers.length, -2)
          .reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b, 1),
      ),
    );
    const most = Math.min(MAX_CELLS, Math.floor(Math.sqrt(MAX_VALUES / tiles)));
    const [names, said, low, high] = await Promise.all([
      this.entry.named ? get(`${path}/names`, { run }, signal) : NONE,
      get(`${path}/statistics`, { run, slice: this.slice }, signal),
      trace
        ? tilesOf(path, { ...asked, columns: TRACE, pool: "min" }, signal)
        : tilesOf(path, { ...asked, rows: most, columns: most, pool: look.pool }, signal),
      trace ? tilesOf(path, { ...asked, columns: TRACE, pool: "max" }, signal) : null,
    ]);
    this.statistics = Object.fromEntries(
      Object.entries(said.statistics).map(([name, value]) => [name, numberOf(value)]),
    );
    const inside = said.shape.slice(-2);
    const whole = [...Array(2 - inside.length).fill(1), ...inside];
    const factors = /** @type {[number, number]} */ (
      [0, 1].map((at) => Math.max(1, Math.ceil(whole[at] / (trace && at ? TRACE : most))))
    );
    this.total = said.shape.slice(0, -2).reduce((a, b) => a * b, 1);
    this.data = { values: low.values, shape: /** @type {any} */ (low.shape), factors };
    this.high = high?.values ?? null;
    this.names = names;
    this.why.textContent = names.why;
    this.why.hidden = !names.why;
  }

  /** Words in the place of the picture: it was not of this look. @param {string} words */
  say(words) {
    this.picture?.close();
    this.picture = null;
    this.data = null;
    this.total = 0;
    for (const each of [this.plot, this.bar, this.facts, this.files]) each.replaceChildren();
    this.words.textContent = "\u00a0";
    this.why.textContent = words;
    this.why.hidden = false;
  }

  /** @param {ReturnType<typeof import("./layout.js").rangeOf> | undefined} range shared with another side */
  draw(range) {
    const { look, data } = this;
    if (!look || !data) return;
    const trace = look.view.draws === "trace";
    if (!this.picture || this.picture instanceof Trace !== trace) {
      this.picture?.close();
      const title = `${tapWords(this.entry.tap)}, step ${this.entry.step}`;
      this.picture = trace
        ? new Trace(this.page, this.plot, {
            title,
            onPoint: (place) => this.#say(place < 0 ? null : { tile: 0, row: 0, column: place }),
          })
        : new Tiles(this.page, this.plot, { title, height: this.height, onPoint: (cell) => this.#say(cell) });
    }
    if (this.picture instanceof Trace)
      this.picture.show(data.values, this.high ?? data.values, data.factors[1], this.statistics.count);
    else
      this.picture.show({
        values: data.values,
        shape: data.shape,
        shared: look.scale === "shared",
        whole: look.ends === "all",
        range: look.scale === "shared" ? range : undefined,
        names: besides(this.names, {
          dimensions: this.entry.kept_shape.length,
          sample: look.picks[look.view.pickers.findIndex(({ axis }) => axis === 0)] ?? 0,
          cells: [data.shape[1], data.shape[2]],
          factors: data.factors,
          part: look.part,
        }),
      });
    showScale(this.bar, this.picture instanceof Tiles ? this.picture : null);
    this.#facts();
    this.#files();
  }

  /** @param {{tile: number, row: number, column: number} | null} cell */
  #say(cell) {
    const { look, data } = this;
    if (!cell || !look || !data) {
      this.words.textContent = "\u00a0";
      return;
    }
    const place = (cell.tile * data.shape[1] + cell.row) * data.shape[2] + cell.column;
    const value = data.values[place];
    const squeezed = data.factors[0] * data.factors[1] > 1;
    const indices = indicesOf(
      this.entry.kept_shape,
      look.view,
      look.picks,
      { ...cell, tile: cell.tile + look.after },
      data.factors,
      look.part,
    );
    const told =
      look.view.draws === "trace" && squeezed
        ? `${number(value)} to ${number(this.high?.[place] ?? value)}`
        : number(value);
    const pooled = { max: "largest", min: "least" }[look.pool] ?? look.pool;
    const of = squeezed && look.view.draws !== "trace" ? `  (the ${pooled} of ${data.factors.join(" \u00d7 ")})` : "";
    const called = wordsAt(this.names, indices);
    const words = `[${indices.join(", ")}]  ${told}${of}${called && `  ${called}`}`;
    this.words.textContent = words;
    if (document.activeElement === this.picture?.canvas) this.page.announce(words);
  }

  #facts() {
    const { count: all, nan, inf, zero, ...others } = this.statistics;
    const counts = { values: count(all), zero: percent(all ? zero / all : 0), NaN: count(nan), infinite: count(inf) };
    const told = [...Object.entries(counts), ...Object.entries(others).map(([name, value]) => [name, number(value)])];
    this.facts.replaceChildren(
      ...told.map(([name, value]) =>
        h(
          "div",
          { class: (name === "NaN" && nan) || (name === "infinite" && inf) ? name.slice(0, 3).toLowerCase() : null },
          h("dt", {}, name),
          h("dd", {}, value),
        ),
      ),
    );
  }

  #files() {
    const link = (/** @type {string} */ format, /** @type {string} */ words, /** @type {string} */ slice) =>
      h(
        "a",
        {
          class: "button small",
          download: `${this.entry.tap.label.replace(/[^A-Za-z0-9._-]+/g, "-")}_step${this.entry.step}.${format}`,
          href: urlOf(`snapshots/${this.entry.number}`, { run: this.page.run, format, slice }),
        },
        words,
      );
    const flat = (this.data?.shape[0] ?? 0) === 1;
    this.files.replaceChildren(
      h("span", { class: "quiet small" }, "Download"),
      link("npy", "npy", ""),
      link("safetensors", "safetensors", ""),
      ...(this.slice ? [link("npy", "this slice as npy", this.slice)] : []),
      ...(flat ? [link("csv", "CSV", this.slice), link("png", "PNG, one pixel per value", this.slice)] : []),
    );
  }

  close() {
    this.picture?.close();
    this.element.remove();
  }
}

/** @param {import("../answers.js").Snapshot} entry */
export function aboutOf(entry) {
  const cut = entry.truncated
    ? ` \u00b7 only ${entry.kept_shape.join(" \u00d7 ")} was captured: the tensor exceeds the trainer's limit`
    : "";
  const shape = entry.shape.join(" \u00d7 ") || "one value";
  return `${[`step ${count(entry.step)}`, shape, entry.dtype, bytes(entry.nbytes)].join(" \u00b7 ")}${cut}`;
}

/** @param {string} path @param {Record<string, any>} query @param {AbortSignal} signal */
async function tilesOf(path, query, signal) {
  const answer = await getFile(`${path}/tiles`, { ...query, format: "npy" }, signal);
  return readNpy(await answer.arrayBuffer());
}
