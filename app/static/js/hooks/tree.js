/** The modules as a tree that one can walk: as many rows in the page as can be seen, however many there are. The
 * state's `sort` (a column, or -column), `fold` and `f` are read where the page has them. */
import { h, makeButton, penLike, write } from "../dom.js";
import { Finder, noModules } from "../finder.js";
import { count, counted } from "../format.js";
import { cut } from "../paths.js";
import { ROOT } from "../vocabulary.js";
import { closedBut, fold, grow, nodesOf, rowsOf, worstBelow } from "./rows.js";

/** @import { Module, Node, Row } from "./rows.js"
 * @import { Page } from "../page.js" */

const ROW_PX = 28;
const NAME_PX = 220; // of the first column, at least
const [AROUND_PX, LEVEL_PX] = [40, 14]; // of its width: what isn't the name, and what each level adds

const LONG = 16; // letters, from which on a cell may be too narrow

let made = 0;

/** @param {Column[]} columns */
function layoutOf(columns) {
  return columns.map(({ width }) => (width ? `${width}px` : `minmax(${NAME_PX}px, 1fr)`)).join(" ");
}

/** The least width of a row. @param {Column[]} columns */
function widthOf(columns) {
  return columns.reduce((sum, { width }) => sum + (width || NAME_PX), 0);
}

class RowView {
  place = -1;
  /** The row that is seen. @type {Row | null} */
  row = null;

  /** @param {Tree} tree @param {HTMLElement} body */
  constructor(tree, body) {
    made += 1;
    this.tree = tree;
    this.twist = h("span", { class: "tree-twist", "aria-hidden": "true" });
    this.name = h("span", { class: "tree-name" });
    this.many = h("span", { class: "tree-many" });
    const first = h("div", { role: "rowheader", class: "tree-cell" }, this.twist, this.name, this.many);
    const others = tree.columns
      .slice(1)
      .map((column) => h("div", { role: "gridcell", class: `tree-cell${column.number ? " number" : ""}` }));
    this.cells = [first, ...others];
    this.element = h("div", { role: "row", class: "tree-row", id: `tree-row-${made}` }, ...this.cells);
    body.append(this.element);
  }

  /** @param {number} place of the row that is shown; -1 none */
  show(place) {
    this.place = place;
    this.row = place < 0 ? null : this.tree.rows[place];
    this.element.hidden = !this.row;
    if (!this.row) return;
    const { row } = this;
    this.element.style.transform = `translateY(${place * ROW_PX}px)`;
    this.#describe(row, place);
    this.#name(row);
    for (const [at, column] of this.tree.columns.entries()) if (at) this.#fill(this.cells[at], column, row);
  }

  /** @param {Row} row @param {number} place */
  #describe(row, place) {
    const given = {
      "aria-rowindex": place + 2,
      "aria-level": row.level,
      "aria-posinset": row.place,
      "aria-setsize": row.siblings,
      "aria-expanded": row.expanded,
      "aria-selected": place === this.tree.active,
    };
    for (const [name, value] of Object.entries(given)) {
      if (value === null) this.element.removeAttribute(name);
      else if (this.element.getAttribute(name) !== String(value)) this.element.setAttribute(name, String(value));
    }
    this.element.classList.toggle("context", !row.matches);
    this.element.style.setProperty("--level", String(row.level - 1));
  }

  /** @param {Row} row */
  #name({ node, expanded, level }) {
    const isList = this.tree.sorting !== null;
    const name = isList ? node.path || node.name : node.name;
    const { pen, width } = this.tree.first;
    write(this.name, width ? cut(pen, name, width - AROUND_PX - (level - 1) * LEVEL_PX) : name);
    write(this.twist, expanded === null ? "" : expanded ? "\u25be" : "\u25b8");
    write(this.many, node.members.length > 1 ? `(${count(node.members.length)})` : "");
    const title = node.path || ROOT;
    if (this.cells[0].title !== title) this.cells[0].title = title;
  }

  /** @param {HTMLElement} cell @param {Column} column @param {Row} row */
  #fill(cell, column, row) {
    const { node, expanded } = row;
    const isMany = (expanded === false || node.members.length > 1) && column.rank;
    const worst = isMany ? this.tree.worst(column, node) : null;
    const module = worst && worst.rank > -Infinity ? worst.module : node.members[0];
    if (column.paint) return column.paint(cell, module, row);
    const value = column.value(module);
    const text =
      value === null || value === undefined ? "" : column.words ? column.words(value, module) : String(value);
    write(cell, text);
    const title = [
      text.length > LONG ? text : "",
      worst && module !== node.members[0] ? `worst of these: ${module.path}` : "",
    ]
      .filter(Boolean)
      .join("\n");
    if (cell.title !== title) cell.title = title;
  }
}

/** What answers to clicks itself. @param {Element} element */
function isMarked(element) {
  return element.closest("button, a, input, select, label") !== null;
}

/** @param {Tree} tree @param {KeyboardEvent} event */
function onKey(tree, event) {
  if (event.target !== tree.grid || event.ctrlKey || event.metaKey || event.altKey) return;
  const act = ACTIONS[event.key];
  const row = tree.rows[tree.active];
  if (!act || (!row && tree.rows.length === 0)) return;
  event.preventDefault();
  if (row) act(tree, row);
  else tree.activate(0);
}

/** @param {Tree} tree */
function page(tree) {
  return Math.max(1, Math.floor(tree.grid.clientHeight / ROW_PX) - 2);
}

/** @type {Record<string, (tree: Tree, row: Row) => void>} */
const ACTIONS = {
  ArrowDown: (tree) => tree.activate(tree.active + 1),
  ArrowUp: (tree) => tree.activate(tree.active - 1),
  PageDown: (tree) => tree.activate(tree.active + page(tree)),
  PageUp: (tree) => tree.activate(tree.active - page(tree)),
  Home: (tree) => tree.activate(0),
  End: (tree) => tree.activate(tree.rows.length - 1),
  ArrowRight: (tree, row) =>
    row.expanded === false ? tree.toggle(row, true) : row.expanded && tree.activate(tree.active + 1),
  ArrowLeft: (tree, row) => (row.expanded ? tree.toggle(row, false) : toParent(tree, row)),
  Enter: (tree, row) => tree.pick(row),
  " ": (tree, row) => (tree.options.onSpace ?? ((each) => tree.toggle(each)))(row),
};

/** @param {Tree} tree @param {Row} row */
function toParent(tree, row) {
  for (let place = tree.active - 1; place >= 0; place -= 1)
    if (tree.rows[place].level < row.level) return tree.activate(place);
}

const MAX_TYPES = 200;

class Tools {
  /** @param {Tree} tree */
  constructor(tree) {
    this.tree = tree;
    this.said = h("span", { class: "quiet small tree-said", role: "status" });
    const button = (/** @type {string} */ words, /** @type {() => void} */ onclick) =>
      makeButton(words, onclick, { class: "button small" });
    this.types = /** @type {HTMLSelectElement} */ (
      h("select", { "aria-label": "Type of module", onchange: () => this.#chooseType() })
    );
    this.fold = /** @type {HTMLInputElement} */ (
      h("input", { type: "checkbox", onchange: () => tree.page.state.set({ fold: this.fold.checked ? "1" : "0" }) })
    );
    const buttons = [button("Expand all", () => tree.open("all")), button("Collapse all", () => tree.open("none"))];
    if (tree.options.alarming)
      buttons.push(button(tree.options.alarmingWords ?? "Expand to alerts", () => tree.open("alerts")));
    const { defaults } = tree.page.state;
    const fold = "fold" in defaults ? h("label", { class: "small" }, this.fold, "Group equal blocks") : null;
    this.element = h("div", { class: "toolbar tree-tools" }, this.types, ...buttons, fold, this.said);
  }

  /** @param {readonly Module[]} modules */
  showTypes(modules) {
    /** @type {Map<string, number>} */
    const counts = new Map();
    for (const { type = "" } of modules) counts.set(type, (counts.get(type) ?? 0) + 1);
    const options = [...counts]
      .sort((one, two) => two[1] - one[1])
      .slice(0, MAX_TYPES)
      .map(([type, many]) => h("option", { value: type }, `${type} (${count(many)})`));
    this.types.replaceChildren(h("option", { value: "" }, "All types"), ...options);
    this.tell();
  }

  /** The type is a term of the search, so that there is one filter, not two. */
  #chooseType() {
    const { state } = this.tree.page;
    const others = state
      .get("f")
      .split(/\s+/)
      .filter((/** @type {string} */ term) => term && !term.startsWith("type:"));
    state.set({ f: [...others, ...(this.types.value ? [`type:${this.types.value}`] : [])].join(" ") });
  }

  tell() {
    const { tree } = this;
    const all = tree.modules.length;
    const folded = tree.page.state.optional("fold") === "1";
    const matching = `${count(tree.matching)} ${folded ? "rows " : ""}of `;
    const said = `${tree.finder.text ? matching : ""}${counted(all, "module")}`;
    write(this.said, said);
    this.fold.checked = folded;
    this.types.value = /(?:^|\s)type:(\S+)/.exec(tree.page.state.get("f") ?? "")?.[1] ?? "";
    if (this.types.selectedIndex < 0) this.types.value = "";
  }

  /** Why there is no row. */
  nothing() {
    const all = this.tree.modules.length;
    if (!all) return h("p", {}, noModules(this.tree.page));
    const clear = makeButton("Clear filter", () => this.tree.page.state.set({ f: "" }));
    return h(
      "div",
      {},
      h("p", {}, `No modules match the filter; ${all === 1 ? "1 module is" : `${count(all)} modules are`} hidden.`),
      clear,
    );
  }

  /** @param {Column} column @param {number} place @param {{column: Column, descending: boolean} | null} sort */
  heading(column, place, sort) {
    const own = sort?.column.key === column.key ? sort : null;
    const { state } = this.tree.page;
    const mark = own ? (own.descending ? " \u25be" : " \u25b4") : "";
    // First click: the largest numbers, or words from A on; then the other way; then the model's order again.
    const [once, twice] = column.number ? [`-${column.key}`, column.key] : [column.key, `-${column.key}`];
    const next = !own ? once : state.optional("sort") === once ? twice : "";
    const cell = h("div", {
      role: "columnheader",
      class: `tree-cell${column.number ? " number" : ""}`,
      "aria-colindex": String(place + 1),
      title: column.help ?? null,
    });
    cell.setAttribute("aria-sort", own ? (own.descending ? "descending" : "ascending") : "none");
    if ("sort" in state.defaults) {
      const onclick = () => {
        state.set({ sort: next });
        /** @type {HTMLElement | null} */ (this.tree.head.children[place].querySelector("button"))?.focus();
      };
      cell.append(
        h(
          "button",
          { type: "button", class: "tree-sort", onclick },
          column.title,
          h("span", { "aria-hidden": "true" }, mark),
        ),
      );
    } else cell.append(column.title);
    return cell;
  }
}

const AROUND = 6; // rows above and below those that can be seen

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

  /** @param {Page} page @param {HTMLElement} element what is in it stands for the tree until now
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
