/** The heatmap of one value by rank and step. */
import { get } from "../api.js";
import { bitsOf, INFINITE, MISSING } from "../canvas/columns.js";
import { breakable, byId, write } from "../dom.js";
import { Heat } from "../heat/heat.js";
import { rowOf } from "../heat/rows.js";
import { failedWords, Refresh } from "../live/refresh.js";

/** @import { Page } from "../page.js" */

const ROW_PX = 14;
const AROUND_PX = 52; // axis and legend

export class RankMap {
  #ranks = 64; // as long as their number is unknown
  #drawn = "";

  /** @param {Page} page @param {HTMLElement} figure */
  constructor(page, figure) {
    this.page = page;
    this.figure = figure;
    this.plot = /** @type {HTMLElement} */ (figure.querySelector(".plot"));
    this.empty = byId("rank-map-empty");
    this.heat = new Heat(page, figure, {
      title: this.words,
      noun: "rank",
      lumped: true,
      merged: "mean",
      query: () => ({ path: "ranks/map", query: this.#query() }),
      onPick: (row, step) => this.#open(Number(row.number), step),
    });
    this.heat.setScale("linear");
    this.refresh = new Refresh((signal) => this.load(signal), {
      ready: () => page.schedule.isSeen(figure),
      failed: (error) => this.#drawn !== this.words && this.#say(failedWords(error)),
    });
    page.schedule.watch(figure, () => this.refresh.soon());
    page.follow.on("newest", () => page.follow.paused || this.refresh.soon());
    page.follow.on("change", () => this.refresh.now());
    for (const name of ["value", "stat"]) page.state.on(name, () => this.refresh.now());
    void this.refresh.now();
  }

  get value() {
    return this.page.state.get("value");
  }

  /** The name of a logged value that the words mean; "" for a tap. */
  get #name() {
    const options = /** @type {NodeListOf<HTMLOptionElement>} */ (document.querySelectorAll("#ranks-values option"));
    return [...options].find((each) => each.value === this.value)?.dataset.name ?? "";
  }

  /** What is shown. */
  get words() {
    const words = this.#name ? this.value : `${this.page.state.get("stat")} of ${this.value}`;
    return words[0].toUpperCase() + words.slice(1);
  }

  #query() {
    const { page } = this;
    const name = this.#name;
    const what = name ? { name } : { tap: this.value, stat: page.state.get("stat") };
    return { run: page.run, ...what, ...page.follow.shown, columns: mostColumns(this.#ranks) };
  }

  /** @param {AbortSignal} signal */
  async load(signal) {
    const asked = this.#query();
    byId("map-heading").replaceChildren(...breakable(this.words));
    const { ranks, first_step: first, last_step: last, values } = await get("ranks/map", asked, signal);
    this.#ranks = ranks.length;
    this.#say(first.length ? "" : "No rank sent this value in these steps.");
    this.plot.style.setProperty(
      "--heat-height",
      `${Math.min(560, Math.max(130, ranks.length * ROW_PX + AROUND_PX))}px`,
    );
    this.#drawn = this.words;
    Object.assign(this.heat.options, { title: this.words, stat: this.words });
    this.heat.card?.rename(this.words);
    this.heat.setRows(rowsOf(ranks), [mostColumns(ranks.length) + 1, 1], this.words);
    const bits = cellsOf(values);
    this.heat.take({ kind: "snapshot", k: first.length, n: ranks.length, bits, first, last });
  }

  /** @param {string} words */
  #say(words) {
    this.empty.hidden = !words;
    this.plot.hidden = Boolean(words);
    write(this.empty, words);
  }

  /** @param {number} rank @param {number} step */
  #open(rank, step) {
    const link = /** @type {HTMLAnchorElement | null} */ (document.querySelector(`#rank-${rank} th a`));
    if (!link) return;
    const address = new URL(link.href);
    address.searchParams.set("step", String(step));
    location.assign(address);
  }
}

const MAX_CELLS = 60_000;
const MAX_COLUMNS = 400;

/** The largest number of columns for a number of ranks. @param {number} ranks */
export function mostColumns(ranks) {
  return Math.max(20, Math.min(MAX_COLUMNS, Math.floor(MAX_CELLS / Math.max(1, ranks))));
}

/** The bits of the cells. NaN is no value; an infinity stands for a value that is not finite.
 * @param {(number | string)[][]} values [rank][column] */
export function cellsOf(values) {
  return bitsOf(values, (value) => (Number.isFinite(value) ? null : Number.isNaN(value) ? MISSING : INFINITE));
}

/** Ranks as the rows of a heatmap. @param {readonly number[]} ranks */
export function rowsOf(ranks) {
  return ranks.map((rank) => rowOf(rank, `rank ${rank}`));
}
