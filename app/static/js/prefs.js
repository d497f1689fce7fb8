/** What the reader prefers, kept in this browser. One table; the settings page and its export come from it. */
import { setForm } from "./format.js";
import { Emitter } from "./state.js";

const KEPT = "hookcore-prefs";

/** @typedef {{words: string, help: string, choices: [string, string][]}} Preference the first choice is the default */

/** @type {Record<string, Preference>} */
export const PREFERENCES = {
  density: {
    words: "Density",
    help: "Row height of tables.",
    choices: [
      ["comfortable", "comfortable"],
      ["compact", "compact"],
    ],
  },
  numbers: {
    words: "Numbers",
    help: "Number format on all pages.",
    choices: [
      ["auto", "0.01235, and 1.235e-5 when small"],
      ["short", "short: 0.012, 1.2e-5"],
      ["scientific", "always 1.235e-2"],
      ["long", "eight digits"],
    ],
  },
  colors: {
    words: "Color map",
    help: "For heatmaps and histograms. NaN, infinities, and steps that were not captured have their own colors.",
    choices: [
      ["viridis", "viridis"],
      ["cividis", "cividis (safe for all types of color vision)"],
    ],
  },
  rate: {
    words: "Updates",
    help: "How often live pages refresh. Slower updates use less CPU.",
    choices: [
      ["10", "10 a second"],
      ["20", "20 a second"],
      ["4", "4 a second"],
      ["1", "1 a second"],
    ],
  },
  window: {
    words: "Steps shown",
    help: "Steps shown when you open a run that is still training. A finished run is shown from its first step.",
    choices: [
      ["500", "500 steps"],
      ["200", "200 steps"],
      ["1000", "1,000 steps"],
      ["2000", "2,000 steps"],
    ],
  },
  by: {
    words: "Axis of charts",
    help: "Captured steps stand side by side, with a mark where steps were left out; by step, those stay empty.",
    choices: [
      ["captured", "captured steps"],
      ["step", "all steps"],
      ["time", "time"],
      ["samples", "samples"],
    ],
  },
  smooth: {
    words: "Smoothing",
    help: "Half-life in steps. The raw line stays visible behind the smoothed one.",
    choices: [
      ["0", "off"],
      ["5", "5 steps"],
      ["20", "20 steps"],
      ["100", "100 steps"],
    ],
  },
  keys: {
    words: "Single-letter shortcuts",
    help: "Turn off if they clash with voice control or a screen reader.",
    choices: [
      ["on", "on"],
      ["off", "off"],
    ],
  },
};

/** The default of a preference. @param {string} name */
function first(name) {
  return PREFERENCES[name].choices[0][0];
}

/** What of `given` is a preference with a value that it may have.
 * @param {any} stored @returns {Record<string, string>} */
export function readPrefs(stored) {
  const values = stored !== null && typeof stored === "object" ? stored : {};
  const allowed = Object.entries(PREFERENCES).filter(([name, { choices }]) =>
    choices.some(([value]) => value === values[name]),
  );
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

  /** The changed settings as JSON, without the defaults. */
  get text() {
    return JSON.stringify({ hookcore: 1, ...this.#chosen }, null, 2);
  }

  /** Takes the result of `text`; reports the problem with anything else.
   * @param {string} text @returns {number} how many were taken */
  take(text) {
    let stored;
    try {
      stored = JSON.parse(text);
    } catch {
      throw new Error("not a JSON file: choose a file exported from this page");
    }
    const read = readPrefs(stored);
    if (stored?.hookcore !== 1)
      throw new Error("this file contains no hookcore settings: choose a file exported from this page");
    this.#put(read);
    return Object.keys(read).length;
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
    const before = Object.keys(PREFERENCES).map((name) => this.get(name));
    this.#chosen = chosen;
    setForm(/** @type {any} */ (FORMS)[this.get("numbers")]);
    if (globalThis.document) document.documentElement.dataset.density = this.get("density");
    for (const [place, name] of Object.keys(PREFERENCES).entries()) {
      if (before[place] === this.get(name)) continue;
      this.emit(name, this.get(name));
      this.emit("change", name);
    }
  }
}

export const prefs = new Prefs();
