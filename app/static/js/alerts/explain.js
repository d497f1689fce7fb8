// @ts-check
/** The buttons that let the server replay a saved step, and the training save one. */

import { send } from "../api.js";
import { onClick } from "../dom.js";
import { attempt, toast } from "../toast.js";

/** Handles clicks on all buttons with `data-explain` (a capsule). @param {import("../page.js").Page} page
 * @param {() => unknown} renew called when the replay has begun; news tell when it is done */
export function listenToExplain(page, renew) {
  const { run } = page;
  document.getElementById("save-step")?.addEventListener("click", async () => {
    if (await attempt("No step can be saved", () => send("POST", "capsules", undefined, { run })))
      toast("The next captured step will be saved. An event will show the file\u2019s path.");
  });
  onClick("[data-explain]", async (button) => {
    if (button.disabled) return;
    button.disabled = true;
    const ask = () => send("POST", `capsules/${button.dataset.explain}/explain`, undefined, { run });
    button.disabled = await attempt("The step can't be replayed", ask);
    renew();
  });
}
