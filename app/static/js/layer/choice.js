// @ts-check
/** The modules to choose from: what fits is shown as one types. The server did the same for the first picture. */
import { byId } from "../dom.js";
import { parse } from "../find.js";
import { count } from "../format.js";

/** @param {import("../page.js").Page} page */
export function startChoice(page) {
  const table = document.getElementById("modules");
  if (!table) return;
  const rows = /** @type {HTMLTableRowElement[]} */ ([...table.querySelectorAll("tbody tr")]);
  const shownAll = new URLSearchParams(location.search).get("f") === null && !byId("found").dataset.more;
  let found = parse("");
  const show = () => {
    found = parse(page.state.get("f"), found);
    byId("problem").textContent = found.problem ?? "";
    const fitting = rows.filter((row) => {
      const { path = "", type = "", parameters, trainable, captured } = row.dataset;
      return !(row.hidden = !found.test({ path, type, parameters: Number(parameters), trainable: Number(trainable), captured: captured === "yes" }));
    });
    byId("found").textContent = `${count(fitting.length)} of ${count(Number(byId("found").dataset.many))}`;
  };
  // What the server left out only the server can show.
  if (shownAll) page.state.on("f", show);
  else page.state.on("f", () => later());
  let timer = 0;
  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(() => location.reload(), 600);
  };
}
