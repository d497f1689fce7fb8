/** What the reader prefers, kept in this browser. The page Settings has the words. */
import { setForm } from "./format.js";
import { Emitter } from "./state.js";

const KEPT = "hookcore-prefs";

/** The values of each preference; the first one is the default. @type {Record<string, string[]>} */
export const PREFERENCES = {
  density: ["comfortable", "compact"],
  numbers: ["auto", "short", "scientific", "long"],
  colors: ["viridis", "cividis"],
  rate: ["10", "20", "4", "1"],
  window: ["500", "200", "1000", "2000"],
  by: ["captured", "step", "time", "samples"],
  smooth: ["0", "5", "20", "100"],
  keys: ["on", "off"],
};

/** The default of a preference. @param {string} name */
function first(name) {
  return PREFERENCES[name][0];
}

/** What of `given` is a preference with a value that it may have.
 * @param {any} stored @returns {Record<string, string>} */
export function readPrefs(stored) {
  const values = stored !== null && typeof stored === "object" ? stored : {};
  const allowed = Object.entries(PREFERENCES).filter(([name, choices]) => choices.includes(values[name]));
  return Object.fromEntries(allowed.map(([name]) => [name, values[name]]));
}

const FORMS = {
  auto: { digits: 4, style: "auto" },
  short: { digits: 2, style: "auto" },
  scientific: { digits: 4, style: "scientific" },
  long: { digits: 8, style: "auto" },
};

/** Tells "change" with the name, and the name itself. */
class Prefs extends Emitter {
  /** @type {Record<string, string>} */
  #chosen = {};

  constructor() {
    super();
    this.#load();
    globalThis.addEventListener?.("storage", (event) => {
      if (event.key === KEPT) this.#load();
    });
  }

  /** @param {string} name @returns {string} */
  get(name) {
    return this.#chosen[name] ?? first(name);
  }

  /** The chosen value; undefined if it was never changed. @param {string} name @returns {string | undefined} */
  chosen(name) {
    return this.#chosen[name];
  }

  /** @param {string} name @param {string} value */
  set(name, value) {
    this.#put({ ...this.#chosen, ...readPrefs({ [name]: value }) });
  }

  /** All as they are by default. */
  reset() {
    this.#put({});
  }

  /** All preferences with their values. */
  get all() {
    return Object.fromEntries(Object.keys(PREFERENCES).map((name) => [name, this.get(name)]));
  }

  /** @param {Record<string, string>} chosen */
  #put(chosen) {
    const kept = Object.fromEntries(Object.entries(chosen).filter(([name, value]) => value !== first(name)));
    try {
      localStorage.setItem(KEPT, JSON.stringify(kept));
    } catch {
      // A browser that keeps nothing: they hold for this page.
    }
    this.#show(kept);
  }

  #load() {
    try {
      this.#show(readPrefs(JSON.parse(localStorage.getItem(KEPT) ?? "{}")));
    } catch {
      this.#show({});
    }
  }

  /** @param {Record<string, string>} chosen */
  #show(chosen) {
    const before = this.all;
    this.#chosen = chosen;
    setForm(/** @type {any} */ (FORMS)[this.get("numbers")]);
    if (globalThis.document) document.documentElement.dataset.density = this.get("density");
    for (const name of Object.keys(PREFERENCES)) {
      if (before[name] === this.get(name)) continue;
      this.emit(name, this.get(name));
      this.emit("change", name);
    }
  }
}

export const prefs = new Prefs();
