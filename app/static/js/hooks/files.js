// @ts-check
/** The inventory of hooks as a file of rows. */
import { get } from "../api.js";
import { byId } from "../dom.js";
import { csvOf, download, fileName } from "../plot/files.js";
import { toast } from "../toast.js";

const COLUMNS = ["scope", "owner", "point", "function", "where", "ours", "number", "options", "legacy", "warning"];

/** @param {import("../page.js").Page} page */
export function startFiles(page) {
  byId("hooks-csv").addEventListener("click", async () => {
    try {
      const { hooks } = await get("hooks", { run: page.run, limit: 10_000 });
      const rows = hooks.map((/** @type {any} */ hook) =>
        COLUMNS.map((name) => (Array.isArray(hook[name]) ? hook[name].join(" ") : hook[name])),
      );
      download(new Blob([csvOf(COLUMNS, rows)], { type: "text/csv" }), `${fileName(page.runName, "hooks")}.csv`);
    } catch (error) {
      toast(`Exporting the hooks as CSV failed: ${/** @type {Error} */ (error).message}`, { kind: "error" });
    }
  });
}
