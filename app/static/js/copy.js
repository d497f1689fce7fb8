// @ts-check
/** Text to the clipboard, also where a page is not served securely and has no clipboard. */
import { h } from "./dom.js";

/** @param {string} text @returns {Promise<boolean>} whether it is there */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = /** @type {HTMLTextAreaElement} */ (h("textarea", { class: "quiet-label", "aria-hidden": "true" }));
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    field.value = text;
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    before?.focus?.();
    return copied;
  }
}
