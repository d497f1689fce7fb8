// @ts-check
/** Searches for hooks again: asks the trainer, and shows the list once it has answered. */
import { get, send } from "../api.js";
import { byId } from "../dom.js";

const ASK_MS = 400;
const PATIENCE = 50; // questions

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
      told.textContent = (await isDone(page.run, number))
        ? "Done."
        : "The trainer has not answered yet. It searches at its next step.";
      await show();
    } catch (error) {
      told.textContent = /** @type {Error} */ (error).message;
    }
    button.removeAttribute("disabled");
  });
}

/** @param {string | null} run @param {number} number */
async function isDone(run, number) {
  for (let asked = 0; asked < PATIENCE; asked += 1) {
    const { waiting } = await get("settings", { run });
    if (!waiting.some((each) => each.number === number)) return true;
    await new Promise((go) => setTimeout(go, ASK_MS));
  }
  return false;
}
