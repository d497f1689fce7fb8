/** The menu that every chart has: its numbers as a table, its pin, and its files: pictures, numbers, and Python. */
import { pin, pinOf } from "./board/pin.js";
import { copyText, h, makeButton } from "./dom.js";
import { count, number } from "./format.js";
import { csvOf, download, fetchFile, fileName, jsonOf } from "./plot/files.js";
import { toast } from "./popup.js";

/** @import { Page } from "./page.js" */

/** Our parameters by the names of the client's. @type {Record<string, string>} */
const NAMES = { from: "first", to: "last", name: "names" };

/** The method for a path, and which parameters come without their name.
 * @type {Record<string, {method: string, answer: string, bare: string[], drop?: string[]}>} */
const CALLS = {
  series: { method: "series", answer: "series", bare: ["tap"] },
  many_series: { method: "many_series", answer: "many", bare: ["match"], drop: ["limit", "after"] },
  heatmap: { method: "heatmap", answer: "heatmap", bare: [], drop: ["counts"] },
  histograms: { method: "histograms", answer: "histograms", bare: ["tap"] },
  many_histograms: { method: "many_histograms", answer: "histograms", bare: ["tap"] },
  latest: { method: "latest", answer: "latest", bare: [] },
  scalars: { method: "scalars", answer: "scalars", bare: ["name"], drop: ["limit", "after"] },
  events: { method: "events", answer: "events", bare: [], drop: ["limit"] },
  taps: { method: "taps", answer: "taps", bare: [], drop: ["limit", "after"] },
};

/** @typedef {{path: string, query: Record<string, any>}} Query of the interface: a path below api/v1 */

/** @param {any} value @returns {string} */
function literal(value) {
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "number") return String(value);
  if (typeof value === "boolean") return value ? "True" : "False";
  return JSON.stringify(String(value));
}

/** @param {Query} asked */
function callOf({ path, query }) {
  const taps = [query.tap ?? []].flat();
  const isMany = (path === "series" && !taps.length) || (path === "histograms" && taps.length > 1);
  const name = isMany ? `many_${path}` : path;
  const { method, answer, bare, drop = [] } = CALLS[name];
  const parameters = Object.entries(query).filter(
    ([key, value]) => value !== null && value !== undefined && value !== "" && !drop.includes(key),
  );
  /** @type {[string, string[]][]} */
  const lists = name.endsWith("series")
    ? [
        ["tap", taps],
        ["stat", String(query.stat ?? "").split(",")],
      ]
    : [];
  const loops = lists.filter(([, loop]) => loop.length > 1);
  const value = (/** @type {string} */ key, /** @type {any} */ argument) =>
    loops.some(([loop]) => loop === key)
      ? key
      : literal(Array.isArray(argument) && argument.length === 1 ? argument[0] : argument);
  const first = parameters.filter(([key]) => bare.includes(key)).map(([key, argument]) => value(key, argument));
  const named = parameters
    .filter(([key]) => !bare.includes(key))
    .map(([key, argument]) => `${NAMES[key] ?? key}=${value(key, argument)}`);
  const call = `client.${method}(${[...first, ...named].join(", ")})`;
  if (!loops.length) return `${answer} = ${call}`;
  const keys = loops.length > 1 ? "(tap, stat)" : loops[0][0];
  const header = loops.map(([key, values]) => `    for ${key} in ${literal(values)}\n`).join("");
  return `${answer} = {\n    ${keys}: ${call}\n${header}}`;
}

/** Returns whether the client has a method for these queries. @param {Query[]} asked */
export function hasPython(asked) {
  return asked.length > 0 && asked.every(({ path }) => path in CALLS);
}

/** Returns a script that asks the same. @param {Query[]} asked @param {string} url of the server */
export function pythonOf(asked, url) {
  return `import hookcore\n\nclient = hookcore.Client(${literal(url)})\n${asked.map(callOf).join("\n")}\n`;
}

/** @typedef {{words: string, action: () => void}} Item */

let made = 0;

class Menu {
  /** @param {string} label what it is the menu of @param {() => Item[]} items asked for when it opens */
  constructor(label, items) {
    made += 1;
    this.items = items;
    this.button = makeButton("\u22ef", () => (this.list.hidden ? this.open() : this.close()), {
      class: "button small icon",
      "aria-haspopup": "menu",
      "aria-expanded": "false",
      "aria-controls": `menu-${made}`,
    });
    this.list = h("div", { class: "menu", id: `menu-${made}`, role: "menu", hidden: true });
    this.rename(label);
    this.element = h("span", { class: "menu-place" }, this.button, this.list);
    this.element.addEventListener("keydown", (event) => this.#hear(event));
    this.element.addEventListener("focusout", (event) => {
      if (!document.hasFocus()) return; // the whole window lost it
      if (!this.element.contains(/** @type {Node | null} */ (event.relatedTarget))) this.close(false);
    });
  }

  /** @param {string} label what it is the menu of */
  rename(label) {
    for (const element of [this.button, this.list]) element.setAttribute("aria-label", `Actions: ${label}`);
  }

  open() {
    this.list.replaceChildren(
      ...this.items().map(({ words, action }) =>
        h("button", { type: "button", role: "menuitem", tabindex: "-1", onclick: () => this.#choose(action) }, words),
      ),
    );
    this.list.hidden = false;
    this.button.setAttribute("aria-expanded", "true");
    this.#entries[0]?.focus();
  }

  /** @param {boolean} [back] to the button with the focus */
  close(back = true) {
    if (this.list.hidden) return;
    this.list.hidden = true;
    this.button.setAttribute("aria-expanded", "false");
    if (back) this.button.focus();
  }

  /** @returns {HTMLElement[]} */
  get #entries() {
    return /** @type {HTMLElement[]} */ ([...this.list.children]);
  }

  /** @param {() => void} action */
  #choose(action) {
    this.close();
    action();
  }

  /** @param {KeyboardEvent} event */
  #hear(event) {
    if (this.list.hidden) {
      if (event.key !== "ArrowDown") return;
      this.open();
    } else if (event.key === "Escape") this.close();
    else {
      const entries = this.#entries;
      const at = entries.indexOf(/** @type {HTMLElement} */ (document.activeElement));
      const next = {
        ArrowDown: (at + 1) % entries.length,
        ArrowUp: (at - 1 + entries.length) % entries.length,
        Home: 0,
        End: entries.length - 1,
      }[event.key];
      if (next === undefined) return;
      entries[next].focus();
    }
    event.preventDefault();
    event.stopPropagation();
  }
}

const MAX_ROWS = 1000;
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

export class Card {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  /** @param {Page} page @param {HTMLElement} element the figure @param {CardOptions} options */
  constructor(page, element, options) {
    this.page = page;
    this.element = element;
    this.options = options;
    this.table = h("div", {
      class: "wide card-table",
      tabindex: "0",
      role: "region",
      "aria-label": `${options.title}, as a table`,
      hidden: true,
    });
    this.menu = new Menu(options.title, () => this.items());
    this.heading = element.querySelector(":scope > header :is(h2, h3)");
    const header = element.querySelector(":scope > header") ?? h("header", {}, h("h2", {}, options.title));
    if (!header.parentNode) element.prepend(header);
    this.tools = h("span", { class: "card-tools" }, this.menu.element);
    header.append(this.tools);
    element.append(this.table);
    register(page, this);
  }

  /** @param {boolean} shown */
  showTable(shown) {
    this.table.hidden = !shown;
    this.element.classList.toggle("as-table", shown);
    this.refresh();
  }

  /** Names the card, its tools, and its files after another subject. @param {string} title */
  rename(title) {
    if (title === this.options.title) return;
    this.options.title = title;
    if (this.heading) this.heading.textContent = title;
    this.table.setAttribute("aria-label", `${title}, as a table`);
    this.menu.rename(title);
    this.refresh();
  }

  /** Updates the table if it is open. */
  refresh() {
    if (this.table.hidden) return;
    const { columns, rows } = this.options.table();
    const head = h(
      "tr",
      {},
      ...columns.map((name, place) => h("th", { scope: "col", class: place ? "number" : null }, name)),
    );
    const shown = rows.slice(-MAX_ROWS).reverse();
    const body = shown.map((row) =>
      h(
        "tr",
        {},
        ...row.map((value, place) =>
          place ? h("td", { class: classOf(value) }, wordOf(value)) : h("th", { scope: "row" }, wordOf(value)),
        ),
      ),
    );
    const which = /^steps?\b/.test(columns[0]) ? "the newest " : "";
    const words = `Showing ${which}${count(MAX_ROWS)} of ${count(rows.length)} rows.`;
    const more =
      rows.length > MAX_ROWS ? h("p", { class: "quiet small" }, `${words} Exported files contain all rows.`) : "";
    this.table.replaceChildren(
      h(
        "table",
        {},
        h("caption", { class: "quiet-label" }, this.options.title),
        h("thead", {}, head),
        h("tbody", {}, ...body),
      ),
      more,
    );
  }

  /** Updates the table soon, if it is open. */
  soon() {
    if (this.table.hidden) return;
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      this.refresh();
    }, TABLE_MS);
  }

  /** @returns {Item[]} */
  items() {
    const { png, svg, title } = this.options;
    const { queries } = this;
    const isChart = Boolean(this.table.hidden);
    const items = [{ words: isChart ? "Show as table" : "Show as chart", action: () => this.showTable(isChart) }];
    const pinned = this.page.mayChange && this.options.pins !== false && pinOf(queries, title);
    if (pinned) items.push({ words: "Pin", action: () => void pin(pinned) });
    if (png) items.push({ words: "Save as PNG", action: () => void this.save("png", png) });
    if (svg)
      items.push({
        words: "Save as SVG",
        action: () => this.save("svg", async () => new Blob([await svg()], { type: "image/svg+xml" })),
      });
    items.push(
      { words: "Save as CSV", action: () => this.saveNumbers("csv") },
      { words: "Save as JSON", action: () => this.saveNumbers("json") },
    );
    if (hasPython(queries)) items.push({ words: "Copy as Python", action: () => this.copyPython() });
    return items;
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

  /** @param {"csv" | "json"} format */
  async saveNumbers(format) {
    const queries = this.queries;
    if (!queries.length) {
      const { columns, rows } = this.options.table();
      const text = format === "csv" ? csvOf(columns, rows) : jsonOf(columns, rows);
      return this.save(
        format,
        async () => new Blob([text], { type: format === "csv" ? "text/csv" : "application/json" }),
      );
    }
    for (const [place, query] of queries.entries())
      await this.save(format, () => fetchFile(query, format), queries.length > 1 ? String(place + 1) : "");
  }

  /** @param {string} ending @param {() => Promise<Blob>} make @param {string} [part] */
  async save(ending, make, part = "") {
    try {
      download(await make(), `${fileName(this.page.runName || this.page.name, this.options.title, part)}.${ending}`);
    } catch (error) {
      const why = error instanceof Error ? error.message : error;
      toast(`Exporting \u201c${this.options.title}\u201d as ${ending.toUpperCase()} failed: ${why}`, { kind: "error" });
    }
  }

  async copyPython() {
    const url = new URL(document.baseURI).href.replace(/\/$/, "");
    const script = pythonOf(this.queries, url);
    if (await copyText(script)) toast("Copied a script that reads the same values");
    else toast(`Your browser blocked copying. The script is: ${script}`, { kind: "error" });
  }
}

/** @param {Page} page @param {Card} card */
function register(page, card) {
  const registered = cards.get(page) ?? [];
  if (!registered.length)
    page.keys.add(
      "e",
      "actions of the chart under the pointer, or of the first visible one",
      () => pointedAt(registered)?.menu.open(),
      { group: "Charts" },
    );
  registered.push(card);
  cards.set(page, registered);
}

/** @param {Card[]} registered */
function pointedAt(registered) {
  const there = registered.filter(({ element }) => element.isConnected && element.offsetParent);
  return (
    there.find(({ element }) => element.contains(document.activeElement)) ??
    there.find(({ element }) => element.matches(":hover")) ??
    there.find(({ element }) => inSight(element)) ??
    there[0] ??
    null
  );
}

/** @param {HTMLElement} element */
function inSight(element) {
  const { top, bottom } = element.getBoundingClientRect();
  return bottom > 60 && top < innerHeight;
}

/** @param {unknown} value */
function wordOf(value) {
  if (typeof value === "number") return Number.isInteger(value) ? count(value) : number(value);
  return value === null || value === undefined ? "-" : String(value);
}

/** @param {unknown} value */
function classOf(value) {
  return typeof value === "number" && !Number.isFinite(value)
    ? Number.isNaN(value)
      ? "number nan"
      : "number inf"
    : "number";
}
