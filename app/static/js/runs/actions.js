// @ts-check
/** The actions on a run in the list: rename, edit notes, delete. */
import { get, send } from "../api.js";
import { h } from "../dom.js";
import { toast } from "../toast.js";

/** Replaces the name by a form. @param {HTMLElement} row @param {() => void} refresh */
export async function edit(row, refresh) {
  const cell = /** @type {HTMLElement} */ (row.querySelector(".name"));
  if ("editing" in row.dataset) return;
  row.dataset.editing = "";
  const path = /** @type {const} */ (`runs/${row.dataset.run}`);
  const name = /** @type {HTMLInputElement} */ (h("input", { "aria-label": "Name", maxlength: 1000, required: true }));
  const notes = /** @type {HTMLTextAreaElement} */ (
    h("textarea", { "aria-label": "Notes", rows: 2, maxlength: 20000, placeholder: "Notes" })
  );
  const before = [...cell.childNodes];
  // Notes that arrive late must not overwrite what was typed.
  let known = false;
  notes.addEventListener("input", () => (known = true));
  const end = () => {
    delete row.dataset.editing;
    cell.replaceChildren(...before);
    /** @type {HTMLElement | null} */ (row.querySelector("[data-do=edit]"))?.focus();
    refresh();
  };
  const save = async (/** @type {Event} */ asked) => {
    asked.preventDefault();
    try {
      await send("PATCH", path, { name: name.value.trim(), ...(known ? { notes: notes.value } : {}) });
      end();
    } catch (error) {
      toast(`Saving failed: ${/** @type {Error} */ (error).message}`, { kind: "error" });
    }
  };
  const buttons = h(
    "div",
    {},
    h("button", { class: "button main" }, "Save"),
    h("button", { class: "button", type: "button", onclick: end }, "Cancel"),
  );
  const form = h("form", { class: "edit", onsubmit: save }, name, notes, buttons);
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") end();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save(event);
  });
  name.value = row.dataset.name ?? "";
  cell.replaceChildren(form);
  name.select();
  name.focus();
  try {
    const run = await get(path);
    if (!known) notes.value = run.notes;
    known = true;
  } catch (error) {
    toast(`${/** @type {Error} */ (error).message}`, { kind: "error" });
    end();
  }
}

/** Removes a run from the list at once, and from the server unless the reader undoes it.
 * @param {HTMLElement} row @param {Set<string>} gone @param {() => void} show @param {() => void} refresh */
export function remove(row, gone, show, refresh) {
  const run = row.dataset.run ?? "";
  const next = /** @type {HTMLElement | null} */ (row.nextElementSibling ?? row.previousElementSibling);
  gone.add(run);
  show();
  /** @type {HTMLElement | null | undefined} */ (next?.querySelector("a"))?.focus();
  const back = () => {
    gone.delete(run);
    show();
  };
  const forGood = async () => {
    try {
      await send("DELETE", `runs/${run}`);
      refresh();
    } catch (error) {
      back();
      toast(`Deleting failed: ${/** @type {Error} */ (error).message}`, { kind: "error" });
    }
  };
  toast(`Deleted ${row.dataset.name}.`, { undo: back, done: forGood });
}

/** Brings a removed run back. @param {string} run @param {Set<string>} gone @param {() => void} refresh */
export async function restore(run, gone, refresh) {
  gone.delete(run);
  try {
    await send("POST", `removed-runs/${run}/restore`);
  } catch (error) {
    toast(`Restoring failed: ${/** @type {Error} */ (error).message}`, { kind: "error" });
  }
  refresh();
}
