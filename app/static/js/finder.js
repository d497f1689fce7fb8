// @ts-check
/** Which modules the find box finds. What is asked of a module (app/analysis/facts.py) comes from the server, once for all pages. */
import { get } from "./api.js";
import { EVERYTHING, parse } from "./find.js";

const RENEWED_MS = 10_000; // of a live run: a module may die, or be captured from now on
const FIELDS = ["path", "type", "aliases", "parameters", "trainable", "captured", "nan", "dead"];

/** @typedef {import("./find.js").Module} Module */

/** The rows of an answer, by path. Pure. @param {any[][]} rows @returns {Map<string, Module>} */
export function modulesOf(rows) {
  const modules = rows.map(
    (row) => /** @type {Module} */ (Object.fromEntries(FIELDS.map((name, place) => [name, row[place] ?? undefined]))),
  );
  return new Map(modules.map((module) => [module.path, module]));
}

export class Finder {
  found = EVERYTHING;
  /** @type {Map<string, Module> | null} null: not asked for yet */
  #modules = null;
  #asking = false;

  /** @param {import("./page.js").Page} page @param {() => void} onChange when other modules are found @param {string | null} [run] */
  constructor(page, onChange, run = page.run) {
    this.page = page;
    this.run = run;
    this.onChange = onChange;
    page.state.on("f", () => this.#read());
    this.found = parse(page.state.get("f"));
    if (this.found.test !== EVERYTHING.test) void this.#load();
    setInterval(() => {
      if (page.runState === "live" && /\bis:/.test(page.state.get("f")) && !document.hidden && !page.follow.paused)
        void this.#load();
    }, RENEWED_MS);
  }

  get problem() {
    return this.found.problem;
  }

  /** Whether it is known what is found. */
  get ready() {
    return this.found.test === EVERYTHING.test || this.#modules !== null;
  }

  /** @param {string} path of a module */
  fits(path) {
    if (!this.ready) return false;
    return this.found.test(this.#modules?.get(path) ?? { path });
  }

  #read() {
    this.found = parse(this.page.state.get("f"), this.found);
    if (this.ready) this.onChange();
    else void this.#load();
  }

  async #load() {
    if (this.#asking || this.run === null) return;
    this.#asking = true;
    try {
      const { modules } = await /** @type {any} */ (get(`runs/${encodeURIComponent(this.run)}/facts`));
      this.#modules = modulesOf(modules);
    } catch {
      this.#modules ??= new Map(); // the page says that the server does not answer; names and expressions still find
    }
    this.#asking = false;
    this.onChange();
  }
}
