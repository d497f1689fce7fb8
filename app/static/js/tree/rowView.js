// @ts-check
/** One row's element, reused for any visible row. */

import { h, write } from "../dom.js";
import { count } from "../format.js";
import { cut } from "../paths.js";
import { ROOT } from "../vocabulary.js";

export const ROW_PX = 28;
const NAME_PX = 220; // of the first column, at least
const [AROUND_PX, LEVEL_PX] = [40, 14]; // of its width: what isn't the name, and what each level adds

const LONG = 16; // letters, from which on a cell may be too narrow

let made = 0;

/** @param {import("./index.js").Column[]} columns */
export function layoutOf(columns) {
  return columns.map(({ width }) => (width ? `${width}px` : `minmax(${NAME_PX}px, 1fr)`)).join(" ");
}

/** The least width of a row. @param {import("./index.js").Column[]} columns */
export function widthOf(columns) {
  return columns.reduce((sum, { width }) => sum + (width || NAME_PX), 0);
}

export class RowView {
  place = -1;
  /** The row that is seen. @type {import("./index.js").Row | null} */
  row = null;

  /** @param {import("./index.js").Tree} tree @param {HTMLElement} body */
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

  /** @param {import("./index.js").Row} row @param {number} place */
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

  /** @param {import("./index.js").Row} row */
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

  /** @param {HTMLElement} cell @param {import("./index.js").Column} column @param {import("./index.js").Row} row */
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
