// @ts-check
/** The button that lets the server replay a saved step. */
import { send } from "../api.js";
import { toast } from "../toast.js";

/** Handles clicks on all buttons with `data-explain` (a capsule). @param {import("../page.js").Page} page
 * @param {() => unknown} renew called when the replay has begun; news tell when it is done */
export function listenToExplain(page, renew) {
  document.addEventListener("click", async (event) => {
    const button = /** @type {HTMLButtonElement | null} */ (
      /** @type {Element} */ (event.target).closest("[data-explain]")
    );
    if (!button || button.disabled) return;
    button.disabled = true;
    try {
      await send("POST", `capsules/${button.dataset.explain}/explain`, undefined, { run: page.run });
    } catch (error) {
      button.disabled = false;
      toast(`The step can't be replayed: ${/** @type {Error} */ (error).message}`, { kind: "error" });
    }
    renew();
  });
}
