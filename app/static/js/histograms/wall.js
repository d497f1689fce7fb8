/** The tiles of the Histograms page: which layers, in which order. Only those in view have a canvas and are requested,
 * up to 50 at a time. */
import { get, getAll, numberOf } from "../api.js";
import { h, penLike, write } from "../dom.js";
import { moduleName } from "../format.js";
import { MAX_HISTOGRAMS, MAX_LATEST, MAX_PAGE } from "../limits.js";
import { Refresh } from "../live/refresh.js";
import { cut, sharedBy } from "../paths.js";
import { visit } from "../timeline/links.js";
import { ROOT } from "../vocabulary.js";
import { HistMap } from "./map.js";
import { HistProfile } from "./profile.js";
import { axisOf, barsOf, shapeOf } from "./shape.js";

/** @import { Histograms } from "../answers.js"
 * @import { Page } from "../page.js"
 * @import { Scale } from "../scale.js" */

/**
 * @typedef {object} Layer
 * @property {number} tap
 * @property {string} module
 * @property {string} label the tap without its module
 * @property {string} type
 * @property {number} place in the model
 * @property {number} zero share of zeros, in the newest step; NaN if unknown
 * @property {number} spread standard deviation
 * @property {number} drift how far the size went in the window: the logarithm of last to first, its magnitude
 * @property {number} bad how many values are not finite
 */

/** The largest first; NaN is the worst of all, but only if something is known.
 * @type {Record<string, (layer: Layer) => number>} */
const KEYS = {
  zero: (layer) => layer.zero,
  spread: (layer) => layer.spread,
  drift: (layer) => layer.drift,
  bad: (layer) => layer.bad,
};

/** @param {Layer[]} layers @param {string} sort @returns {Layer[]} */
export function ordered(layers, sort) {
  const key = KEYS[sort];
  const inModel = [...layers].sort((a, b) => a.place - b.place || a.tap - b.tap);
  if (!key) return inModel;
  const rank = (/** @type {Layer} */ layer) => (Number.isNaN(key(layer)) ? -Infinity : key(layer));
  return inModel.sort((a, b) => (rank(b) === rank(a) ? 0 : rank(b) - rank(a)));
}

/** How far the size of each row went: the largest change of scale against its first column that was seen.
 * @param {(number | null)[][]} rows worst values by row and column @param {number[][]} states 0 empty, 1 finite
 * @returns {number[]} */
export function driftOf(rows, states) {
  return rows.map((row, place) => {
    const sizes = row
      .map((value, column) => (states[place][column] === 1 ? Math.abs(Number(value)) : 0))
      .filter((size) => size > 0);
    return sizes.length < 2 ? NaN : Math.max(...sizes.map((size) => Math.abs(Math.log2(size / sizes[0]))));
  });
}

const DRIFT_COLUMNS = 12; // of the heatmap from which drift is computed
const ROWS = 5000;

/** @typedef {{type: string, place: number}} Placed */

/** All modules of a run, by path.
 * @param {string} run @param {AbortSignal} signal @returns {Promise<Map<string, Placed>>} */
export async function modulesOf(run, signal) {
  const parts = await getAll(`runs/${encodeURIComponent(run)}/modules`, { limit: MAX_PAGE }, signal);
  const modules = parts.flatMap((part) => part.modules);
  return new Map(modules.map(({ path, type }, place) => [path, { type, place }]));
}

/** The layers of a kind with their newest values in some steps.
 * @param {string} run @param {string} kind @param {Map<string, Placed>} modules
 * @param {{from?: number, to?: number}} steps @param {AbortSignal} signal @returns {Promise<Layer[]>} */
export async function layersOf(run, kind, modules, steps, signal) {
  const query = { run, kind, limit: MAX_LATEST };
  const newest = await get("latest", query, signal);
  const shown = steps.to === undefined ? newest : await get("latest", { ...query, ...steps }, signal);
  const values = new Map(shown.taps.map((tap) => [tap.number, tap.values]));
  const column = (/** @type {string} */ name) => newest.stats.indexOf(name);
  const [zero, spread, bad] = ["zero_fraction", "std", "nonfinite"].map(column);
  return newest.taps.map((tap) => {
    const at = values.get(tap.number) ?? []; // nothing if it wasn't captured in these steps
    return {
      tap: Number(tap.number),
      module: tap.module,
      label: tap.label.slice((tap.module || ROOT).length).trim(),
      type: modules.get(tap.module)?.type ?? "",
      place: modules.get(tap.module)?.place ?? modules.size,
      zero: numberOf(at[zero]),
      spread: numberOf(at[spread]),
      bad: numberOf(at[bad]),
      drift: NaN,
    };
  });
}

/** Sets each layer's drift over the shown steps. @param {string} run @param {string} kind @param {[number, number] |
 * null} span @param {Layer[]} layers @param {AbortSignal} signal */
export async function addDrift(run, kind, span, layers, signal) {
  const [from, to] = span ?? [];
  const answer = await get("heatmap", { run, kind, stat: "rms", columns: DRIFT_COLUMNS, rows: ROWS, from, to }, signal);
  const drifts = driftOf(
    answer.worst.map((row) => row.map(numberOf)),
    answer.state,
  );
  const driftOfTap = new Map(answer.rows.map((row, place) => [row.number, drifts[place]]));
  for (const layer of layers) layer.drift = driftOfTap.get(layer.tap) ?? NaN;
}

const CHUNK = 120; // tiles that are made at once; more when the reader scrolls near the end
const NARROW_CHUNK = 16; // in a single column
const TYPE_PX = 64; // of a tile's title, for the class
const NARROW_PX = 700;
const MAX_CACHED = 300; // answers, for tiles that come into view again
const BAR_COLUMNS = 160;
const BINS = 112;
const PAUSE = { min: 60, max: 2000, share: 1 };
const HEIGHTS = /** @type {Record<string, number>} */ ({ s: 84, m: 128, l: 210 });

/** @typedef {{layer: Layer, element: HTMLElement, name: HTMLElement, plot: HTMLElement, map: HistMap | HistProfile |
 * null, zoomed: [number, number] | null}} Tile `zoomed` are the values between which the reader zoomed in */

export class Wall {
  /** @type {Tile[]} */
  tiles = [];
  /** @type {Layer[]} */
  layers = [];
  /** By tap, with the generation of the request. @type {Map<number | null, {answer: Histograms, at: number}>} */
  #answers = new Map();
  #shared = 0; // names that all paths begin with
  /** The generation that is wanted: increases with new steps. */
  #at = 0;
  /** @type {Map<Element, Tile>} */
  #byElement = new Map();
  /** Shared by all tiles; null if each has its own. @type {Scale | null} */
  axis = null;
  /** @type {[number, number] | null} */
  span = null;

  /** @param {Page} page @param {HTMLElement} element */
  constructor(page, element) {
    this.page = page;
    this.element = element;
    this.end = h("div", { class: "wall-end" });
    this.refresh = new Refresh((signal) => this.#ask(signal), PAUSE);
    this.watch = new IntersectionObserver((entries) => this.#saw(entries), { rootMargin: "300px" });
    this.watch.observe(this.end);
  }

  /** @param {Layer[]} layers in order */
  show(layers) {
    for (const tile of this.tiles) this.#hide(tile);
    this.#byElement.clear();
    this.tiles = [];
    this.layers = layers;
    this.#shared = sharedBy(layers.map(({ module }) => ({ module: moduleName(module) })));
    this.element.replaceChildren();
    this.#more();
  }

  /** Drops all answers: they are of another kind, or of other steps. */
  forget() {
    this.#answers.clear();
  }

  #more() {
    const made = this.tiles.length;
    const many = innerWidth < NARROW_PX ? NARROW_CHUNK : CHUNK;
    for (const layer of this.layers.slice(made, made + many)) {
      const plot = h("div", { class: "plot" });
      const address = this.page.address("layer", { module: layer.module });
      const name = h("a", { href: address }, moduleName(layer.module));
      const element = h(
        "article",
        { class: "tile" },
        h(
          "h3",
          { title: `${layer.module} ${layer.label}` },
          name,
          h("span", { class: "quiet" }, ` ${saidType(layer)}${shortOf(layer.label)}`),
        ),
        plot,
      );
      const tile = { layer, element, name, plot, map: null, zoomed: null };
      this.tiles.push(tile);
      this.#byElement.set(element, tile);
      this.element.append(element);
      this.watch.observe(element);
    }
    this.#shorten(this.tiles.slice(made));
    if (this.tiles.length < this.layers.length) this.element.append(this.end);
    else this.end.remove();
  }

  /** Makes names fit, which all are as wide. @param {Tile[]} tiles */
  #shorten(tiles) {
    if (!tiles.length) return;
    const [room, pen] = [tiles[0].element.clientWidth - TYPE_PX, penLike(tiles[0].name)];
    for (const { layer, name } of tiles) write(name, cut(pen, moduleName(layer.module), room, this.#shared));
  }

  /** @param {IntersectionObserverEntry[]} entries */
  #saw(entries) {
    for (const entry of entries) {
      const tile = this.#byElement.get(entry.target);
      if (entry.target === this.end) entry.isIntersecting && this.#more();
      else if (tile && entry.isIntersecting) this.#reveal(tile);
      else if (tile) this.#hide(tile);
    }
    if (this.#missing.length) this.refresh.soon();
  }

  /** @param {Tile} tile */
  #reveal(tile) {
    if (tile.map) return;
    const { state } = this.page;
    const { layer } = tile;
    const onOpen = (/** @type {number | null} */ step) =>
      visit(this.page, "layer", { module: layer.module, ...(step === null ? {} : { step }) });
    const options = {
      title: `${layer.module} ${layer.label}`,
      height: HEIGHTS[state.get("size")] ?? HEIGHTS.m,
      module: layer.module,
      onOpen,
      mode: state.get("view"),
      zoomed: tile.zoomed,
    };
    tile.map =
      state.get("view") === "map"
        ? new HistMap(this.page, tile.plot, options)
        : new HistProfile(this.page, tile.plot, options);
    this.#fill(tile);
  }

  /** @param {Tile} tile */
  #hide(tile) {
    if (tile.map instanceof HistMap) tile.zoomed = tile.map.zoomed;
    tile.map?.close();
    tile.map = null;
  }

  /** The tiles in view. */
  get seen() {
    return this.tiles.filter((tile) => tile.map);
  }

  /** The taps in view without an answer of this generation, the most outdated first. */
  get #missing() {
    const age = (/** @type {number} */ tap) => this.#at - (this.#answers.get(tap)?.at ?? -1);
    const taps = this.seen.map((tile) => tile.layer.tap);
    return taps.filter(age).toSorted((one, other) => age(other) - age(one));
  }

  /** @param {Tile} tile */
  #fill(tile) {
    const answer = this.#answers.get(tile.layer.tap)?.answer;
    if (!answer || !tile.map) return;
    const empty = answer.first_step.length === 0;
    tile.plot.querySelector(".nothing")?.remove();
    if (empty) tile.plot.append(h("div", { class: "nothing" }, "no histogram in these steps"));
    else tile.map.show(answer, this.span, this.axis);
  }

  /** Requests all tiles again, soon: there are new steps. */
  soon() {
    this.#at += 1;
    this.refresh.soon();
  }

  /** The same, now: the reader has chosen other steps. */
  now() {
    this.#at += 1;
    return this.refresh.now();
  }

  /** @param {AbortSignal} signal */
  async #ask(signal) {
    const at = this.#at;
    const wanted = this.#missing.slice(0, MAX_HISTOGRAMS);
    if (!wanted.length) return;
    const answer = await get("histograms", this.query(wanted), signal);
    const histograms = "histograms" in answer ? answer.histograms : [answer];
    for (const histogram of histograms) this.#keep(histogram, at);
    this.span = this.#spanOf(histograms);
    this.#share();
    for (const tile of this.seen) this.#fill(tile);
    if (this.#missing.length) this.refresh.soon();
  }

  /** @param {number[]} taps */
  query(taps) {
    const { follow, state, run } = this.page;
    const steps =
      state.get("view") === "bars" ? barsOf(follow, BAR_COLUMNS) : { ...follow.shown, columns: BAR_COLUMNS };
    return { run, tap: taps, ...steps, bins: BINS };
  }

  /** The steps on the axis. While the page follows, it ends at the newest step that was received.
   * @param {Histograms[]} histograms @returns {[number, number] | null} */
  #spanOf(histograms) {
    const span = this.page.follow.span;
    if (!span || this.page.follow.paused) return span;
    const newest = Math.max(
      ...histograms.map((histogram) => histogram.last_step[histogram.last_step.length - 1] ?? -1),
    );
    return newest < span[0] ? span : [span[0], newest];
  }

  /** @param {Histograms} answer @param {number} at */
  #keep(answer, at) {
    this.#answers.delete(answer.tap.number);
    this.#answers.set(answer.tap.number, { answer, at });
    if (this.#answers.size > MAX_CACHED) this.#answers.delete(this.#answers.keys().next().value ?? null);
  }

  /** One axis for all tiles in view, if the reader wants it. */
  #share() {
    const answer = this.seen
      .flatMap((tile) => this.#answers.get(tile.layer.tap)?.answer ?? [])
      .filter((histogram) => histogram.edges.length > 1);
    this.axis = this.page.state.get("range") === "shared" && answer.length ? axisOf(answer.map(shapeOf)) : null;
  }
}

/** The class of a layer, unless its name has it. @param {Layer} layer */
function saidType({ module, type }) {
  return moduleName(module).includes(` ${type}`) ? "" : `${type} `;
}

/** A label without its kind: the place in a nested output, the call, and the phase.
 * @param {string} label @returns {string} */
function shortOf(label) {
  return label.replace(/^\w+ ?/, "");
}
