/** The lists of the Hooks page: the inventory of hooks, and the rules with their forms. */
import { getAll, send } from "../api.js";
import { byId, onClick } from "../dom.js";
import { MAX_PAGE } from "../limits.js";
import { nextNews, outcomesOf } from "../live/news.js";
import { csvOf, download, fileName } from "../plot/files.js";
import { attempt, toast } from "../popup.js";

/** @import { Page } from "../page.js" */

const PATIENCE_MS = 20_000;

/** @param {Page} page @param {() => Promise<void>} show */
export function startInventory(page, show) {
  const button = document.getElementById("stock");
  if (!button) return;
  const outcome = byId("stock-told");
  button.addEventListener("click", async () => {
    button.setAttribute("disabled", "");
    outcome.textContent = "Searching \u2026";
    try {
      const { number } = await send("POST", "hooks", undefined, { run: page.run });
      outcome.textContent = (await isDone(page, number))
        ? "Done."
        : "The trainer has not answered yet. It searches at its next step.";
      await show();
    } catch (error) {
      outcome.textContent = /** @type {Error} */ (error).message;
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
