// @ts-check
/** What opens over a page, and how it closes. */
import { h } from "./dom.js";

/** Shows a dialog that is gone when it closes. @param {Record<string, any>} attributes
 * @param {...HTMLElement} children */
export function openDialog(attributes, ...children) {
  const dialog = /** @type {HTMLDialogElement} */ (h("dialog", attributes, ...children));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Closes a box of choices at a click outside of it, and at Escape. @param {HTMLDetailsElement} box */
export function closeOutside(box) {
  document.addEventListener("click", (event) => {
    if (!event.composedPath().includes(box)) box.open = false;
  });
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !box.open) return;
    box.open = false;
    box.querySelector("summary")?.focus();
  });
}
