/** The rules of a run, and their numbers. */
import { send } from "../api.js";
import { byId, onClick } from "../dom.js";
import { Parts } from "../live/parts.js";
import { open } from "../page.js";
import { attempt, toast } from "../popup.js";

const MIN_MS = 5000;

/** @param {HTMLFormElement} form @returns {Record<string, number> | boolean} */
function chosenIn(form) {
  const fields = [.../** @type {NodeListOf<HTMLInputElement>} */ (form.querySelectorAll("input"))];
  if (fields.some((field) => field.name === "on" && !field.checked)) return false;
  const numbers = fields.filter((field) => field.type === "number");
  return numbers.length ? Object.fromEntries(numbers.map((field) => [field.name, Number(field.value)])) : true;
}

/** @param {string} run @param {HTMLElement} root @param {() => Promise<unknown>} renew called when it is saved */
function listenToRules(run, root, renew) {
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

const page = open();
const parts = new Parts(page, "rules", { min: MIN_MS, max: MIN_MS });
parts.follow();
page.events.on("news", () => page.follow.paused || parts.soon());
listenToRules(/** @type {string} */ (page.run), byId("rules"), () => parts.now());
