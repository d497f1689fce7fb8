// @ts-check
/** Saved views of the list of runs: links to its addresses, kept by the server. */
import { send } from "../api.js";
import { byId, onClick } from "../dom.js";
import { closeOutside } from "../popup.js";
import { attempt, toast } from "../toast.js";
import { AUTO_COLUMNS, VIEW_NAMES } from "../vocabulary.js";

/** What a view of this address is, without what a chat added to a link. Its columns are its own, even if they are those
 * that differ: else a browser that remembers others would show these. @param {string} search of the address */
export function viewOf(search) {
  const query = new URLSearchParams(
    [...new URLSearchParams(search)].filter(([name]) => VIEW_NAMES.split(" ").includes(name)),
  );
  if (!query.get("columns")) query.set("columns", AUTO_COLUMNS);
  return query.toString();
}

/** The address of a saved view; null if there is none of this name. @param {Element} box @param {string} name */
function queryOf(box, name) {
  const links = /** @type {NodeListOf<HTMLElement>} */ (box.querySelectorAll("[data-view]"));
  const link = [...links].find((each) => each.title === name);
  return link?.getAttribute("href")?.replace(/^.*?\?/, "") ?? null;
}

/** @param {() => void} refresh */
export function startViews(refresh) {
  const box = /** @type {HTMLDetailsElement} */ (byId("views"));
  /** @param {string} what @param {() => Promise<unknown>} ask @param {() => void} [done] called if the server did it */
  const change = async (what, ask, done = () => {}) => {
    if (!(await attempt(`${what} the view failed`, ask))) return;
    done();
    refresh();
  };
  box.addEventListener("submit", (event) => {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.target);
    const field = /** @type {HTMLInputElement} */ (form.elements.namedItem("name"));
    const name = field.value.trim();
    if (!name) return;
    const before = queryOf(box, name);
    const undo = () => change("Restoring", () => send("PUT", "views", { name, query: before }));
    void change(
      "Saving",
      () => send("PUT", "views", { name, query: viewOf(location.search) }),
      () => {
        if (field.value.trim() === name) field.value = "";
        if (before === null) toast(`Saved this view as ${name}.`);
        else toast(`Replaced the view ${name}.`, { undo });
      },
    );
  });
  const forget = (/** @type {string} */ name) => {
    const query = queryOf(box, name); // null if it can't be shown, so that it couldn't be saved again
    const undo = () => change("Restoring", () => send("PUT", "views", { name, query }));
    void change(
      "Deleting",
      () => send("DELETE", "views", undefined, { name }),
      () => toast(`Deleted the view ${name}.`, query === null ? {} : { undo }),
    );
  };
  onClick("[data-do=view-delete]", ({ dataset: { name } }) => forget(name), box);
  closeOutside(box);
}
