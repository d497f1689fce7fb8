// @ts-check
/** Saved views of the list of runs: links to its addresses, kept by the server. */
import { send } from "../api.js";
import { byId } from "../dom.js";
import { closeOutside } from "../popup.js";
import { toast } from "../toast.js";

/** @param {() => void} refresh */
export function startViews(refresh) {
  const box = /** @type {HTMLDetailsElement} */ (byId("views"));
  /** @param {string} what @param {() => Promise<unknown>} ask @param {() => void} [done] called if the server did it */
  const change = async (what, ask, done = () => {}) => {
    try {
      await ask();
      done();
      refresh();
    } catch (error) {
      toast(`${what} the view failed: ${/** @type {Error} */ (error).message}`, { kind: "error" });
    }
  };
  box.addEventListener("submit", (event) => {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.target);
    const field = /** @type {HTMLInputElement} */ (form.elements.namedItem("name"));
    const name = field.value.trim();
    if (!name) return;
    void change(
      "Saving",
      () => send("PUT", "views", { name, query: location.search.slice(1) }),
      () => {
        if (field.value.trim() === name) field.value = "";
        toast(`Saved this view as ${name}.`);
      },
    );
  });
  box.addEventListener("click", (event) => {
    const button = /** @type {HTMLElement} */ (event.target).closest("[data-do=view-delete]");
    const name = button?.getAttribute("data-name") ?? "";
    if (!name) return;
    const query = button?.parentElement?.querySelector("a")?.getAttribute("href")?.replace(/^.*\?/, "") ?? "";
    const undo = () => change("Restoring", () => send("PUT", "views", { name, query }));
    void change(
      "Deleting",
      () => send("DELETE", "views", undefined, { name }),
      () => toast(`Deleted the view ${name}.`, { undo }),
    );
  });
  closeOutside(box);
}
