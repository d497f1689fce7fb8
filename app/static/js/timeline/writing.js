/** The dialog in which a reader writes what happened at a step. Loaded when it is opened. */
import { send } from "../api.js";
import { byId, tell } from "../dom.js";
import { count } from "../format.js";
import { toast } from "../popup.js";

/** @import { Page } from "../page.js" */

/** Opens the dialog. @param {Page} page @param {number} step @param {() => unknown} done after a change */
export function writeNote(page, step, done) {
  const dialog = /** @type {HTMLDialogElement} */ (byId("note"));
  const form = /** @type {HTMLFormElement} */ (dialog.querySelector("form"));
  const area = /** @type {HTMLTextAreaElement} */ (form.elements.namedItem("text"));
  const buttons = form.querySelectorAll("button");
  const change = async (/** @type {"POST" | "DELETE"} */ method) => {
    const about = { run: page.run, step };
    for (const button of buttons) button.disabled = true; // one request at a time
    tell(byId("note-problem"), "");
    try {
      if (method === "DELETE") await send(method, "annotations", undefined, about);
      else await send(method, "annotations", { ...about, text: area.value });
      dialog.close();
      page.announce(`Step ${count(step)} ${method === "DELETE" ? "is no longer annotated" : "annotated"}`);
      void done();
    } catch (error) {
      // The dialog stays, with the typed text. Toasts would be behind it.
      const words = `The note was not saved: ${/** @type {Error} */ (error).message}`;
      if (dialog.open) tell(byId("note-problem"), words);
      else toast(words, { kind: "error" });
    }
    for (const button of buttons) button.disabled = false;
  };
  form.onsubmit = (event) => {
    event.preventDefault();
    if (area.value.trim() && !buttons[0].disabled) void change("POST");
  };
  area.onkeydown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  };
  byId("note-remove").onclick = () => change("DELETE");
  byId("note-cancel").onclick = () => dialog.close();
  area.value = page.notes.at(step);
  byId("note-title").textContent = `Annotate step ${count(step)}`;
  byId("note-remove").hidden = !area.value;
  tell(byId("note-problem"), "");
  dialog.showModal();
}
