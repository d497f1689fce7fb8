// @ts-check
/** The modules to choose from. While the reader types, the server's list replaces the shown one. */
import { reach } from "../api.js";
import { byId } from "../dom.js";
import { Refresh } from "../live/refresh.js";

const MIN_MS = 150;
const RENEWED = ["found", "problem", "choice"];

/** @param {import("../page.js").Page} page */
export function startChoice(page) {
  if (!document.getElementById("choice")) return;
  const refresh = new Refresh(
    async (signal) => {
      const answer = await reach(page.address("layer", { f: page.state.get("f") }), { signal });
      if (answer.ok) renew(await answer.text());
    },
    { min: MIN_MS, max: MIN_MS },
  );
  page.state.on("f", () => refresh.soon());
}

/** @param {string} html a whole page */
function renew(html) {
  const said = new DOMParser().parseFromString(html, "text/html");
  // An invalid pattern finds nothing: the list stays, and the problem is shown next to it.
  const unread = said.getElementById("problem")?.textContent?.trim();
  for (const id of unread ? ["problem"] : RENEWED) {
    const fresh = said.getElementById(id);
    if (fresh) byId(id).replaceChildren(...fresh.childNodes);
  }
}
