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

/** @param {string} rule @param {Record<string, number> | boolean} chosen @param {boolean} [later]
 * @param {HTMLFormElement} [form] whose fields show the server's values then, not the entered ones */
async function change(rule, chosen, later = false, form) {
  const ask = () => send("POST", "rules", { run: page.run, rules: { [rule]: chosen }, later });
  if (!(await attempt("The rule was not changed", ask))) return;
  toast(later ? "Rule updated for runs that begin from now on." : "Rule updated. It applies from the next step.");
  await parts.now(["rules"]);
  form?.reset();
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
  "[data-do=apply], [data-do=keep]",
  (button) => {
    const form = /** @type {HTMLFormElement} */ (button.closest("form"));
    if (!form.reportValidity()) return;
    const on = /** @type {HTMLInputElement | null} */ (form.querySelector("[name=on]"));
    const numbers = numbersIn(form);
    const chosen = on?.checked === false ? false : Object.keys(numbers).length ? numbers : true;
    const later = button.dataset.do === "keep";
    void change(form.dataset.rule ?? "", chosen, later, later ? undefined : form);
  },
  rules,
);
onClick(
  "[data-default]",
  (button) => {
    const form = /** @type {HTMLFormElement} */ (button.closest("form"));
    void change(form.dataset.rule ?? "", true, false, form);
  },
  rules,
);
onClick("[data-forget]", ({ dataset }) => void change(dataset.forget, true, true), rules);
