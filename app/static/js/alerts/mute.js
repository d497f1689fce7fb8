// @ts-check
/** Muting a rule in some modules, and undoing it. */

import { send } from "../api.js";
import { onClick } from "../dom.js";
import { attempt, toast } from "../toast.js";

/** Handles all forms with `data-mute` and buttons with `data-unmute` (a rule, or the name of events).
 * @param {import("../page.js").Page} page @param {() => void} renew called when the server has saved it */
export function listenToMute(page, renew) {
  /** @param {string} rule @param {string} match @param {boolean} muted */
  const change = async (rule, match, muted) => {
    const about = { run: page.run, rule, match };
    const ask = () => (muted ? send("POST", "mutes", about) : send("DELETE", "mutes", undefined, about));
    if (!(await attempt(`${muted ? "Muting" : "Unmuting"} failed`, ask))) return;
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
  onClick("[data-unmute]", ({ dataset }) => change(dataset.unmute, dataset.match ?? "", false));
}
