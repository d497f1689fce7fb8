/** What a reader does with alerts: walk through the list by key, acknowledge, mute a rule, replay a saved step. */
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

/** The place of the next one; at an end it stays. -1 is no line at all. Pure.
 * @param {number} at @param {number} by @param {number} many */
export function nextPlace(at, by, many) {
  if (!many) return -1;
  if (at < 0) return by > 0 ? 0 : many - 1;
  return Math.min(many - 1, Math.max(0, at + by));
}

export class Walk {
  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    page.keys.add("n", "next event", () => this.go(1));
    page.keys.add("p", "previous event", () => this.go(-1));
  }

  /** @returns {HTMLElement[]} */
  get rows() {
    return [...document.querySelectorAll("#list tr[data-key]")].map((row) => /** @type {HTMLElement} */ (row));
  }

  /** @param {number} by */
  go(by) {
    const rows = this.rows;
    const at = rows.findIndex((row) => row.hasAttribute("aria-current"));
    const row = rows[nextPlace(at, by, rows.length)];
    if (!row) return;
    this.page.state.set({ event: row.dataset.key ?? "" });
    row.scrollIntoView({ block: "nearest" });
    this.page.announce(row.querySelector(".what")?.textContent?.trim() ?? "");
  }

  /** Marks the line whose details are shown. */
  show() {
    const key = this.page.state.get("event");
    if (!key) return;
    for (const row of this.rows) {
      if (row.dataset.key === key) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
    }
  }
}
