/** The frame of every chart: its title, its table, and the button of its menu, which is loaded when it is opened. */
import { h, makeButton } from "./dom.js";
import { loadOpened } from "./popup.js";

/** @import { Page } from "./page.js" */

/** @typedef {{path: string, query: Record<string, any>}} Query of the interface: a path below api/v1 */

const TABLE_MS = 1000; // between two updates of a table: it is read, not watched

/**
 * @typedef {object} CardOptions
 * @property {string} title
 * @property {() => {columns: string[], rows: any[][]}} table the shown values, oldest first
 * @property {() => Promise<Blob>} [png]
 * @property {() => Promise<string>} [svg]
 * @property {() => Query | Query[] | null} [query] the same at full resolution from the server; without it, CSV and
 * JSON contain the table
 * @property {boolean} [pins] false if it is on the board already
 */

/** The cards of a page, so that one key serves them all. @type {WeakMap<object, Card[]>} */
const cards = new WeakMap();

let made = 0;

const actions = () => loadOpened(() => import("./actions.js"));

export class Card {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  /** Writes the table, once it was shown. */
  fill = () => {};

  /** @param {Page} page @param {HTMLElement} element the figure @param {CardOptions} options */
  constructor(page, element, options) {
    this.page = page;
    this.element = element;
    this.options = options;
    this.table = h("div", { class: "wide card-table", tabindex: "0", role: "region", hidden: true });
    made += 1;
    const menu = { class: "button small icon", "aria-haspopup": "menu", popovertarget: `menu-${made}` };
    this.button = makeButton("\u22ef", null, menu);
    this.list = h("div", { class: "menu", id: `menu-${made}`, role: "menu", popover: "auto" });
    this.list.addEventListener("toggle", async (event) => {
      if (/** @type {ToggleEvent} */ (event).newState === "open") (await actions())?.fillMenu(this);
    });
    this.button.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowDown") return;
      event.preventDefault();
      this.open();
    });
    this.heading = element.querySelector(":scope > header :is(h2, h3)");
    const header = element.querySelector(":scope > header") ?? h("header", {}, h("h2", {}, options.title));
    if (!header.parentNode) element.prepend(header);
    this.tools = h("span", { class: "card-tools" }, h("span", { class: "menu-place" }, this.button, this.list));
    header.append(this.tools);
    element.append(this.table);
    this.#label();
    register(page, this);
  }

  /** Opens the menu. */
  open() {
    this.button.focus();
    this.list.showPopover();
  }

  #label() {
    for (const each of [this.button, this.list]) each.setAttribute("aria-label", `Actions: ${this.options.title}`);
    this.table.setAttribute("aria-label", `${this.options.title}, as a table`);
  }

  /** Names the card, its tools, and its files after another subject. @param {string} title */
  rename(title) {
    if (title === this.options.title) return;
    this.options.title = title;
    if (this.heading) this.heading.textContent = title;
    this.#label();
    this.refresh();
  }

  /** Updates the table if it is open. */
  refresh() {
    if (!this.table.hidden) this.fill();
  }

  /** Updates the table soon, if it is open. */
  soon() {
    if (this.table.hidden) return;
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      this.refresh();
    }, TABLE_MS);
  }

  /** @returns {Query[]} */
  get queries() {
    const queries = this.options.query?.() ?? [];
    return (Array.isArray(queries) ? queries : [queries]).map(({ path, query }) => ({
      path,
      query: { run: this.page.run, ...query }, // a page of two runs names the run itself
    }));
  }

  /** Removes everything that it added. */
  remove() {
    this.tools.remove();
    this.table.remove();
    const others = cards.get(this.page) ?? [];
    others.splice(others.indexOf(this), 1);
  }
}

/** @param {Page} page @param {Card} card */
function register(page, card) {
  const registered = cards.get(page) ?? [];
  const open = async () => (await actions())?.pointedAt(registered)?.open();
  if (!registered.length)
    page.keys.add("e", "actions of the chart under the pointer, or of the first visible one", open, {
      group: "Charts",
    });
  registered.push(card);
  cards.set(page, registered);
}
