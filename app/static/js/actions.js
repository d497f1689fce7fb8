/** What the menu of a chart does: its numbers as a table, its pin, and its files: pictures, numbers, and Python. */
import { getFile } from "./api.js";
import { pin, pinOf } from "./board/pin.js";
import { copyText, h } from "./dom.js";
import { count, number } from "./format.js";
import { toast } from "./popup.js";

/** @import { Card, Query } from "./card.js" */

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

/** Fills the menu of a card, and places it at its button. The browser closes it. @param {Card} card */
export function fillMenu(card) {
  const { button, list } = card;
  const entries = itemsOf(card).map(({ words, action }) => {
    const choose = () => {
      list.hidePopover();
      action();
    };
    return h("button", { type: "button", role: "menuitem", tabindex: "-1", onclick: choose }, words);
  });
  list.replaceChildren(...entries);
  const { right, bottom } = button.getBoundingClientRect();
  const left = Math.max(4, right - list.offsetWidth) + scrollX;
  Object.assign(list.style, { left: `${left}px`, top: `${bottom + 4 + scrollY}px` });
  entries[0].focus();
  list.onkeydown = (event) => {
    const at = entries.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 };
    if (event.key === "Escape") event.stopPropagation(); // only the menu ends
    if (!(event.key in moves)) return;
    entries.at(moves[/** @type {keyof typeof moves} */ (event.key)] % entries.length)?.focus();
    event.preventDefault();
    event.stopPropagation();
  };
}

const MAX_ROWS = 1000;

/** @param {Card} card @param {boolean} shown */
function showTable(card, shown) {
  card.fill = () => fill(card);
  card.table.hidden = !shown;
  card.element.classList.toggle("as-table", shown);
  card.refresh();
}

/** @param {Card} card */
function fill(card) {
  const { columns, rows } = card.options.table();
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
  card.table.replaceChildren(
    h(
      "table",
      {},
      h("caption", { class: "quiet-label" }, card.options.title),
      h("thead", {}, head),
      h("tbody", {}, ...body),
    ),
    more,
  );
}

/** @param {Card} card @returns {{words: string, action: () => void}[]} */
function itemsOf(card) {
  const { png, svg, title } = card.options;
  const { queries } = card;
  const isChart = Boolean(card.table.hidden);
  const items = [{ words: isChart ? "Show as table" : "Show as chart", action: () => showTable(card, isChart) }];
  const pinned = card.page.mayChange && card.options.pins !== false && pinOf(queries, title);
  if (pinned) items.push({ words: "Pin", action: () => void pin(pinned) });
  if (png) items.push({ words: "Save as PNG", action: () => void save(card, "png", png) });
  if (svg)
    items.push({
      words: "Save as SVG",
      action: () => save(card, "svg", async () => new Blob([await svg()], { type: "image/svg+xml" })),
    });
  items.push(
    { words: "Save as CSV", action: () => saveNumbers(card, "csv") },
    { words: "Save as JSON", action: () => saveNumbers(card, "json") },
  );
  if (hasPython(queries)) items.push({ words: "Copy as Python", action: () => copyPython(card) });
  return items;
}

/** @param {Card} card @param {"csv" | "json"} format */
async function saveNumbers(card, format) {
  const queries = card.queries;
  if (!queries.length) {
    const { columns, rows } = card.options.table();
    const text = format === "csv" ? csvOf(columns, rows) : jsonOf(columns, rows);
    return save(
      card,
      format,
      async () => new Blob([text], { type: format === "csv" ? "text/csv" : "application/json" }),
    );
  }
  for (const [place, query] of queries.entries())
    await save(card, format, () => fetchFile(query, format), queries.length > 1 ? String(place + 1) : "");
}

/** @param {Card} card @param {string} ending @param {() => Promise<Blob>} make @param {string} [part] */
async function save(card, ending, make, part = "") {
  try {
    download(await make(), `${fileName(card.page.runName || card.page.name, card.options.title, part)}.${ending}`);
  } catch (error) {
    const why = error instanceof Error ? error.message : error;
    toast(`Exporting \u201c${card.options.title}\u201d as ${ending.toUpperCase()} failed: ${why}`, { kind: "error" });
  }
}

/** @param {Card} card */
async function copyPython(card) {
  const url = new URL(document.baseURI).href.replace(/\/$/, "");
  const script = pythonOf(card.queries, url);
  if (await copyText(script)) toast("Copied a script that reads the same values");
  else toast(`Your browser blocked copying. The script is: ${script}`, { kind: "error" });
}

/** @param {Card[]} registered */
export function pointedAt(registered) {
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

/** A name that every file system takes. @param {...string} parts */
export function fileName(...parts) {
  const words = parts.filter(Boolean).map((part) => part.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^-+|-+$/g, ""));
  return ["hookcore", ...words].filter(Boolean).join("_").slice(0, 150);
}

/** A field of CSV: quoted if needed, NaN and the infinities as NumPy writes them, and no text that a spreadsheet would
 * run as a formula. @param {unknown} value */
function field(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number" && !Number.isFinite(value))
    return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  const isFormula = typeof value === "string" && /^[=+\-@\t\r\n]/.test(value) && Number.isNaN(Number(value));
  const text = isFormula ? `'${value}` : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** @param {string[]} columns @param {any[][]} rows */
export function csvOf(columns, rows) {
  return [columns, ...rows].map((row) => `${row.map(field).join(",")}\r\n`).join("");
}

/** JSON with the words for what JSON cannot say. @param {string[]} columns @param {any[][]} rows */
export function jsonOf(columns, rows) {
  const replace = (/** @type {string} */ _, /** @type {any} */ value) =>
    typeof value === "number" && !Number.isFinite(value) ? String(value) : value;
  return JSON.stringify({ columns, rows }, replace);
}

/** @param {Blob} blob @param {string} name */
function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The server's data for this chart, in one of its formats. @param {Query} asked @param {"csv" | "json"} format */
async function fetchFile({ path, query }, format) {
  return (await getFile(path, { ...query, format })).blob();
}
