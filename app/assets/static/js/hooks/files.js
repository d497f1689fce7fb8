// @ts-check
/** The inventory of hooks as a file. */
import { getAll } from "../api.js";
import { byId } from "../dom.js";
import { MAX_PAGE } from "../limits.js";
import { csvOf, download, fileName } from "../plot/files.js";
import { toast } from "../toast.js";

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
      try {
        const [text, type] = textOf(await hooksOf(page.run), format);
        download(new Blob([text], { type }), `${fileName(page.runName, "hooks")}.${format}`);
      } catch (error) {
        const words = /** @type {Error} */ (error).message;
        toast(`Exporting the hooks as ${format.toUpperCase()} failed: ${words}`, { kind: "error" });
      }
    });
  }
}

/** @param {Record<string, any>[]} hooks @param {"csv" | "json"} format @returns {[string, string]} text and type */
function textOf(hooks, format) {
  if (format === "json") return [JSON.stringify({ hooks }), "application/json"];
  const rows = hooks.map((hook) => COLUMNS.map((name) => [hook[name]].flat().join(" ")));
  return [csvOf(COLUMNS, rows), "text/csv"];
}
