/** The hooks of a run, and the search for them. */
import { send } from "../api.js";
import { byId, coded } from "../dom.js";
import { nextNews, outcomesOf } from "../live/news.js";
import { Parts } from "../live/parts.js";
import { open } from "../page.js";

/** @import { Page } from "../page.js" */

const MIN_MS = 5000;
const PATIENCE_MS = 20_000;

/** @param {Page} page @param {() => Promise<void>} show */
function startInventory(page, show) {
  const button = document.getElementById("stock");
  if (!button) return;
  const outcome = byId("stock-told");
  button.addEventListener("click", async () => {
    button.setAttribute("disabled", "");
    outcome.textContent = "Searching \u2026";
    try {
      const { number } = await send("POST", "hooks", undefined, { run: page.run });
      outcome.textContent = (await isDone(page, number))
        ? "Done."
        : "The trainer has not answered yet. It searches at its next step.";
      await show();
    } catch (error) {
      outcome.replaceChildren(...coded(/** @type {Error} */ (error).message));
    }
    button.removeAttribute("disabled");
  });
}

/** @param {Page} page @param {number} number */
async function isDone(page, number) {
  const until = performance.now() + PATIENCE_MS;
  do {
    const news = nextNews(page);
    const [{ outcome }] = await outcomesOf(page.run, [number]);
    if (outcome !== "waiting") return true;
    await news;
  } while (performance.now() < until);
  return false;
}

const page = open();
const parts = new Parts(page, "hooks", { min: MIN_MS, max: MIN_MS });
parts.follow();
page.events.on("news", () => page.follow.paused || parts.soon());
startInventory(page, () => parts.now());
