// @ts-check
/** The tiles of the wall: only those in sight hold a canvas, and only those are asked for, together. */
import { get } from "../api.js";
import { h } from "../dom.js";
import { HistMap } from "./map.js";
import { HistProfile } from "./profile.js";
import { extentOf, SignedLog, shapeOf } from "./shape.js";

const CHUNK = 120; // tiles that are made at once; more as the reader comes near the end
const NARROW_CHUNK = 16; // where one stands below the other
const NARROW_PX = 700;
const MAX_ASKED = 50;
const MAX_KEPT = 300; // answers, for tiles that come into sight again
const COLUMNS = 160;
const BINS = 112;
const SETTLE_MS = 60;
const HEIGHTS = /** @type {Record<string, number>} */ ({ s: 84, m: 128, l: 210 });

/** @typedef {import("./order.js").Layer} Layer */
/** @typedef {{layer: Layer, element: HTMLElement, plot: HTMLElement, map: HistMap | HistProfile | null}} Tile */

/** @typedef {import("../answers.js").Histograms} Histograms */

export class Wall {
  /** @type {Tile[]} */
  tiles = [];
  /** @type {Layer[]} */
  layers = [];
  /** @type {Map<number | null, Histograms>} */
  answers = new Map();
  /** @type {Map<Element, Tile>} */
  #byElement = new Map();
  /** @type {AbortController | null} */
  #asking = null;
  /** @type {any} */
  #timer = 0;
  /** Shared by all tiles; null is each its own. @type {SignedLog | null} */
  axis = null;
  /** @type {[number, number] | null} */
  span = null;

  /** @param {import("../page.js").Page} page @param {HTMLElement} element */
  constructor(page, element) {
    this.page = page;
    this.element = element;
    this.end = h("div", { class: "wall-end" });
    this.watch = new IntersectionObserver((entries) => this.#saw(entries), { rootMargin: "300px" });
    this.watch.observe(this.end);
  }

  /** @param {Layer[]} layers in the order in which they stand */
  show(layers) {
    for (const tile of this.tiles) this.#hide(tile);
    this.#byElement.clear();
    this.tiles = [];
    this.layers = layers;
    this.element.replaceChildren();
    this.#more();
  }

  /** Redraws everything: another view, size or range. */
  renew() {
    this.show(this.layers);
  }

  /** Another kind or another window: what was there is of no use. */
  forget() {
    this.answers.clear();
  }

  #more() {
    const made = this.tiles.length;
    const many = innerWidth < NARROW_PX ? NARROW_CHUNK : CHUNK;
    for (const layer of this.layers.slice(made, made + many)) {
      const plot = h("div", { class: "plot" });
      const address = this.page.address("layer", { module: layer.module });
      const element = h(
        "article",
        { class: "tile" },
        h(
          "h3",
          { title: `${layer.module} ${layer.label}` },
          h("a", { href: address }, layer.module || "(root)"),
          h("span", { class: "quiet" }, ` ${layer.type} ${shortOf(layer.label)}`),
        ),
        plot,
      );
      const tile = { layer, element, plot, map: null };
      this.tiles.push(tile);
      this.#byElement.set(element, tile);
      this.element.append(element);
      this.watch.observe(element);
    }
    if (this.tiles.length < this.layers.length) this.element.append(this.end);
    else this.end.remove();
  }

  /** @param {IntersectionObserverEntry[]} entries */
  #saw(entries) {
    for (const entry of entries) {
      const tile = this.#byElement.get(entry.target);
      if (entry.target === this.end) entry.isIntersecting && this.#more();
      else if (tile && entry.isIntersecting) this.#reveal(tile);
      else if (tile) this.#hide(tile);
    }
    this.soon();
  }

  /** @param {Tile} tile */
  #reveal(tile) {
    if (tile.map) return;
    const { state } = this.page;
    const { layer } = tile;
    const onOpen = (/** @type {number | null} */ step) =>
      location.assign(this.page.address("layer", { module: layer.module, ...(step === null ? {} : { step }) }));
    const options = {
      title: `${layer.module} ${layer.label}`,
      height: HEIGHTS[state.get("size")] ?? HEIGHTS.m,
      module: layer.module,
      onOpen,
      mode: state.get("view"),
    };
    tile.map =
      state.get("view") === "map"
        ? new HistMap(this.page, tile.plot, options)
        : new HistProfile(this.page, tile.plot, options);
    this.#fill(tile);
  }

  /** @param {Tile} tile */
  #hide(tile) {
    tile.map?.close();
    tile.map = null;
  }

  /** The tiles that are in sight. */
  get seen() {
    return this.tiles.filter((tile) => tile.map);
  }

  /** @param {Tile} tile */
  #fill(tile) {
    const said = this.answers.get(tile.layer.tap);
    if (!said || !tile.map) return;
    const empty = said.first_step.length === 0;
    tile.plot.querySelector(".nothing")?.remove();
    if (empty) tile.plot.append(h("div", { class: "nothing" }, "no data for these steps"));
    else tile.map.show(said, this.span, this.axis);
  }

  /** Requests what is in view once scrolling stops. @param {boolean} [anew] also what is known */
  soon(anew = false) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.ask(anew), SETTLE_MS);
  }

  /** @param {boolean} [anew] @returns {Promise<void>} */
  async ask(anew = false) {
    const wanted = this.seen
      .map((tile) => tile.layer.tap)
      .filter((tap) => anew || !this.answers.has(tap))
      .slice(0, MAX_ASKED);
    if (!wanted.length) return;
    this.#asking?.abort();
    this.#asking = new AbortController();
    const answer = get("histograms", this.query(wanted), this.#asking.signal);
    const said = await answer.catch((error) => {
      if (error.name !== "AbortError") throw error;
      return null;
    });
    if (said === null || !("histograms" in said)) return;
    for (const each of said.histograms) this.#keep(each);
    this.span = this.#spanOf(said.histograms);
    this.#share();
    for (const tile of this.seen) this.#fill(tile);
    if (this.seen.some((tile) => !this.answers.has(tile.layer.tap))) this.soon();
  }

  /** @param {number[]} taps */
  query(taps) {
    const span = this.page.follow.span;
    return { run: this.page.run, taps: taps.join(","), from: span?.[0], to: span?.[1], columns: COLUMNS, bins: BINS };
  }

  /** The steps on the axis: while it follows, up to the newest that came; what is not there yet is not "not sampled".
   * @param {Histograms[]} histograms @returns {[number, number] | null} */
  #spanOf(histograms) {
    const span = this.page.follow.span;
    if (!span || this.page.follow.paused) return span;
    const newest = Math.max(...histograms.map((each) => each.last_step[each.last_step.length - 1] ?? -1));
    return newest < span[0] ? span : [span[0], newest];
  }

  /** @param {Histograms} each */
  #keep(each) {
    this.answers.delete(each.tap.number);
    this.answers.set(each.tap.number, each);
    if (this.answers.size > MAX_KEPT) this.answers.delete(this.answers.keys().next().value ?? null);
  }

  /** One axis for all that are in sight, where the reader wants it. */
  #share() {
    const said = this.seen
      .flatMap((tile) => this.answers.get(tile.layer.tap) ?? [])
      .filter((each) => each.edges.length > 1);
    this.axis =
      this.page.state.get("range") === "shared" && said.length ? new SignedLog(extentOf(said.map(shapeOf))) : null;
  }
}

/** @param {string} label @returns {string} the place in a nested output, the call, the phase: what is not the kind */
function shortOf(label) {
  return label.replace(/^\w+ ?/, "");
}
