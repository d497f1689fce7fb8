/** A live heatmap of layers: those that the filter matches, or why there are none. A click opens the drawer. */
import { byId, tell } from "../dom.js";
import { layerOf } from "../drawer/names.js";
import { counted } from "../format.js";
import { MAX_LIVE_ROWS } from "../limits.js";
import { Feed } from "../live/subscription.js";
import { Heat } from "./heat.js";
import { onsets } from "./rows.js";

/** @import { LayerNames } from "../drawer/names.js"
 * @import { Finder } from "../finder.js"
 * @import { Handlers } from "../live/stream.js"
 * @import { Page } from "../page.js"
 * @import { Row } from "./rows.js" */

const SORTED_MS = 1000; // rows that move more often cannot be read

/**
 * @typedef {object} Options
 * @property {string} title
 * @property {() => {kind: string, stat: string}} asked
 * @property {() => string | undefined} [rows] how many rows are asked for, as in docs/live.md
 * @property {Finder} finder
 * @property {(row: Row) => boolean} [fits] what else than the text of the find box chooses rows
 * @property {Handlers["rows"]} [told]
 */

export class LayerMap {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #why = "";

  /** @param {Page} page @param {string} id of the figure @param {LayerNames} names @param {Options} options */
  constructor(page, id, names, { title, asked, rows = () => `fit:${MAX_LIVE_ROWS}`, finder, fits = () => true, told }) {
    this.page = page;
    this.finder = finder;
    this.fits = fits;
    this.asked = asked;
    this.empty = byId(`${id}-empty`);
    const query = () => ({ path: "heatmap", query: { ...asked(), columns: 1000, rows: 2000, ...page.follow.shown } });
    this.heat = new Heat(page, byId(id), {
      title,
      ...asked(),
      query,
      onPick: (row, step) => {
        names.open(layerOf(row));
        page.follow.hold(step);
      },
      ...names.ofHeatmap,
    });
    const whole = () => ({ ...asked(), ...(rows() ? { rows: rows() } : {}) });
    this.feed = new Feed(page, this.heat, whole, {
      rows: (message) => {
        this.#why = message.why ?? "";
        this.choose();
        told?.(message);
      },
      frame: () => this.#later(),
    });
    page.state.on("drawer", () => this.heat.draw());
  }

  /** Asks for another kind or stat, or for more rows. */
  renew() {
    Object.assign(this.heat.options, this.asked());
    this.feed.renew();
  }

  /** The order is looked at again soon, but not while the reader points at a row. */
  #later() {
    if (!this.page.state.optional("sort")) return;
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      if (this.heat.screen.at === null) this.choose();
      else this.#later();
    }, SORTED_MS);
  }

  /** Shows the matching rows in the chosen order, or why there are none. */
  choose() {
    const { rows, columns, plot } = this.heat;
    if (!rows.length && !this.#why) return; // nothing is known yet: the server's words stay
    const shown = [...rows.keys()].filter((row) => this.finder.fits(rows[row].module) && this.fits(rows[row]));
    const wanted = this.page.state.optional("sort") || "model";
    const isBad = () => columns !== null && onsets(columns).some(Number.isFinite);
    const sort = wanted !== "auto" ? wanted : isBad() ? "bad" : "model";
    this.heat.setOrder(shown, /** @type {any} */ (sort));
    const hidden = rows.length && `The filter matches nothing: ${counted(rows.length, this.heat.noun)} hidden.`;
    const why = shown.length || !this.finder.ready ? "" : hidden || this.#why;
    // The server's own words may end with a link.
    if (!why || !this.empty.textContent?.startsWith(why)) tell(this.empty, why);
    plot.hidden = Boolean(why);
  }
}
