/** The lists of the Hooks page: the inventory of hooks, and the rules with their forms. */
import { send } from "../api.js";
import { byId, onClick } from "../dom.js";
import { nextNews, outcomesOf } from "../live/news.js";
import { attempt, toast } from "../popup.js";

/** @import { Page } from "../page.js" */

const PATIENCE_MS = 20_000;

/** @param {Page} page @param {() => Promise<void>} show */
export function startInventory(page, show) {
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
      outcome.textContent = /** @type {Error} */ (error).message;
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

/** @param {HTMLFormElement} form @returns {Record<string, number> | boolean} */
function chosenIn(form) {
  const fields = [.../** @type {NodeListOf<HTMLInputElement>} */ (form.querySelectorAll("input"))];
  if (fields.some((field) => field.name === "on" && !field.checked)) return false;
  const numbers = fields.filter((field) => field.type === "number");
  return numbers.length ? Object.fromEntries(numbers.map((field) => [field.name, Number(field.value)])) : true;
}

/** @param {string} run @param {HTMLElement} root @param {() => Promise<unknown>} renew called when it is saved */
export function listenToRules(run, root, renew) {
  /** @param {HTMLFormElement} form @param {Record<string, number> | boolean} chosen */
  const change = async (form, chosen) => {
    const rules = { [form.dataset.rule ?? ""]: chosen };
    if (!(await attempt("The rule was not changed", () => send("POST", "rules", { run, rules })))) return;
    toast("Rule updated. It applies from the next step.");
    await renew();
    form.reset(); // the fields show the server's values, not the entered ones
  };
  root.addEventListener("submit", (event) => {
    const form = /** @type {HTMLFormElement} */ (event.target);
    event.preventDefault();
    change(form, chosenIn(form));
  });
  onClick("[data-default]", (button) => change(button.closest("form"), true), root);
}
