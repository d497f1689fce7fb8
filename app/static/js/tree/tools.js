// @ts-check
/** What stands above a tree: open and close, fold, the filter by type, and how much is found. And its headings. */

import { h, makeButton, write } from "../dom.js";
import { count, counted } from "../format.js";
import { noModules } from "./nothing.js";

const MAX_TYPES = 200;

export class Tools {
  /** @param {import("./index.js").Tree} tree */
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

  /** @param {readonly import("./index.js").Module[]} modules */
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

  /** @param {import("./index.js").Column} column @param {number} place
   * @param {{column: import("./index.js").Column, descending: boolean} | null} sort */
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
