// @ts-check
/** Going from one line of the list to the next, by key. */

/** The place of the next one; at an end it stays. -1 is no line at all. Pure.
 * @param {number} at @param {number} by @param {number} many */
export function nextPlace(at, by, many) {
  if (!many) return -1;
  if (at < 0) return by > 0 ? 0 : many - 1;
  return Math.min(many - 1, Math.max(0, at + by));
}

export class Walk {
  /** @param {import("../page.js").Page} page */
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
