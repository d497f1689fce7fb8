// @ts-check
/** The modules to choose from: the server finds what is typed, page by page, and its list takes the place of the one before. */
import { byId } from "../dom.js";

const TYPED_MS = 150;
const RENEWED = ["found", "problem", "choice"];

/** @param {import("../page.js").Page} page */
export function startChoice(page) {
  if (!document.getElementById("choice")) return;
  let timer = 0;
  let asking = new AbortController();
  const show = async () => {
    asking.abort();
    asking = new AbortController();
    try {
      const answer = await fetch(page.address("layer", { f: page.state.get("f") }), { signal: asking.signal });
      if (answer.ok) renew(await answer.text());
    } catch {
      // Another letter was typed; or the server does not answer, which the page says.
    }
  };
  page.state.on("f", () => {
    clearTimeout(timer);
    timer = setTimeout(show, TYPED_MS);
  });
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
