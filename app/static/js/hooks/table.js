/** The table of modules, which the server renders as a tree: its keys, its rows as links, and the boxes that watch. */
import { byId, onClick } from "../dom.js";
import { toast } from "../popup.js";
import { ROOT } from "../vocabulary.js";

/** @import { Capture } from "./capture.js"
 * @import { Page } from "../page.js" */

/** The rows that a key moves by. @type {Record<string, number>} */
const MOVES = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 };

export class ModuleTable {
  /** The path of the active row. @type {string | null} */
  #active = null;
  /** The place of the row to activate once another page of the table is there. @type {number | null} */
  #next = null;

  /** @param {Page} page @param {HTMLElement} element the part @param {Capture | null} capture */
  constructor(page, element, capture) {
    this.page = page;
    this.element = element;
    this.capture = capture;
    element.addEventListener("keydown", (event) => this.#press(event));
    element.addEventListener("focusin", ({ target }) => target === this.grid && this.#activate(this.place));
    element.addEventListener("renewed", () => this.#dress());
    element.addEventListener("change", ({ target }) => target === byId("module-type") && this.#chooseType());
    onClick("tbody tr", (row, event) => this.#click(row, event), element);
    this.#dress();
  }

  /** @returns {HTMLElement | null} */
  get grid() {
    return this.element.querySelector("[role=treegrid]");
  }

  /** @returns {HTMLElement[]} */
  get rows() {
    return [.../** @type {NodeListOf<HTMLElement>} */ (this.element.querySelectorAll("tbody tr"))];
  }

  /** The place of the active row on this page of the table; 0 if it isn't there. */
  get place() {
    return Math.max(
      0,
      this.rows.findIndex(({ dataset }) => dataset.path === this.#active),
    );
  }

  /** Adds what the server doesn't know: the active row and the boxes. Tab stops at the table; arrows reach its rows. */
  #dress() {
    for (const control of this.element.querySelectorAll("tbody :is(a, button)")) control.setAttribute("tabindex", "-1");
    if (this.#next === null) this.#mark();
    else this.#activate(this.#next);
    this.#next = null;
    this.showWatched();
  }

  #mark() {
    this.grid?.removeAttribute("aria-activedescendant");
    for (const [place, row] of this.rows.entries()) {
      const isActive = row.dataset.path === this.#active;
      row.id = `module-${place}`;
      row.setAttribute("aria-selected", String(isActive));
      if (isActive) this.grid?.setAttribute("aria-activedescendant", row.id);
    }
  }

  /** Moves by rows; from the last one, to the next page of the table. @param {number} by */
  #move(by) {
    const { place, rows } = this;
    const isEnd = place === (by > 0 ? rows.length - 1 : 0);
    const link = /** @type {HTMLElement | null} */ (this.element.querySelector(`[rel=${by > 0 ? "next" : "prev"}]`));
    if (!isEnd || !link) return this.#activate(place + by);
    this.#next = by > 0 ? 0 : Infinity;
    link.click();
  }

  /** @param {number} place */
  #activate(place) {
    const row = this.rows[Math.max(0, Math.min(this.rows.length - 1, place))];
    if (!row) return;
    this.#active = row.dataset.path ?? "";
    row.scrollIntoView({ block: "nearest" });
    this.#mark();
  }

  /** @param {KeyboardEvent} event */
  #press(event) {
    if (event.target !== this.grid || event.ctrlKey || event.metaKey || event.altKey) return;
    const { place, rows } = this;
    const by = MOVES[event.key];
    if (by) this.#move(by);
    else if (event.key === "Home" || event.key === "End") this.#activate(event.key === "End" ? Infinity : 0);
    else if (!rows[place] || !this.#act(event.key, rows[place], place)) return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {string} key @param {HTMLElement} row @param {number} place @returns {boolean} whether the key means
   * anything */
  #act(key, row, place) {
    const twist = /** @type {HTMLElement | null} */ (row.querySelector(".twist[href]"));
    const box = /** @type {HTMLElement | null} */ (row.querySelector(".box"));
    const isOpen = row.getAttribute("aria-expanded") === "true";
    if (key === "ArrowRight" && isOpen) this.#activate(place + 1);
    else if (key === "ArrowLeft" && !isOpen) this.#activate(this.#parentOf(place));
    else if (key.startsWith("Arrow")) twist?.click();
    else if (key === "Enter") linkIn(row)?.click();
    else if (key === " ") (box ?? twist)?.click();
    else return false;
    return true;
  }

  /** @param {number} place */
  #parentOf(place) {
    const { rows } = this;
    const level = Number(rows[place].ariaLevel);
    return Math.max(
      0,
      rows.findLastIndex((row, other) => other < place && Number(row.ariaLevel) < level),
    );
  }

  /** A row is a link to its layer, except for its own links and its box. @param {HTMLElement} row
   * @param {MouseEvent} event */
  #click(row, event) {
    const target = /** @type {HTMLElement} */ (event.target);
    this.#activate(this.rows.indexOf(row));
    this.grid?.focus({ preventScroll: true });
    if (target.closest(".box")) void this.#watch(row);
    else if (!target.closest("a")) linkIn(row)?.click();
  }

  /** Shows which modules the form's patterns select. */
  showWatched() {
    for (const row of this.rows) row.querySelector(".box")?.setAttribute("aria-checked", this.#watchedIn(row));
  }

  /** @param {HTMLElement} row */
  #watchedIn(row) {
    const total = Number(row.dataset.total);
    const watched = this.capture?.watched(membersOf(row), total, isClosed(row)) ?? 0;
    return watched === total ? "true" : watched ? "mixed" : "false";
  }

  /** Switches the modules of a row on or off in the form. @param {HTMLElement} row */
  async #watch(row) {
    const { capture } = this;
    if (!capture) return;
    await capture.known; // a switch before that would go the wrong way
    const wanted = { paths: membersOf(row), whole: isClosed(row), on: this.#watchedIn(row) !== "true" };
    const blocked = await capture.switch(wanted);
    const words = `${row.dataset.path || ROOT} is still excluded by ${blocked}. Remove that pattern from Exclude.`;
    if (blocked) toast(words, { kind: "error" });
    else this.page.announce(byId("dry-run").textContent ?? "");
  }

  /** The type is a term of the search, so that there is one filter, not two. */
  #chooseType() {
    const { state } = this.page;
    const others = state
      .get("f")
      .split(/\s+/)
      .filter((/** @type {string} */ term) => term && !term.startsWith("type:"));
    const type = /** @type {HTMLSelectElement} */ (byId("module-type")).value;
    state.set({ f: [...others, ...(type ? [`type:${type}`] : [])].join(" ") });
  }
}

/** @param {HTMLElement} row @returns {string[]} */
function membersOf(row) {
  return JSON.parse(row.dataset.members ?? "[]");
}

/** @param {HTMLElement} row */
function isClosed(row) {
  return row.getAttribute("aria-expanded") === "false";
}

/** @param {HTMLElement} row @returns {HTMLElement | null} */
function linkIn(row) {
  return row.querySelector("th a:not(.twist)");
}
