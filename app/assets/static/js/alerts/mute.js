// @ts-check
/** Muting a rule in some modules, and undoing it. */
import { send } from "../api.js";
import { toast } from "../toast.js";

/** Handles all forms with `data-mute` and buttons with `data-unmute` (a rule, or the name of events).
 * @param {import("../page.js").Page} page @param {() => void} renew called when the server has saved it */
export function listenToMute(page, renew) {
  /** @param {string} rule @param {string} match @param {boolean} muted */
  const change = async (rule, match, muted) => {
    try {
      const about = { run: page.run, rule, match };
      await (muted ? send("POST", "mutes", about) : send("DELETE", "mutes", undefined, about));
    } catch (error) {
      toast(`${muted ? "Muting" : "Unmuting"} failed: ${/** @type {Error} */ (error).message}`, { kind: "error" });
      return;
    }
    page.events.emit("acknowledged");
    renew();
    if (muted) toast("Muted. It stays in the list without alerting you.", { undo: () => change(rule, match, false) });
  };
  document.addEventListener("submit", (event) => {
    const form = /** @type {HTMLFormElement} */ (event.target);
    if (form.dataset.mute === undefined) return;
    event.preventDefault();
    change(form.dataset.mute, String(new FormData(form).get("match") ?? "").trim(), true);
  });
  document.addEventListener("click", (event) => {
    const button = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("[data-unmute]"));
    if (button) change(button.dataset.unmute ?? "", button.dataset.match ?? "", false);
  });
}
