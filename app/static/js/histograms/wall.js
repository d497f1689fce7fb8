/** The tiles of the Histograms page, which the server lists and sorts. Only those in view have a canvas and are
 * requested, up to 50 at a time. */
import { get } from "../api.js";
import { byId, h, tell } from "../dom.js";
import { MAX_HISTOGRAMS } from "../limits.js";
import { Refresh } from "../live/refresh.js";
import { visit } from "../timeline/links.js";
import { HistMap } from "./map.js";
import { HistProfile } from "./profile.js";
import { axisOf, barsOf, NO_HISTOGRAM, shapeOf } from "./shape.js";

/** @import { Histograms } from "../answers.js"
 * @import { Page } from "../page.js"
 * @import { Scale } from "../scale.js" */

const MAX_CACHED = 300; // answers, for tiles that come into view again
const BAR_COLUMNS = 160;
const BINS = 112;
const PAUSE = { min: 60, max: 2000, share: 1 };
const HEIGHTS = /** @type {Record<string, number>} */ ({ s: 84, m: 128, l: 210 });

/** @typedef {{tap: number, element: HTMLElement, plot: HTMLElement, map: HistMap | HistProfile | null, zoomed: [number,
 * number] | null}} Tile `zoomed` are the values between which the reader zoomed in */

export class Wall {
  /** @type {Map<Element, Tile>} */
  tiles = new Map();
  /** By tap, with the generation of the request. @type {Map<number | null, {answer: Histograms, at: number}>} */
  #answers = new Map();
  /** The generation that is wanted: increases with new steps. */
  #at = 0;
  /** Shared by all tiles; null if each has its own. @type {Scale | null} */
  axis = null;
  /** @type {[number, number] | null} */
  span = null;

  /** @param {Page} page @param {HTMLElement} element */
  constructor(page, element) {
    this.page = page;
    this.element = element;
    this.refresh = new Refresh((signal) => this.#ask(signal), PAUSE);
    this.watch = new IntersectionObserver((entries) => this.#saw(entries), { rootMargin: "300px" });
    element.addEventListener("renewed", () => this.#look());
    this.#look();
  }

  /** Takes the tiles that the server has listed. */
  #look() {
    for (const [element, tile] of this.tiles) {
      if (element.isConnected) continue;
      this.#hide(tile);
      this.watch.unobserve(element);
      this.tiles.delete(element);
    }
    for (const element of /** @type {NodeListOf<HTMLElement>} */ (this.element.querySelectorAll(".tile"))) {
      if (this.tiles.has(element)) continue;
      const plot = /** @type {HTMLElement} */ (element.querySelector(".plot"));
      this.tiles.set(element, { tap: Number(element.dataset.tap), element, plot, map: null, zoomed: null });
      this.watch.observe(element);
    }
  }

  /** Draws what is in view in another way, which needs other answers. */
  redraw() {
    this.#answers.clear();
    for (const tile of this.seen) {
      this.#hide(tile);
      this.#reveal(tile);
    }
    return this.now();
  }

  /** @param {IntersectionObserverEntry[]} entries */
  #saw(entries) {
    for (const { target, isIntersecting } of entries) {
      const tile = this.tiles.get(target);
      if (tile && isIntersecting) this.#reveal(tile);
      else if (tile) this.#hide(tile);
    }
    if (this.#missing.length) this.refresh.soon();
  }

  /** @param {Tile} tile */
  #reveal(tile) {
    if (tile.map) return;
    const { state } = this.page;
    const { module = "" } = tile.element.dataset;
    const options = {
      title: tile.element.ariaLabel ?? "",
      height: HEIGHTS[state.get("size")] ?? HEIGHTS.m,
      module,
      onOpen: (/** @type {number | null} */ step) =>
        visit(this.page, "layer", { module, ...(step === null ? {} : { step }) }),
      zoomed: tile.zoomed,
    };
    tile.map = new (state.get("view") === "bars" ? HistProfile : HistMap)(this.page, tile.plot, options);
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
    return [...this.tiles.values()].filter((tile) => tile.map);
  }

  /** The taps in view without an answer of this generation, the most outdated first. */
  get #missing() {
    const age = (/** @type {number} */ tap) => this.#at - (this.#answers.get(tap)?.at ?? -1);
    const taps = this.seen.map((tile) => tile.tap);
    return taps.filter(age).toSorted((one, other) => age(other) - age(one));
  }

  /** @param {Tile} tile */
  #fill(tile) {
    const answer = this.#answers.get(tile.tap)?.answer;
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
    const counted = this.#shown.some((histogram) => histogram.first_step.length);
    tell(byId("wall-none"), counted || !this.#shown.length ? "" : NO_HISTOGRAM);
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

  /** The histograms of the tiles in view. */
  get #shown() {
    return this.seen.flatMap((tile) => this.#answers.get(tile.tap)?.answer ?? []);
  }

  /** One axis for all tiles in view, if the reader wants it. */
  #share() {
    const answer = this.#shown.filter((histogram) => histogram.edges.length > 1);
    this.axis = this.page.state.get("range") === "shared" && answer.length ? axisOf(answer.map(shapeOf)) : null;
  }
}
