/** The lists of the Hooks page: its modules as a tree, the inventory of hooks, and the rules with their forms. */
import { get, getAll, send } from "../api.js";
import { Card } from "../card.js";
import { byId, h, onClick } from "../dom.js";
import { count, kindWords } from "../format.js";
import { MAX_PAGE } from "../limits.js";
import { nextNews, outcomesOf } from "../live/news.js";
import { csvOf, download, fileName } from "../plot/files.js";
import { attempt, toast } from "../popup.js";
import { visit } from "../timeline/links.js";
import { ROOT } from "../vocabulary.js";
import { nodesOf } from "./rows.js";
import { Tree } from "./tree.js";
/** @import { Capture } from "./capture.js"
 * @import { Row } from "./rows.js"
 * @import { Column } from "./tree.js"
 * @import { Page } from "../page.js" */

/** @typedef {{path: string, type: string, parent: string | null, captured: boolean, kinds: string[], reason: string,
 * calls: number, values: number, hooks: number}} Seen */

/** @param {string} run @param {{from?: number, to?: number}} steps of the values @param {AbortSignal} signal
 * @returns {Promise<Seen[]>} */
export async function load(run, steps, signal) {
  return /** @type {any} */ (await get(`runs/${encodeURIComponent(run)}/module-rows`, steps, signal));
}

/** A column of counts, of which zeros are left out. @param {"calls" | "values" | "hooks"} key @param {string} title
 * @param {number} width @param {string} help @returns {Column} */
function counts(key, title, width, help) {
  const value = (/** @type {Seen} */ module) => module[key];
  return { key, title, width, number: true, value, words: (many) => (many ? count(many) : ""), rank: value, help };
}

/** @param {Page} page @param {HTMLElement} figure @param {Capture | null} capture */
export function makeTree(page, figure, capture) {
  const place = /** @type {HTMLElement} */ (figure.querySelector("#tree"));
  /** @type {Column[]} */
  const columns = [
    { key: "type", title: "Type", width: 140, value: ({ type }) => type },
    {
      key: "captured",
      title: "Captured",
      width: 310,
      value: ({ captured, reason }) => (captured ? "yes" : reason || "no"),
      rank: ({ captured }) => Number(!captured),
      words: (words, { captured }) => `${captured ? "\u2713" : "\u2013"} ${words}`,
      help: "If not, the reason. A collapsed group shows the first uncaptured module in it.",
    },
    { key: "kinds", title: "Kinds", width: 230, value: ({ kinds }) => kinds.map(kindWords).join(", ") },
    counts("calls", "Calls", 62, "Calls per step"),
    counts("values", "Values", 84, "Values read in the newest captured step, or in the chosen steps"),
    counts("hooks", "Hooks", 72, "Hooks on the module and its parameters that are not from hookcore"),
  ];
  if (capture)
    columns.unshift({
      key: "watch",
      title: "Watch",
      width: 70,
      value: ({ path }) => capture.watches(path),
      paint: (cell, _module, row) => paintBox(cell, row),
    });

  /** @param {HTMLElement} cell @param {Row} row */
  function paintBox(cell, row) {
    if (!cell.firstChild) cell.append(h("button", { type: "button", role: "checkbox", class: "box", tabindex: "-1" }));
    const box = /** @type {HTMLElement} */ (cell.firstChild);
    box.setAttribute("aria-checked", stateOf(row));
    box.setAttribute(
      "aria-label",
      `Watch ${row.node.path || ROOT}${row.expanded === false ? " and everything below it" : ""}`,
    );
    box.onclick = () => flip(row);
  }

  /** @param {Row} row */
  function stateOf({ node, expanded }) {
    const members = (expanded === false ? nodesOf([node]) : [node]).flatMap((each) => each.members);
    const on = members.filter(({ path }) => capture?.watches(path)).length;
    return on === members.length ? "true" : on ? "mixed" : "false";
  }

  /** @param {Row} row */
  async function flip(row) {
    if (!capture) return;
    await capture.known; // a switch before that would go the wrong way
    const paths = row.node.members.map(({ path }) => path);
    const blocked = await capture.switch({ paths, whole: row.expanded === false, on: stateOf(row) !== "true" });
    if (blocked)
      toast(`${row.node.path || ROOT} is still excluded by ${blocked}. Remove that pattern from Exclude.`, {
        kind: "error",
      });
    else page.announce(byId("dry-run").textContent ?? "");
  }

  const onPick = (/** @type {any} */ { path }) => visit(page, "layer", { module: path });
  const tree = new Tree(page, place, {
    title: "Modules",
    columns,
    onPick,
    onSpace: capture ? flip : undefined,
    alarming: ({ captured }) => !captured,
    alarmingWords: "Expand uncaptured",
  });
  new Card(page, figure, { title: "Modules", table: () => tree.table() });
  return tree;
}

const PATIENCE_MS = 20_000;

/** @param {Page} page @param {() => Promise<void>} show */
export function startInventory(page, show) {
  const button = document.getElementById("stock");
  if (!button) return;
  const told = byId("stock-told");
  button.addEventListener("click", async () => {
    button.setAttribute("disabled", "");
    told.textContent = "Searching \u2026";
    try {
      const { number } = await send("POST", "hooks", undefined, { run: page.run });
      told.textContent = (await isDone(page, number))
        ? "Done."
        : "The trainer has not answered yet. It searches at its next step.";
      await show();
    } catch (error) {
      told.textContent = /** @type {Error} */ (error).message;
    }
    button.removeAttribute("disabled");
  });
}

/** @param {Page} page @param {number} number */
async function isDone(page, number) {
  const until = performance.now() + PATIENCE_MS;
  do {
    const news = nextNews(page);
    const [{ outcome }] = await outcomesOf(page.run, [number]);
    if (outcome !== "waiting") return true;
    await news;
  } while (performance.now() < until);
  return false;
}

const COLUMNS = ["scope", "owner", "point", "function", "where", "ours", "number", "options", "legacy", "warning"];

/** Returns all hooks of a run. @param {string | null} run @returns {Promise<Record<string, any>[]>} */
export async function hooksOf(run) {
  return (await getAll("hooks", { run, limit: MAX_PAGE })).flatMap(({ hooks }) => hooks);
}

/** @param {Page} page */
export function startFiles(page) {
  for (const format of /** @type {const} */ (["csv", "json"])) {
    byId(`hooks-${format}`).addEventListener("click", async (/** @type {Event} */ event) => {
      event.preventDefault();
      await attempt(`Exporting the hooks as ${format.toUpperCase()} failed`, async () => {
        const [text, type] = textOf(await hooksOf(page.run), format);
        download(new Blob([text], { type }), `${fileName(page.runName, "hooks")}.${format}`);
      });
    });
  }
}

/** @param {Record<string, any>[]} hooks @param {"csv" | "json"} format @returns {[string, string]} text and type */
function textOf(hooks, format) {
  if (format === "json") return [JSON.stringify({ hooks }), "application/json"];
  const rows = hooks.map((hook) => COLUMNS.map((name) => [hook[name]].flat().join(" ")));
  return [csvOf(COLUMNS, rows), "text/csv"];
}

/** @param {HTMLFormElement} form @returns {Record<string, number> | boolean} */
function chosenIn(form) {
  const fields = [.../** @type {NodeListOf<HTMLInputElement>} */ (form.querySelectorAll("input"))];
  if (fields.some((field) => field.name === "on" && !field.checked)) return false;
  const numbers = fields.filter((field) => field.type === "number");
  return numbers.length ? Object.fromEntries(numbers.map((field) => [field.name, Number(field.value)])) : true;
}

/** @param {string} run @param {HTMLElement} root @param {() => Promise<unknown>} renew called when it is saved */
export function listenToRules(run, root, renew) {
  /** @param {HTMLFormElement} form @param {Record<string, number> | boolean} chosen */
  const change = async (form, chosen) => {
    const rules = { [form.dataset.rule ?? ""]: chosen };
    if (!(await attempt("The rule was not changed", () => send("POST", "rules", { run, rules })))) return;
    toast("Rule updated. It applies from the next step.");
    await renew();
    form.reset(); // the fields show the server's values, not the entered ones
  };
  root.addEventListener("submit", (event) => {
    const form = /** @type {HTMLFormElement} */ (event.target);
    event.preventDefault();
    change(form, chosenIn(form));
  });
  onClick("[data-default]", (button) => change(button.closest("form"), true), root);
}
