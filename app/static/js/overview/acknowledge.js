// @ts-check
/** Acknowledging: a button that says so, and a way back. */
import { send } from "../api.js";
import { toast } from "../toast.js";

/** Listens to the buttons `data-seen` (a key), also those that come later. @param {import("../page.js").Page} page
 * @param {() => void} renew called when the server knows */
export function listenToSeen(page, renew) {
  /** @param {string} key @param {boolean} yes */
  const note = async (key, yes) => {
    try {
      await send("POST", "acknowledgements", { run: page.run, key, acknowledged: yes });
      page.events.emit("acknowledged");
      renew();
      return true;
    } catch (error) {
      toast(`Acknowledging failed: ${/** @type {Error} */ (error).message}`, { kind: "error" });
      return false;
    }
  };
  document.addEventListener("click", async (event) => {
    const button = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("[data-seen]"));
    if (!button) return;
    const { seen: key = "", undone } = button.dataset;
    const next = /** @type {HTMLElement | null} */ (
      button.closest("li, tr")?.nextElementSibling?.querySelector("[data-seen]")
    );
    if (!(await note(key, undone === undefined))) return;
    // The line disappears, and the focus moves to the next one.
    if (document.activeElement === button) next?.focus({ preventScroll: true });
    if (undone === undefined)
      toast("Acknowledged. You will be alerted if it happens again.", { undo: () => note(key, false) });
  });
}
