/** What a reader does with problems: acknowledge, mute a rule, replay a saved step. */
import { send } from "../api.js";
import { byId, onClick } from "../dom.js";
import { attempt, toast } from "../popup.js";
/** @import { Page } from "../page.js" */

/** Handles clicks on all buttons with `data-seen` (a key). @param {Page} page
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

/** Handles clicks on all buttons with `data-explain` (a capsule). @param {Page} page
 * @param {() => unknown} renew called when the replay has begun; news tell when it is done */
export function listenToExplain(page, renew) {
  const { run } = page;
  onClick("[data-explain]", async (button) => {
    if (button.disabled) return;
    button.disabled = true;
    const ask = () => send("POST", `capsules/${button.dataset.explain}/explain`, undefined, { run });
    button.disabled = await attempt("The step can't be replayed", ask);
    renew();
  });
}

/** Handles all forms with `data-mute` and buttons with `data-unmute` (a rule, or the name of events).
 * @param {Page} page @param {() => void} renew called when the server has saved it */
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
