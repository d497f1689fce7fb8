// @ts-check
/** Everything that can be chosen: what the page can do, the pages, the layers, and the runs. */
import { get } from "../api.js";
import { count } from "../format.js";
import { visit } from "../timeline/keep.js";
import { ROOT } from "../vocabulary.js";
import { unique } from "./rank.js";

const MAX_LAYERS = 30;
const MAX_RUNS = 8;
const PAGES = "Go to"; // the group of the keys that lead to pages
const DOERS = "header.top button, .timeline button, main button, main a.button";

/** @typedef {import("./rank.js").Entry} Entry @typedef {import("../page.js").Page} Page */
/** @typedef {{title: string, entries: Entry[]}} Group */

/** What the keys and the buttons of the page do. @param {Page} page @returns {Entry[]} */
export function actionsOf(page) {
  const keys = page.keys.all
    .filter(({ group, key }) => group !== PAGES && key !== "Escape" && key !== "Ctrl+k")
    .map(({ key, words, action }) => ({
      name: words[0].toUpperCase() + words.slice(1),
      keys: key,
      go: () => action(new KeyboardEvent("keydown")),
    }));
  const doers = /** @type {HTMLButtonElement[]} */ ([...document.querySelectorAll(DOERS)]);
  const buttons = doers
    .filter((each) => !each.disabled && each.checkVisibility())
    .map((each) => ({ name: nameOf(each), go: () => each.click() }))
    .filter(({ name }) => name);
  return unique([...keys, ...buttons]);
}

/** @param {HTMLElement} doer */
function nameOf(doer) {
  return (doer.getAttribute("aria-label") ?? doer.innerText).trim().replace(/\s+/g, " ");
}

/** @returns {Entry[]} */
export function pagesOf() {
  const links = /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll("nav.side a[data-key]"));
  return [...links].map((link) => ({
    name: link.dataset.title ?? "",
    keys: `g ${link.dataset.key}`,
    go: () => link.click(),
  }));
}

/** The layers that a text finds, as the find box finds them. @param {Page} page @param {string} text
 * @param {AbortSignal} signal @returns {Promise<Group>} */
export async function layersOf(page, text, signal) {
  const path = `runs/${encodeURIComponent(page.run ?? "")}/find`;
  const { total, paths } = /** @type {{total: number, paths: string[]}} */ (
    await get(path, { f: text, limit: MAX_LAYERS }, signal)
  );
  const title = total > paths.length ? `Layers, the first ${paths.length} of ${count(total)}` : "Layers";
  const entries = paths.map((module) => ({ name: module || ROOT, go: () => visit(page, "layer", { module }) }));
  return { title, entries };
}

/** The runs that a text finds, as the find box of the Runs page finds them. @param {Page} page @param {string} text
 * @param {AbortSignal} signal @returns {Promise<Group>} */
export async function runsOf(page, text, signal) {
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
