/** The rules of a run: their numbers, and what other numbers would find. */
import { reach, send } from "../api.js";
import { byId, onClick } from "../dom.js";
import { Parts } from "../live/parts.js";
import { open } from "../page.js";
import { attempt, toast } from "../popup.js";

const MIN_MS = 5000;

const page = open();
const rules = byId("rules");
const parts = new Parts(page, "rules", { min: MIN_MS, max: MIN_MS });
parts.follow(["rules"]);
page.events.on("news", () => page.follow.paused || parts.soon(["rules"]));

/** @param {HTMLFormElement} form @returns {Record<string, number>} */
function numbersIn(form) {
  const fields = [.../** @type {NodeListOf<HTMLInputElement>} */ (form.querySelectorAll("input[type=number]"))];
  return Object.fromEntries(fields.map((field) => [field.name, Number(field.value)]));
}

/** @param {HTMLFormElement} form @param {Record<string, number> | boolean} chosen */
async function change(form, chosen) {
  const choices = { [form.dataset.rule ?? ""]: chosen };
  const ask = () => send("POST", "rules", { run: page.run, rules: choices });
  if (!(await attempt("The rule was not changed", ask))) return;
  toast("Rule updated. It applies from the next step.");
  await parts.now(["rules"]);
  form.reset(); // the fields show the server's values, not the entered ones
}

/** @param {HTMLFormElement} form */
async function preview(form) {
  const query = { rule: form.dataset.rule ?? "", ...numbersIn(form), part: "preview" };
  await attempt("The rule was not tried", async () => {
    const answer = await reach(page.address("rules", query), { headers: { Accept: "text/html" } });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const shown = new DOMParser().parseFromString(text, "text/html").querySelector("[data-part=preview]");
    form.querySelector("[data-part=preview]")?.remove();
    if (shown) form.append(document.adoptNode(shown));
  });
}

rules.addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
  event.preventDefault();
  void preview(/** @type {HTMLFormElement} */ (event.target));
});
onClick(
  "[data-do=apply]",
  (button) => {
    const form = /** @type {HTMLFormElement} */ (button.closest("form"));
    if (!form.reportValidity()) return;
    const on = /** @type {HTMLInputElement | null} */ (form.querySelector("[name=on]"));
    const numbers = numbersIn(form);
    void change(form, on?.checked === false ? false : Object.keys(numbers).length ? numbers : true);
  },
  rules,
);
onClick("[data-default]", (button) => void change(/** @type {any} */ (button.closest("form")), true), rules);
