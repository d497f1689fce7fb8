// @ts-check
/** The note that something may be missing, because a part of the database is away. The server says so in a header. */
import { byId } from "./dom.js";
import { PARTIAL } from "./vocabulary.js";

/** @param {Response} response
 * @param {{isWhole?: boolean}} [how] `isWhole`: it is the page itself, so without the header nothing is missing */
export function notePartial(response, { isWhole = false } = {}) {
  const words = response.headers.get(PARTIAL) ?? "";
  if (!words && !isWhole) return;
  byId("partial").hidden = !words;
  byId("partial-words").textContent = words;
}
