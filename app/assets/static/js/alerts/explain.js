// @ts-check
/** The buttons that let the server replay a saved step, and the training save one. */
import { send } from "../api.js";
import { toast } from "../toast.js";

/** Handles clicks on all buttons with `data-explain` (a capsule). @param {import("../page.js").Page} page
 * @param {() => unknown} renew called when the replay has begun; news tell when it is done */
export function listenToExplain(page, renew) {
  document.getElementById("save-step")?.addEventListener("click", async () => {
    try {
      await send("POST", "capsules", undefined, { run: page.run });
      toast("The next captured step will be saved. An event will show the file\u2019s path.");
    } catch (error) {
      toast(`No step can be saved: ${/** @type {Error} */ (error).message}`, { kind: "error" });
    }
  });
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
