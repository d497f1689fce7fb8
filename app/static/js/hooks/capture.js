/** The form of capture settings: previews a change, sends it to the trainer, reports the outcome, and undoes it. */
import { send } from "../api.js";
import { byId, coded } from "../dom.js";
import { count, counted } from "../format.js";
import { applied } from "../live/news.js";
import { toast } from "../popup.js";

/** @import { Page } from "../page.js" */

/** The modules that patterns would select: those in `paths` if `fits`, else all others. @typedef {{fits: boolean,
 * paths: string[], modules: number, selected: number, problem: string, is_malformed: boolean, include: string[],
 * exclude: string[], blocked: string}} Preview @typedef {{paths: string[], whole: boolean, on: boolean}} Switch */

const TYPED_MS = 150;
const NAMES = /** @type {const} */ (["every", "budget", "include", "exclude"]);

export class Capture {
  /** The modules that the form's patterns would select. @type {Preview | null} */
  #preview = null;
  /** The settings before the last change on this page. @type {Wanted | null} */
  #before = null;
  /** The number of modules that the applied settings select. @type {number | null} */
  #now = null;
  /** The request for a preview of the form as it is. */
  #asking = new AbortController();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  /** The changes by checkboxes, one at a time. @type {Promise<unknown>} */
  #switching = Promise.resolve();
  #know = () => {};
  /** Resolves when it is known which modules are watched. @type {Promise<void>} */
  known = new Promise((resolve) => {
    this.#know = resolve;
  });

  /** @param {Page} page @param {HTMLFormElement} form @param {{drafted: () => void, obeyed: () => void}} tell called
   * when the form changes, and when a change is applied */
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
    form.addEventListener("input", () => this.look(TYPED_MS));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.apply(this.wanted);
    });
    this.buttons.drop.addEventListener("click", () => this.fill(this.held));
    this.buttons.undo.addEventListener("click", () => this.putBack());
    this.buttons.pause.addEventListener("click", () => this.pause());
  }

  /** @returns {Wanted} */
  get wanted() {
    return read(this.form);
  }

  /** Returns how many of some modules the form's patterns select. @param {string[]} paths @param {number} total how
   * many modules these are @param {boolean} whole with everything below them */
  watched(paths, total, whole) {
    if (this.#preview === null) return 0;
    const own = new Set(paths);
    const isMeant = (/** @type {string} */ path) => own.has(path) || (whole && paths.some((top) => isBelow(path, top)));
    const listed = this.#preview.paths.filter(isMeant).length;
    return this.#preview.fits ? listed : total - listed;
  }

  /** Writes settings into the form, without applying them. @param {Partial<Wanted>} wanted */
  fill(wanted) {
    this.#write(wanted);
    this.look();
  }

  /** @param {Partial<Wanted>} wanted */
  #write(wanted) {
    for (const name of NAMES)
      if (wanted[name] !== undefined) /** @type {any} */ (this.form.elements.namedItem(name)).value = wanted[name];
    if (wanted.kinds)
      for (const box of /** @type {NodeListOf<HTMLInputElement>} */ (this.form.querySelectorAll("[name=kinds]")))
        box.checked = wanted.kinds.includes(box.value);
  }

  /** Requests a preview. @param {number} [wait] milliseconds */
  look(wait = 0) {
    this.#draw();
    const signal = this.#changed();
    this.#timer = setTimeout(async () => {
      try {
        const answer = await this.#previewOf(this.wanted, signal);
        if (!signal.aborted) this.#take(answer);
      } catch (error) {
        if (!signal.aborted) this.#show(/** @type {Error} */ (error).message, "error");
      }
    }, wait);
  }

  /** The form has changed: earlier requests about it are outdated. */
  #changed() {
    clearTimeout(this.#timer);
    this.#asking.abort();
    this.#asking = new AbortController();
    return this.#asking.signal;
  }

  /** Switches modules on or off in the form. Returns the pattern that still excludes them.
   * @param {Switch} wanted @returns {Promise<string>} */
  switch(wanted) {
    const turn = this.#switching.then(async () => {
      const { include, exclude } = this.wanted;
      const answer = await this.#previewOf(this.wanted, undefined, wanted);
      const now = this.wanted;
      if (now.include !== include || now.exclude !== exclude)
        throw new Error("The patterns have changed in the meantime: try again.");
      if (answer.blocked) return answer.blocked;
      this.#write({ include: answer.include.join("\n"), exclude: answer.exclude.join("\n") });
      this.#changed();
      this.#take(answer);
      return "";
    });
    this.#switching = turn.catch((error) => this.#show(error.message, "error"));
    return turn.catch(() => "");
  }

  /** @param {Wanted} wanted @param {AbortSignal} [signal] @param {Switch} [change] @returns {Promise<Preview>} */
  #previewOf({ include, exclude }, signal, change) {
    const draft = { include: patterns(include), exclude: patterns(exclude), ...(change ? { switch: change } : {}) };
    const path = `runs/${encodeURIComponent(this.form.dataset.run ?? "")}/selection`;
    return send("POST", path, draft, undefined, signal);
  }

  /** @param {Preview} answer */
  #take(answer) {
    this.#preview = answer;
    this.#know();
    const { include, exclude } = changesOf(this.held, this.wanted);
    if (include === undefined && exclude === undefined) this.#now = answer.selected;
    this.#draw();
  }

  #draw() {
    const { wanted } = this;
    const preview = this.#preview;
    const changes = Object.keys(changesOf(this.held, wanted));
    const wrong = preview?.problem || (wanted.kinds.length ? "" : "Select at least one kind, or pause capture");
    const modules = preview && `${count(preview.selected)} of ${counted(preview.modules, "module")}`;
    const now = this.#now === null ? "" : ` (now ${count(this.#now)})`;
    const kinds = this.#kindWords(wanted.kinds);
    const words = modules && (changes.length ? `Would watch ${modules}${now}${kinds}` : `Watches ${modules}`);
    this.#show(wrong || words || "", wrong ? "error" : changes.length ? "drafted" : "quiet");
    this.buttons.save.disabled = !changes.length || !wanted.kinds.length || Boolean(preview?.is_malformed);
    this.buttons.drop.disabled = !changes.length;
    this.tell.drafted();
  }

  /** Which kinds would come and go. @param {string[]} wanted */
  #kindWords(wanted) {
    const titles = (/** @type {string[]} */ kinds) =>
      kinds.map((kind) => this.form.querySelector(`[value="${kind}"]`)?.closest("label")?.textContent?.trim());
    const come = titles(wanted.filter((kind) => !this.held.kinds.includes(kind)));
    const go = titles(this.held.kinds.filter((kind) => !wanted.includes(kind)));
    return (come.length ? `; also ${come.join(", ")}` : "") + (go.length ? `; no longer ${go.join(", ")}` : "");
  }

  /** @param {string} words @param {string} kind */
  #show(words, kind) {
    byId("dry-run").replaceChildren(...coded(words));
    byId("dry-run").className = kind;
  }

  /** @param {Wanted} wanted @returns {Promise<boolean>} */
  async apply(wanted) {
    const before = this.held;
    const changes = changesOf(before, wanted);
    if (!Object.keys(changes).length || !(await this.#ask(changes))) return false;
    this.held = wanted;
    this.#before = before;
    this.buttons.undo.hidden = false;
    this.fill(wanted);
    toast("Applied the new settings", { undo: () => void this.putBack() });
    return true;
  }

  async putBack() {
    if (this.#before) await this.apply(this.#before);
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
      const { number } = await send("PATCH", "settings", changes, { run });
      this.#say("Waiting for the next step \u2026", "waiting");
      await applied(this.page, number, (why) => this.#say(why, "waiting"));
      this.#say("Applied.", "applied");
      this.tell.obeyed();
      return true;
    } catch (error) {
      this.#say(/** @type {Error} */ (error).message, "failed");
      return false;
    } finally {
      this.form.removeAttribute("aria-busy");
    }
  }

  /** @param {string} text @param {"waiting" | "applied" | "failed"} state */
  #say(text, state) {
    this.told.replaceChildren(...coded(text));
    this.told.dataset.state = state;
  }
}

/** @param {string} path @param {string} top */
function isBelow(path, top) {
  return top === "" || path.startsWith(`${top}.`) || path.startsWith(`${top}/`);
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

/** @typedef {{every: string, budget: string, kinds: string[], include: string, exclude: string}} Wanted */

/** @param {string} text one pattern per line */
function patterns(text) {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}

/** Returns the settings as REST takes them. @param {Wanted} wanted @returns {Record<string, any>} */
function settingsOf({ every, budget, kinds, include, exclude }) {
  const included = patterns(include);
  return {
    every: Number(every),
    budget: budget.trim() === "" ? null : Number((Number(budget) / 100).toPrecision(12)),
    kinds,
    include: included.length ? included : null,
    exclude: patterns(exclude),
  };
}

/** Returns the changed settings. @param {Wanted} before @param {Wanted} wanted @returns {Record<string, any>} */
export function changesOf(before, wanted) {
  const [old, now] = [settingsOf(before), settingsOf(wanted)];
  return Object.fromEntries(
    Object.entries(now).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(old[name])),
  );
}
