// @ts-check
/** The form of capture settings: previews a change, sends it to the trainer, reports the outcome, and undoes it. */
import { get, send } from "../api.js";
import { byId } from "../dom.js";
import { changesOf } from "../settings/changes.js";
import { toast } from "../toast.js";
import { choose } from "./dryRun.js";
import { obeyed } from "./obeyed.js";

/** @typedef {import("../settings/changes.js").Wanted} Wanted */
const NAMES = /** @type {const} */ (["every", "budget", "include", "exclude"]);

export class Capture {
  /** What is in the form, and would hold. */
  chosen = choose([], { include: "", exclude: "" });
  /** @type {readonly import("./dryRun.js").Module[]} */
  modules = [];

  /** @param {import("../page.js").Page} page @param {HTMLFormElement} form @param {{drafted: () => void, obeyed: () => void}} tell */
  constructor(page, form, tell) {
    this.page = page;
    this.form = form;
    this.tell = tell;
    this.held = read(form);
    this.told = byId("capture-told");
    this.buttons = {
      save: byId("capture-save"),
      drop: byId("capture-drop"),
      undo: byId("capture-undo"),
      pause: byId("capture-pause"),
    };
    form.addEventListener("input", () => this.look());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.apply(this.wanted);
    });
    this.buttons.drop.addEventListener("click", () => this.fill(this.held));
    this.buttons.undo.addEventListener("click", () => this.putBack());
    this.buttons.pause.addEventListener("click", () => this.pause());
    this.buttons.undo.hidden = !this.before;
  }

  /** @returns {Wanted} */
  get wanted() {
    return read(this.form);
  }

  /** @param {readonly import("./dryRun.js").Module[]} modules */
  know(modules) {
    this.modules = modules;
    this.look();
  }

  /** Writes settings into the form; they hold only when they are applied. @param {Partial<Wanted>} wanted */
  fill(wanted) {
    for (const name of NAMES)
      if (wanted[name] !== undefined) /** @type {any} */ (this.form.elements.namedItem(name)).value = wanted[name];
    if (wanted.kinds)
      for (const box of /** @type {NodeListOf<HTMLInputElement>} */ (this.form.querySelectorAll("[name=kinds]")))
        box.checked = wanted.kinds.includes(box.value);
    this.look();
  }

  /** What would be watched. */
  look() {
    const { wanted } = this;
    this.chosen = choose(this.modules, wanted);
    const changes = Object.keys(changesOf(this.held, wanted));
    const [all, many] = [this.modules.length, this.chosen.paths.size];
    const now = choose(this.modules, this.held).paths.size;
    const count = `${many.toLocaleString("en")} of ${all.toLocaleString("en")} modules`;
    const unsure = this.chosen.unsure ? "; the trainer also counts subclasses for type: patterns" : "";
    const wrong =
      this.chosen.problem ||
      (this.chosen.unmatched.length && all
        ? `${this.chosen.unmatched[0]} matches no module, so the trainer would reject it`
        : "") ||
      (wanted.kinds.length ? "" : "Select at least one kind, or pause capture");
    byId("dry-run").textContent =
      wrong ||
      (changes.length
        ? `Would watch ${count} (now ${now.toLocaleString("en")})${unsure}`
        : `Watches ${count}${unsure}`);
    byId("dry-run").className = wrong ? "error" : changes.length ? "drafted" : "quiet";
    this.buttons.save.disabled = !changes.length || (wrong !== "" && !this.chosen.unmatched.length);
    this.buttons.drop.disabled = !changes.length;
    this.tell.drafted();
  }

  /** @param {Wanted} wanted @returns {Promise<boolean>} */
  async apply(wanted) {
    const before = this.held;
    const changes = changesOf(before, wanted);
    if (!Object.keys(changes).length || !(await this.#ask(changes))) return false;
    this.held = wanted;
    this.before = before;
    this.fill(wanted);
    toast("Applied the new settings", { undo: () => void this.putBack() });
    return true;
  }

  /** The settings that held before the last change: in this tab, also after a reload. @returns {Wanted | null} */
  get before() {
    return JSON.parse(sessionStorage.getItem(this.#key) ?? "null");
  }

  set before(settings) {
    sessionStorage.setItem(this.#key, JSON.stringify(settings));
    this.buttons.undo.hidden = !settings;
  }

  get #key() {
    return `hookcore-before-${this.form.dataset.run}`;
  }

  async putBack() {
    const { before } = this;
    if (before) await this.apply(before);
  }

  async pause() {
    const paused = this.buttons.pause.dataset.paused !== "yes";
    if (!(await this.#ask({ paused }))) return;
    this.buttons.pause.dataset.paused = paused ? "yes" : "no";
    this.buttons.pause.textContent = paused ? "Resume capture" : "Pause capture";
  }

  /** @param {Record<string, any>} changes */
  async #ask(changes) {
    const run = /** @type {string} */ (this.form.dataset.run);
    this.form.setAttribute("aria-busy", "true");
    try {
      const { next } = await get("events", { run, limit: 1 });
      const { number } = await send("PATCH", "settings", changes, { run });
      this.#say("Waiting for the next step \u2026", "waiting");
      await obeyed(run, number, next, (why) => this.#say(why, "waiting"));
      this.#say("Applied.", "obeyed");
      this.tell.obeyed();
      return true;
    } catch (error) {
      this.#say(/** @type {Error} */ (error).message, "failed");
      return false;
    } finally {
      this.form.removeAttribute("aria-busy");
    }
  }

  /** @param {string} text @param {"waiting" | "obeyed" | "failed"} state */
  #say(text, state) {
    this.told.textContent = text;
    this.told.dataset.state = state;
  }
}

/** @param {HTMLFormElement} form @returns {Wanted} */
function read(form) {
  const data = new FormData(form);
  const text = (/** @type {string} */ name) => String(data.get(name) ?? "").replace(/\r/g, "");
  return {
    every: text("every"),
    budget: text("budget"),
    kinds: data.getAll("kinds").map(String),
    include: text("include"),
    exclude: text("exclude"),
  };
}
