// @ts-check
/** The badge of the Events entry: the number of unacknowledged warnings and errors among findings and events. */
import { Parts } from "./parts.js";

const MIN_MS = 4000;
const MAX_MS = 60_000;
const SHARE = 20; // every page has a badge, so at most a twentieth of the time is spent on it

/** @param {import("../page.js").Page} page */
export function startBadge(page) {
  const root = /** @type {HTMLElement} */ (document.querySelector("nav.side"));
  const badge = new Parts(page, "events", { root, query: () => "", min: MIN_MS, max: MAX_MS, share: SHARE });
  page.events.on("run", () => badge.soon());
  page.events.on("acknowledged", () => badge.now());
}
