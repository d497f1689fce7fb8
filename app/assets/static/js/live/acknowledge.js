// @ts-check
/** Acknowledging findings and events, and undoing it. */
import { send } from "../api.js";
import { byId } from "../dom.js";
import { toast } from "../toast.js";

/** Handles clicks on all buttons with `data-seen` (a key). @param {import("../page.js").Page} page
 * @param {() => void} renew called when the server has saved it */
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
    const line = button.closest("li, tr");
    const next = /** @type {HTMLElement} */ (
      line?.nextElementSibling?.querySelector("[data-seen]") ??
        line?.previousElementSibling?.querySelector("[data-seen]") ??
        byId("main")
    );
    if (!(await note(key, undone === undefined))) return;
    // The line disappears, so the focus moves to the next one, or else to the one before.
    if (document.activeElement === button) next.focus({ preventScroll: true });
    if (undone === undefined)
      toast("Acknowledged. You will be alerted if it happens again.", { undo: () => note(key, false) });
  });
}
