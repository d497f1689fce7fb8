// @ts-check
/** The modules as a tree that one can walk: as many rows in the page as can be seen, however many there are. The
 * state's `sort` (a column, or -column), `fold` and `f` are read where the page has them. */
import { h, penLike } from "../dom.js";
import { Finder } from "../finder.js";
import { isMarked, onKey } from "./keys.js";
import { closedBut, fold, grow, nodesOf, rowsOf, worstBelow } from "./rows.js";
import { layoutOf, ROW_PX, RowView, widthOf } from "./rowView.js";
import { Tools } from "./tools.js";

const AROUND = 6; // rows above and below those that can be seen

/**
 * @typedef {import("./rows.js").Module} Module
 * @typedef {import("./rows.js").Node} Node
 * @typedef {import("./rows.js").Row} Row
 */

/**
 * @typedef {object} Column
 * @property {string} key
 * @property {string} title
 * @property {string} [help]
 * @property {number} [width] pixels
 * @property {boolean} [number]
 * @property {(module: any) => unknown} value of one module
 * @property {(value: any, module: any) => string} [words]
 * @property {(module: any) => number} [rank] the higher the worse: a closed group and a folded row show the worst
 * that is in them
 * @property {(cell: HTMLElement, module: any, row: Row) => void} [paint] what is more than words
 *
 * @typedef {object} Options
 * @property {string} title
 * @property {Column[]} columns
 * @property {(module: any, row: Row) => void} [onPick]
 * @property {(row: Row) => void} [onSpace]
 * @property {(module: any) => boolean} [alarming] what the button "Open to alerts" opens the groups for
 * @property {string} [alarmingWords] what is on that button
 */

export class Tree {
  /** @type {Module[]} */ modules = [];
  /** @type {Node[]} */ roots = [];
  /** @type {Row[]} */ rows = [];
  /** @type {Set<string>} */ closed = new Set();
  /** @type {Map<string, Map<Node, {module: Module, rank: number}>>} */ #worst = new Map();
  /** @type {RowView[]} */ #views = [];
  matching = 0;
  active = -1;
  first = { pen: penLike(document.body), width: 0 }; // the column of names

  /** @param {import("../page.js").Page} page @param {HTMLElement} element what is in it stands for the tree until now
   * @param {Options} options */
  constructor(page, element, options) {
    this.page = page;
    this.options = options;
    const names = { key: "path", title: "Module", width: 0, value: (/** @type {any} */ module) => module.path };
    /** @type {Column[]} */
    this.columns = [names, ...options.columns];
    this.head = h("div", { role: "row", class: "tree-row tree-head", "aria-rowindex": "1" });
    this.body = h("div", { role: "rowgroup", class: "tree-body" });
    this.grid = h(
      "div",
      {
        role: "treegrid",
        class: "treegrid",
        tabindex: "0",
        "aria-label": options.title,
        "aria-colcount": String(this.columns.length),
      },
      this.head,
      this.body,
    );
    this.nothing = h("div", { class: "empty", hidden: true });
    this.tools = new Tools(this);
    this.grid.style.setProperty("--columns", layoutOf(this.columns));
    this.grid.style.setProperty("--width", `${widthOf(this.columns)}px`);
    this.grid.style.setProperty("--row", `${ROW_PX}px`);
    this.grid.append(this.nothing);
    element.replaceChildren(this.tools.element, this.grid);
    element.classList.add("tree");
    this.grid.addEventListener("scroll", () => this.draw(), { passive: true });
    this.grid.addEventListener("keydown", (event) => onKey(this, event));
    this.grid.addEventListener("click", (event) => this.#clicked(event));
    this.grid.addEventListener("focus", () => this.active < 0 && this.rows.length && this.activate(0));
    new ResizeObserver(() => this.draw()).observe(this.grid);
    this.finder = new Finder(page, () => this.build());
    for (const name of ["sort", "fold"]) if (name in page.state.defaults) page.state.on(name, () => this.build());
  }

  /** Other modules, or the same in another state. @param {readonly Module[]} modules */
  show(modules) {
    this.finder.renew();
    const known =
      this.modules.length === modules.length &&
      this.modules.every((module, place) => module.path === modules[place].path && module.type === modules[place].type);
    this.modules = [...modules];
    this.build();
    if (!known) this.tools.showTypes(this.modules);
  }

  get sorting() {
    const text = this.page.state.optional("sort");
    const column = this.columns.find(({ key }) => key === text.replace(/^-/, ""));
    return column ? { column, descending: text.startsWith("-") } : null;
  }

  /** Rebuilds everything: the tree, the matches, the order. */
  build() {
    const before = this.rows[this.active]?.node.path;
    const tree = grow(this.modules);
    this.roots = this.page.state.optional("fold") === "1" ? fold(tree) : tree;
    this.#worst.clear();
    this.arrange();
    this.active = this.rows.findIndex(({ node }) => node.path === before);
    this.draw();
  }

  /** The rows: closed, filtered, and sorted. */
  arrange() {
    const sort = this.sorting;
    const value = (/** @type {Node} */ node) =>
      sort?.column.value(
        sort.column.rank && node.members.length > 1 ? this.worst(sort.column, node).module : node.members[0],
      );
    const shown = rowsOf(this.roots, {
      closed: this.closed,
      test: ({ path }) => this.finder.fits(path),
      sort: sort && { value, descending: sort.descending },
    });
    this.rows = shown.rows;
    this.matching = shown.matching;
    this.head.replaceChildren(...this.columns.map((column, place) => this.tools.heading(column, place, sort)));
    this.grid.setAttribute("aria-rowcount", String(this.rows.length + 1));
    this.body.style.height = `${this.rows.length * ROW_PX}px`;
    this.body.hidden = !this.rows.length;
    this.nothing.hidden = this.rows.length > 0;
    if (!this.rows.length) this.nothing.replaceChildren(this.tools.nothing());
    this.tools.tell();
    this.active = Math.min(this.active, this.rows.length - 1);
    this.draw();
  }

  /** The worst module for a column: the node's own, or one below it if the node is closed.
   * @param {Column} column @param {Node} node */
  worst(column, node) {
    let found = this.#worst.get(column.key);
    if (!found) {
      found = worstBelow(this.roots, column.rank ?? (() => 0));
      this.#worst.set(column.key, found);
    }
    return /** @type {{module: Module, rank: number}} */ (found.get(node));
  }

  draw() {
    this.page.schedule.soon(this, () => this.#draw());
  }

  #draw() {
    const { scrollTop, clientHeight } = this.grid;
    this.first.width = this.head.firstElementChild?.clientWidth ?? 0;
    const first = Math.max(0, Math.floor(scrollTop / ROW_PX) - AROUND);
    const many = Math.min(this.rows.length, Math.ceil(clientHeight / ROW_PX) + 2 * AROUND);
    while (this.#views.length < many) this.#views.push(new RowView(this, this.body));
    const start = Math.max(0, Math.min(first, this.rows.length - many));
    // A row keeps its element while it is visible, so that scrolling writes only the new rows.
    for (const [place, view] of this.#views.entries()) {
      const row = start + ((((place - start) % this.#views.length) + this.#views.length) % this.#views.length);
      view.show(row < Math.min(start + this.#views.length, this.rows.length) ? row : -1);
    }
    const active = this.#views.find((view) => view.place === this.active && this.active >= 0);
    if (active) this.grid.setAttribute("aria-activedescendant", active.element.id);
    else this.grid.removeAttribute("aria-activedescendant");
  }

  /** The row that the keys speak of. @param {number} place */
  activate(place) {
    if (!this.rows.length) return;
    this.active = Math.max(0, Math.min(this.rows.length - 1, place));
    const top = this.active * ROW_PX;
    const seen = this.grid.clientHeight - ROW_PX; // the heading lies over the first row
    if (top < this.grid.scrollTop) this.grid.scrollTop = top;
    else if (top + ROW_PX > this.grid.scrollTop + seen) this.grid.scrollTop = top + ROW_PX - seen;
    this.page.cursor.move({ module: this.rows[this.active].node.members[0].path }, this);
    this.draw();
  }

  /** @param {Row} row @param {boolean} [open] */
  toggle(row, open = !row.expanded) {
    if (row.expanded === null || row.expanded === open) return;
    if (open) this.closed.delete(row.node.path);
    else this.closed.add(row.node.path);
    this.arrange();
  }

  /** @param {"all" | "none" | "alerts"} which groups are open */
  open(which) {
    const groups = nodesOf(this.roots).filter((node) => node.children.length);
    if (which === "alerts") this.closed = closedBut(this.roots, this.options.alarming ?? (() => false));
    else
      this.closed = new Set(
        which === "all"
          ? []
          : groups.filter((node) => node.parent !== null || this.roots.length > 1).map((node) => node.path),
      );
    this.arrange();
  }

  /** @param {Row} row */
  pick(row) {
    this.page.cursor.pin({ module: row.node.members[0].path });
    this.options.onPick?.(row.node.members[0], row);
  }

  /** @param {MouseEvent} event */
  #clicked(event) {
    const on = /** @type {HTMLElement} */ (event.target);
    const view = this.#views.find(({ element }) => element.contains(on));
    const seen = view?.row?.node.path;
    const place = this.rows.findIndex(({ node }) => node.path === seen); // newer rows may not be drawn yet
    if (place < 0) return;
    this.activate(place);
    if (on.closest(".tree-twist")) this.toggle(this.rows[place]);
    else if (!isMarked(on)) this.pick(this.rows[place]);
  }

  /** What is shown as a table, for a file. */
  table() {
    const rows = this.rows.map(({ node }) => [
      node.path,
      ...this.columns
        .slice(1)
        .map((column) => column.value(column.rank ? this.worst(column, node).module : node.members[0])),
    ]);
    return { columns: this.columns.map(({ key }) => key), rows };
  }
}
