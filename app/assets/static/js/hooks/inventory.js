// @ts-check
/** Searches for hooks again: asks the trainer, and shows the list once it has answered. */
import { get, send } from "../api.js";
import { byId } from "../dom.js";
import { nextNews } from "../live/news.js";

const PATIENCE_MS = 20_000;

/** @param {import("../page.js").Page} page @param {() => Promise<void>} show */
export function startInventory(page, show) {
  const button = document.getElementById("stock");
  if (!button) return;
  const told = byId("stock-told");
  button.addEventListener("click", async () => {
    button.setAttribute("disabled", "");
    told.textContent = "Searching \u2026";
    try {
      const { number } = await send("POST", "hooks", undefined, { run: page.run });
      told.textContent = (await isDone(page, number))
        ? "Done."
        : "The trainer has not answered yet. It searches at its next step.";
      await show();
    } catch (error) {
      told.textContent = /** @type {Error} */ (error).message;
    }
    button.removeAttribute("disabled");
  });
}

/** @param {import("../page.js").Page} page @param {number} number */
async function isDone(page, number) {
  const until = performance.now() + PATIENCE_MS;
  do {
    const news = nextNews(page);
    const { waiting } = await get("settings", { run: page.run });
    if (!waiting.some((each) => each.number === number)) return true;
    await news;
  } while (performance.now() < until);
  return false;
}
