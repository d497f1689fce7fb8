// @ts-check
/** The inventory of hooks: a new search by the trainer, and the list as a file. */
import { get, getAll, send } from "../api.js";
import { byId } from "../dom.js";
import { MAX_PAGE } from "../limits.js";
import { nextNews } from "../live/news.js";
import { csvOf, download, fileName } from "../plot/files.js";
import { attempt } from "../toast.js";

const PATIENCE_MS = 20_000;

/** @param {import("../page.js").Page} page @param {() => Promise<void>} show */
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

/** @param {import("../page.js").Page} page @param {number} number */
async function isDone(page, number) {
  const until = performance.now() + PATIENCE_MS;
  do {
    const news = nextNews(page);
    const { waiting } = await get("settings", { run: page.run });
    if (!waiting.some((each) => each.number === number)) return true;
    await news;
  } while (performance.now() < until);
  return false;
}

const COLUMNS = ["scope", "owner", "point", "function", "where", "ours", "number", "options", "legacy", "warning"];

/** Returns all hooks of a run. @param {string | null} run @returns {Promise<Record<string, any>[]>} */
export async function hooksOf(run) {
  return (await getAll("hooks", { run, limit: MAX_PAGE })).flatMap(({ hooks }) => hooks);
}

/** @param {import("../page.js").Page} page */
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
