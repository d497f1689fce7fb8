/** The dialog in which a reader writes what happened at a step. Loaded when it is opened. */
import { send } from "../api.js";
import { h, makeButton, tell } from "../dom.js";
import { count } from "../format.js";
import { MAX_NOTE } from "../limits.js";
import { openDialog, toast } from "../popup.js";

/** @import { Page } from "../page.js" */

/** Asks for what to note at a step. @param {Page} page @param {number} step
 * @param {() => unknown} done after a change */
export function writeNote(page, step, done) {
  const text = page.notes.at(step);
  const area = /** @type {HTMLTextAreaElement} */ (
    h("textarea", {
      maxlength: MAX_NOTE,
      required: true,
      "aria-labelledby": "note-title",
      placeholder: "What happened here?",
    })
  );
  area.value = text;
  const problem = h("p", { class: "error", role: "alert", hidden: true });
  const remove = makeButton("Remove", () => change("DELETE"));
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: "note-title" }, `Annotate step ${count(step)}`),
    area,
    problem,
    h(
      "p",
      { class: "toolbar" },
      h("button", { class: "button main" }, "Save"),
      text ? remove : null,
      makeButton("Cancel", () => dialog.close()),
    ),
  );
  /** @param {"POST" | "DELETE"} method */
  async function change(method) {
    const { run } = page;
    for (const button of buttons) button.disabled = true; // one request at a time
    problem.hidden = true;
    try {
      if (method === "DELETE") await send(method, "annotations", undefined, { run, step });
      else await send(method, "annotations", { run, step, text: area.value });
    } catch (error) {
      // The dialog stays, with the typed text. Toasts would be behind it.
      const words = `The note was not saved: ${/** @type {Error} */ (error).message}`;
      if (!dialog.isConnected) return toast(words, { kind: "error" });
      tell(problem, words);
      for (const button of buttons) button.disabled = false;
      return;
    }
    dialog.close();
    page.announce(`Step ${count(step)} ${method === "DELETE" ? "is no longer annotated" : "annotated"}`);
    void done();
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (area.value.trim() && !buttons[0].disabled) void change("POST");
  });
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey))
      /** @type {HTMLFormElement} */ (form).requestSubmit();
  });
  const buttons = form.querySelectorAll("button");
  const dialog = openDialog({ class: "note-dialog", "aria-labelledby": "note-title" }, form);
}
