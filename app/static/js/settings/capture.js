// @ts-check
/** The trainer's settings: sends what was changed, and says when the trainer has done it. */
import { get, send } from "../api.js";
import { byId } from "../dom.js";
import { changesOf } from "./changes.js";

const ASK_MS = 500;

/** @param {import("../page.js").Page} page */
export function startCapture(page) {
  const form = /** @type {HTMLFormElement | null} */ (document.getElementById("capture"));
  if (!form) return;
  const choice = byId("run");
  byId("run-show").hidden = true;
  choice.addEventListener("change", () =>
    location.assign(new URL(`settings?run=${encodeURIComponent(choice.value)}`, document.baseURI)),
  );
  if (!document.getElementById("capture-save")) return;
  const told = byId("capture-told");
  const pause = byId("capture-pause");
  let before = read(form);

  /** @param {Record<string, any>} changes */
  const ask = async (changes) => {
    const run = form.dataset.run;
    try {
      const { number } = await send("PATCH", "settings", changes, { run });
      told.textContent = "Waiting for the next step \u2026";
      await obeyed(run, number);
      told.textContent = "Applied.";
      return true;
    } catch (error) {
      told.textContent = /** @type {Error} */ (error).message;
      return false;
    }
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const wanted = read(form);
    const changes = changesOf(before, wanted);
    if (!Object.keys(changes).length) told.textContent = "No changes.";
    else if (!wanted.kinds.length) told.textContent = "Select at least one kind, or pause capture.";
    else if (await ask(changes)) before = wanted;
  });
  pause.addEventListener("click", async () => {
    const paused = pause.dataset.paused !== "yes";
    if (!(await ask({ paused }))) return;
    pause.dataset.paused = paused ? "yes" : "no";
    pause.textContent = paused ? "Resume capture" : "Pause capture";
    page.announce(told.textContent ?? "");
  });
}

/** Once the trainer has carried out a command. @param {string | undefined} run @param {number} number */
async function obeyed(run, number) {
  for (;;) {
    const now = await get("settings", { run });
    if (!now.waiting.some((each) => each.number === number)) return now.settings;
    if (now.state !== "live") throw new Error(`The run is ${now.state} now, so the change was not applied.`);
    await new Promise((go) => setTimeout(go, ASK_MS));
  }
}

/** @param {HTMLFormElement} form @returns {import("./changes.js").Wanted} */
function read(form) {
  const data = new FormData(form);
  const text = (/** @type {string} */ name) => String(data.get(name) ?? "");
  return {
    every: text("every"),
    budget: text("budget"),
    kinds: data.getAll("kinds").map(String),
    include: text("include"),
    exclude: text("exclude"),
  };
}
