/** Histograms over steps of a module's tensors. */
import { get } from "../api.js";
import { Card } from "../card.js";
import { byId, h } from "../dom.js";
import { HistMap } from "../histograms/map.js";
import { NO_HISTOGRAM } from "../histograms/shape.js";
import { MAX_HISTOGRAM_COLUMNS } from "../limits.js";
import { failedWords, Refresh } from "../live/refresh.js";
import { shortOf } from "./plan.js";

/** @import { Tap } from "./plan.js"
 * @import { Page } from "../page.js" */

const MIN_MS = 2000;
const COLUMNS = 240;
const BINS = 80;

/** @typedef {{tap: Tap, figure: HTMLElement, map: HistMap, card: Card, words: HTMLElement}} Shown */

export class Distributions {
  /** @type {Shown[]} */
  #shown = [];

  /** @param {Page} page @param {string} module */
  constructor(page, module) {
    this.page = page;
    this.module = module;
    this.place = byId("histograms");
    const ready = () => page.follow.span !== null && page.schedule.isSeen(this.place);
    this.refresh = new Refresh((signal) => this.#load(signal), { min: MIN_MS, ready });
    page.schedule.watch(this.place, () => this.refresh.soon());
    page.follow.on("change", () => this.refresh.now());
    page.follow.on("newest", () => page.follow.paused || this.refresh.soon());
  }

  /** @param {Tap[]} taps */
  show(taps) {
    if (taps.map((tap) => tap.number).join() === this.#shown.map(({ tap }) => tap.number).join()) return;
    for (const { map, card, figure } of this.#shown) {
      map.close();
      card.remove();
      figure.remove();
    }
    this.#shown = taps.map((tap) => this.#make(tap));
    void this.refresh.now();
  }

  /** @param {Tap} tap @returns {Shown} */
  #make(tap) {
    const title = `${shortOf(tap)}: distribution`;
    const words = h("p", { class: "empty", hidden: true });
    const place = h("div", { class: "plot" }, words);
    const figure = h(
      "figure",
      { class: "chart card", id: `distribution-${tap.kind}` },
      h("header", {}, h("h3", {}, shortOf(tap))),
      place,
    );
    this.place.append(figure);
    const map = new HistMap(this.page, place, {
      title: shortOf(tap),
      module: this.module,
      onOpen: (step) => step !== null && this.page.follow.hold(step),
    });
    const png = () => map.image();
    const query = () => ({
      path: "histograms",
      query: { tap: tap.label, ...this.page.follow.shown, columns: MAX_HISTOGRAM_COLUMNS, bins: BINS },
    });
    return {
      tap,
      figure,
      map,
      words,
      card: new Card(this.page, figure, { title, table: () => map.table(), png, query }),
    };
  }

  /** @param {AbortSignal} signal */
  async #load(signal) {
    /** @type {Error | null} */
    let failed = null;
    for (const { tap, map, card, words } of this.#shown) {
      try {
        const query = { run: this.page.run, tap: tap.number, ...this.page.follow.shown, columns: COLUMNS, bins: BINS };
        const answer = await get("histograms", query, signal);
        if (!("edges" in answer)) continue;
        words.hidden = answer.first_step.length > 0;
        map.canvas.hidden = !words.hidden;
        words.textContent = words.hidden ? "" : NO_HISTOGRAM;
        map.show(answer, this.page.follow.span);
        card.refresh();
      } catch (error) {
        signal.throwIfAborted();
        failed = /** @type {Error} */ (error);
        if (map.shape?.columns) continue; // the drawn map is still right
        words.hidden = false;
        words.textContent = failedWords(error);
      }
    }
    if (failed) throw failed;
  }
}
