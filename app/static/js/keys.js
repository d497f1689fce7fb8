/** All keys of the page in one list, with descriptions. The palette shows the list at `?`. */
import { prefs } from "./prefs.js";

const PATIENCE_MS = 1500;
/** These use the arrows and the space bar themselves. */
const WIDGETS = "[role=application], [role=slider], [role=listbox], .wide";
const TYPING = "input:not([type=checkbox], [type=radio], [type=button]), textarea, select, [contenteditable]";

/** @typedef {{key: string, words: string, group: string, action: (event: any) => void}} Key */

/** `g`, `Shift+ArrowLeft`, `Ctrl+k`, `?`, `Space`. Of a sign that needs Shift, Shift is a part.
 * @param {{key: string, ctrlKey?: boolean, metaKey?: boolean, altKey?: boolean, shiftKey?: boolean}} event */
export function keyOf(event) {
  const key = event.key === " " ? "Space" : event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const sign = key.length === 1 && !/[a-z0-9]/.test(key);
  const shift = event.shiftKey && !sign ? "Shift+" : "";
  return `${event.ctrlKey || event.metaKey ? "Ctrl+" : ""}${event.altKey ? "Alt+" : ""}${shift}${key}`;
}

export class Keys {
  /** @type {Map<string, Key>} */
  #keys = new Map();
  #begun = "";
  #begunAt = 0;

  /** @param {any} [target] who hears the keys */
  constructor(target = globalThis.document) {
    target?.addEventListener("keydown", (/** @type {any} */ event) => this.hear(event));
  }

  /** The same key again takes the place of the first. @param {string} key such as "g f"; several with commas: "j,
   * ArrowDown" @param {string} words @param {(event: any) => void} action @param {{group?: string}} [where] */
  add(key, words, action, { group = "This page" } = {}) {
    for (const press of key.split(", ")) {
      this.#keys.delete(press);
      this.#keys.set(press, { key: press, words, action, group });
    }
  }

  /** All keys with their descriptions. @returns {Key[]} */
  get all() {
    return [...this.#keys.values()];
  }

  /** All keys, by group; those that do the same together. @returns {Map<string, {keys: string[], words: string}[]>} */
  get groups() {
    const groups = new Map();
    for (const { key, words, group } of this.#keys.values()) {
      const lines = groups.get(group) ?? [];
      groups.set(group, lines);
      const same = lines.find((/** @type {any} */ line) => line.words === words);
      if (same) same.keys.push(key);
      else lines.push({ keys: [key], words });
    }
    return groups;
  }

  /** @param {any} event a keydown */
  hear(event) {
    if (event.defaultPrevented || ["Shift", "Control", "Alt", "Meta"].includes(event.key)) return;
    const key = keyOf(event);
    const now = event.timeStamp ?? 0;
    const both = this.#begun && now - this.#begunAt < PATIENCE_MS ? `${this.#begun} ${key}` : "";
    this.#begun = "";
    if (isTaken(event, key)) return;
    const own = this.#keys.get(both) ?? this.#keys.get(key);
    if (own) {
      event.preventDefault?.();
      own.action(event);
    } else if ([...this.#keys.keys()].some((longer) => longer.startsWith(`${key} `))) {
      this.#begun = key;
      this.#begunAt = now;
    }
  }
}

/** Whether a key belongs to the focused element, or is turned off. @param {any} event @param {string} key */
function isTaken(event, key) {
  const on = event.target;
  /** @param {string} what */
  const within = (what) => Boolean(on?.closest?.(what));
  if (within("dialog[open]")) return key !== "?" || within(TYPING);
  if (key === "Escape" || key.startsWith("Ctrl+")) return false;
  if (within(TYPING)) return true;
  if (key === "Space" && within("button, a, summary, input, [role=button], video")) return true;
  if ((key.includes("Arrow") || key === "Space") && within(`${WIDGETS}, input[type=radio]`)) return true;
  return key.length === 1 && prefs.get("keys") === "off";
}
