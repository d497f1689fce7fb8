// @ts-check
/** Acknowledging findings and events, and undoing it. */
import { send } from "../api.js";
import { byId, onClick } from "../dom.js";
import { attempt, toast } from "../toast.js";

/** Handles clicks on all buttons with `data-seen` (a key). @param {import("../page.js").Page} page
 * @param {() => void} renew called when the server has saved it */
export function listenToSeen(page, renew) {
  /** @param {string} key @param {boolean} yes */
  const note = (key, yes) =>
    attempt("Acknowledging failed", async () => {
      await send("POST", "acknowledgements", { run: page.run, key, acknowledged: yes });
      page.events.emit("acknowledged");
      renew();
    });
  onClick("[data-seen]", async (button) => {
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
