/** The palette: everything that the page can do or lead to, found by typing; and the list of its keys. Loaded when
 * opened. */
import { get } from "./api.js";
import { coded, h, makeButton } from "./dom.js";
import { count, moduleName } from "./format.js";
import { MAX_PATTERN } from "./limits.js";
import { isPassing } from "./live/refresh.js";
import { openDialog } from "./popup.js";
import { visit } from "./timeline/links.js";

/** @import { Keys } from "./keys.js"
 * @import { Page } from "./page.js" */

/** An entry: its name, other words that find it, its description or keys, and its action.
 * @typedef {{name: string, words?: string, hint?: string, keys?: string, go: () => void}} Entry */

const BEGINS = 0;
const BEGINS_A_WORD = 1;
const CONTAINS = 2;
const NOT_AT_ALL = Infinity;

/** How well a name fits a word. @param {string} name @param {string} word both in lower case @returns {number} */
function fitOf(name, word) {
  const at = name.indexOf(word);
  if (at < 0) return NOT_AT_ALL;
  if (at === 0) return BEGINS;
  const begins = [...name.matchAll(/(?<![\p{L}\p{N}])[\p{L}\p{N}]/gu)].some(({ index }) =>
    name.startsWith(word, index),
  );
  return begins ? BEGINS_A_WORD : CONTAINS;
}

/** The entries that all words of a text find, best first, and in their order if they are as good. @template {{name:
 * string, words?: string}} E @param {string} text @param {readonly E[]} entries @param {number} most @returns {E[]} */
export function rank(text, entries, most) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const scored = entries.flatMap((entry) => {
    const name = entry.name.toLowerCase();
    const others = entry.words?.toLowerCase() ?? "";
    const score = words.reduce((sum, word) => sum + Math.min(fitOf(name, word), CONTAINS + fitOf(others, word)), 0);
    return score === NOT_AT_ALL ? [] : [{ entry, score }];
  });
  return scored
    .sort((a, b) => a.score - b.score)
    .slice(0, most)
    .map(({ entry }) => entry);
}

/** The entries without those whose name was there before. @template {{name: string}} E @param {readonly E[]} entries */
export function unique(entries) {
  return [...new Map(entries.toReversed().map((entry) => [entry.name.toLowerCase(), entry])).values()].reverse();
}

const TYPED_MS = 100;
const AGAIN_MS = 2000; // after a request that failed
const MAX_ACTIONS = 40;

class Palette {
  /** @type {Entry[]} */
  #entries = [];
  #at = 0;
  /** What the server found for the text. @type {Group[]} */
  #found = [];
  #problem = "";
  #asking = new AbortController();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    this.actions = actionsOf(page); // before the dialog hides the page
    this.pages = pagesOf();
    this.list = h("div", { class: "palette-list", id: "palette-list", role: "listbox", "aria-label": "Results" });
    this.words = h("p", { class: "quiet small", role: "status" });
    this.input = /** @type {HTMLInputElement} */ (
      h("input", {
        type: "search",
        role: "combobox",
        "aria-label": "Find actions, pages, layers, and runs",
        "aria-expanded": "true",
        "aria-controls": "palette-list",
        "aria-autocomplete": "list",
        placeholder: page.run === null ? "Actions, pages, runs" : "Actions, pages, layers, runs",
        autocomplete: "off",
        spellcheck: "false",
        maxlength: MAX_PATTERN,
      })
    );
    this.dialog = openDialog({ class: "palette", "aria-label": "Command palette" }, this.input, this.list, this.words);
    this.#listen();
    this.#typed();
  }

  #listen() {
    const { dialog, input } = this;
    input.addEventListener("input", () => this.#typed());
    dialog.addEventListener("keydown", (event) => this.#press(event));
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // on the backdrop
    dialog.addEventListener("close", () => {
      clearTimeout(this.#timer);
      this.#asking.abort();
    });
  }

  /** @param {KeyboardEvent} event */
  #press(event) {
    const moves = /** @type {Record<string, number>} */ ({ ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 });
    const isAgain = event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey);
    if (event.isComposing) return;
    if (isAgain) this.dialog.close();
    else if (event.key in moves) this.#move(moves[event.key]);
    else if (event.key === "Enter") this.#choose(this.#entries[this.#at]);
    else return;
    event.preventDefault();
  }

  /** @param {number} by */
  #move(by) {
    const many = this.#entries.length;
    if (!many) return;
    const far = Math.min(many - 1, Math.max(0, this.#at + by));
    this.#mark(Math.abs(by) === 1 ? (this.#at + by + many) % many : far);
  }

  /** @param {number} at */
  #mark(at) {
    this.#at = at;
    const options = this.list.querySelectorAll("[role=option]");
    for (const [place, option] of options.entries()) option.setAttribute("aria-selected", String(place === at));
    const marked = options[at];
    if (marked) {
      this.input.setAttribute("aria-activedescendant", marked.id);
      marked.scrollIntoView({ block: "nearest" });
    } else this.input.removeAttribute("aria-activedescendant");
  }

  /** @param {Entry | undefined} entry */
  #choose(entry) {
    if (!entry) return;
    this.dialog.close();
    entry.go();
  }

  #typed() {
    this.#at = 0;
    clearTimeout(this.#timer);
    this.#asking.abort();
    this.#found = [];
    this.#problem = "";
    this.#show();
    this.#timer = setTimeout(() => void this.#ask(), this.input.value ? TYPED_MS : 0);
  }

  async #ask() {
    const text = this.input.value.trim();
    this.#asking = new AbortController();
    const { signal } = this.#asking;
    const requests = [runsOf(this.page, text, signal)];
    if (this.page.run !== null && text) requests.unshift(layersOf(this.page, text, signal));
    if (text) requests.push(helpOf(text));
    const answers = await Promise.allSettled(requests);
    if (signal.aborted) return;
    this.#found = answers.flatMap((answer) => (answer.status === "fulfilled" ? [answer.value] : []));
    // What the text means to the layers may be no query for runs, which says 400.
    const failed = answers.filter((answer) => answer.status === "rejected" && isPassing(answer.reason));
    this.#problem = failed.length ? "Can\u2019t reach the dashboard, so layers and runs aren\u2019t listed." : "";
    this.#show();
    if (failed.length) this.#timer = setTimeout(() => void this.#ask(), AGAIN_MS);
  }

  /** What was marked stays marked if it is still there. */
  #show() {
    const marked = this.#at ? this.#entries[this.#at] : undefined;
    const text = this.input.value;
    const groups = [
      { title: "Pages", entries: rank(text, this.pages, MAX_ACTIONS) },
      ...(text ? this.#found : []),
      { title: "Actions", entries: rank(text, this.actions, MAX_ACTIONS) },
      ...(text ? [] : this.#found),
    ].filter(({ entries }) => entries.length);
    this.#entries = groups.flatMap(({ entries }) => entries);
    let number = 0;
    this.list.replaceChildren(
      ...groups.map(({ title, entries }) =>
        h(
          "div",
          { role: "group", "aria-label": title },
          h("h3", { "aria-hidden": "true" }, title),
          ...entries.map((entry) => this.#optionOf(entry, number++)),
        ),
      ),
    );
    const many = this.#entries.length;
    const found = many ? `${count(many)} found` : "No results. Try part of a layer\u2019s path, such as `attn`.";
    this.words.replaceChildren(...coded(this.#problem || found));
    this.#mark(marked ? Math.max(0, this.#entries.indexOf(marked)) : 0);
  }

  /** @param {Entry} entry @param {number} number */
  #optionOf(entry, number) {
    return h(
      "div",
      { role: "option", id: `palette-${number}`, "aria-selected": "false", onclick: () => this.#choose(entry) },
      h("span", { class: "palette-name", title: entry.name.length > 60 ? entry.name : null }, entry.name),
      entry.keys ? h("span", { class: "palette-hint" }, ...keyCaps(entry.keys)) : null,
      entry.hint ? h("span", { class: "palette-hint quiet" }, entry.hint) : null,
    );
  }
}

/** @param {Page} page */
export function openPalette(page) {
  if (!document.querySelector("dialog[open]")) new Palette(page);
}

const MAX_LAYERS = 30;
const MAX_RUNS = 8;
const PAGES = "Go to"; // the group of the keys that lead to pages
const DOERS = "header.top button, .timeline button, main button, main a.button";

/** @typedef {{title: string, entries: Entry[]}} Group */

/** What the keys and the buttons of the page do. @param {Page} page @returns {Entry[]} */
function actionsOf(page) {
  const keys = page.keys.all
    .filter(({ group, key }) => group !== PAGES && key !== "Escape" && key !== "Ctrl+k")
    .map(({ key, words, action }) => ({
      name: words[0].toUpperCase() + words.slice(1),
      keys: key,
      go: () => action(new KeyboardEvent("keydown")),
    }));
  const doers = /** @type {HTMLButtonElement[]} */ ([...document.querySelectorAll(DOERS)]);
  const buttons = doers
    .filter((doer) => !doer.disabled && doer.checkVisibility())
    .map((doer) => ({ name: nameOf(doer), go: () => doer.click() }))
    .filter(({ name }) => name);
  return unique([...keys, ...buttons]);
}

/** @param {HTMLElement} doer */
function nameOf(doer) {
  return (doer.getAttribute("aria-label") ?? doer.innerText).trim().replace(/\s+/g, " ");
}

/** @returns {Entry[]} */
function pagesOf() {
  const links = /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll("nav.side a[data-key]"));
  return [...links].map((link) => ({
    name: link.dataset.title ?? "",
    words: link.dataset.words,
    keys: `g ${link.dataset.key}`,
    go: () => link.click(),
  }));
}

/** The layers that a text finds, as the find box finds them. @param {Page} page @param {string} text
 * @param {AbortSignal} signal @returns {Promise<Group>} */
async function layersOf(page, text, signal) {
  const path = `runs/${encodeURIComponent(page.run ?? "")}/find`;
  const { total, paths } = /** @type {{total: number, paths: string[]}} */ (
    await get(path, { f: text, limit: MAX_LAYERS }, signal)
  );
  const title = total > paths.length ? `Layers, the first ${paths.length} of ${count(total)}` : "Layers";
  const entries = paths.map((module) => ({ name: moduleName(module), go: () => visit(page, "layer", { module }) }));
  return { title, entries };
}

/** The runs that a text finds, as the find box of the Runs page finds them. @param {Page} page @param {string} text
 * @param {AbortSignal} signal @returns {Promise<Group>} */
async function runsOf(page, text, signal) {
  const { runs, total } = await get("runs", { query: text, limit: MAX_RUNS + 1 }, signal);
  const entries = runs
    .filter(({ id }) => id !== page.run)
    .slice(0, MAX_RUNS)
    .map(({ id, name, state }) => ({
      name: name || id,
      hint: state,
      go: () => location.assign(new URL(`runs/${encodeURIComponent(id)}`, document.baseURI)),
    }));
  return { title: total > MAX_RUNS + 1 ? `Runs, the newest ${entries.length} of ${count(total)}` : "Runs", entries };
}

/** What the page Help explains: rules, stats, and words. It is read once. @type {Promise<Entry[]> | null} */
let topics = null;

async function readTopics() {
  const answer = await fetch(new URL("help", document.baseURI));
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const links = /** @type {NodeListOf<HTMLAnchorElement>} */ (page.querySelectorAll("main dt > a[href^='help#']"));
  return [...links].map((link) => ({
    name: link.innerText,
    hint: link.hash.startsWith("#rule-") ? "rule" : "",
    go: () => location.assign(new URL(link.getAttribute("href") ?? "help", document.baseURI)),
  }));
}

/** What a text finds on the page Help. @param {string} text @returns {Promise<Group>} */
async function helpOf(text) {
  topics ??= readTopics();
  topics.catch(() => (topics = null)); // asked again with the next text
  return { title: "Help", entries: rank(text, await topics, MAX_RUNS) };
}

/** @type {Record<string, string>} */
const SIGNS = { ArrowLeft: "\u2190", ArrowRight: "\u2192", ArrowUp: "\u2191", ArrowDown: "\u2193", Escape: "Esc" };

/** @param {string} key @returns {Node[]} */
function keyCaps(key) {
  const parts = key.split(" ").map((press) =>
    press
      .split("+")
      .filter(Boolean)
      .map((part) =>
        h("kbd", {}, SIGNS[part] ?? (part.length === 1 && press.startsWith("Ctrl+") ? part.toUpperCase() : part)),
      ),
  );
  return parts.flatMap((press, place) => [...(place ? [document.createTextNode(" then ")] : []), ...press]);
}

/** @param {Keys} keys */
export function showKeys(keys) {
  const open = document.querySelector("dialog.keylist");
  if (open) return /** @type {HTMLDialogElement} */ (open).close();
  const groups = [...keys.groups].map(([group, lines]) =>
    h(
      "section",
      {},
      h("h3", {}, group),
      h(
        "dl",
        {},
        ...lines.flatMap(({ keys: each, words }) => [
          h("dt", {}, ...each.flatMap((key, place) => [...(place ? [" or "] : []), ...keyCaps(key)])),
          h("dd", {}, words),
        ]),
      ),
    ),
  );
  const close = makeButton("Close", () => dialog.close());
  const help = h("a", { href: "help#keys-list" }, "More help");
  const dialog = openDialog(
    { class: "keylist", "aria-labelledby": "keylist-title" },
    h("h2", { id: "keylist-title" }, "Keyboard shortcuts"),
    h("div", { class: "columns" }, ...groups),
    h("p", { class: "toolbar" }, close, help),
  );
}
