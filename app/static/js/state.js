/** The view in the address: what a page shows is what its query string says, and a link shows the same. */

/** An EventTarget whose listeners get the detail itself.
 * @template {Record<string, any>} [Details=Record<string, any>] what each event carries */
export class Emitter extends EventTarget {
  /** @template {keyof Details & string} Name @param {Name} name @param {(detail: Details[Name]) => void} listener
   * @returns {() => void} removes the listener */
  on(name, listener) {
    const hear = (/** @type {Event} */ event) => listener(/** @type {any} */ (event).detail);
    this.addEventListener(name, hear);
    return () => this.removeEventListener(name, hear);
  }

  /** @template {keyof Details & string} Name @param {Name} name @param {Details[Name]} [detail] */
  emit(name, detail) {
    this.dispatchEvent(Object.assign(new Event(name), { detail }));
  }
}

/** @param {string} query @param {Record<string, string>} defaults @returns {Record<string, string>} */
export function read(query, defaults) {
  const parameters = new URLSearchParams(query);
  const names = Object.keys(defaults);
  return Object.fromEntries(names.map((name) => [name, parameters.get(name) ?? defaults[name]]));
}

/** The query string of a view; defaults are left out, and foreign parameters stay.
 * @param {Record<string, string>} values @param {Record<string, string>} defaults @param {string} [query] */
export function write(values, defaults, query = "") {
  const kept = new URLSearchParams(query);
  for (const [name, value] of Object.entries(values)) {
    if (value === defaults[name]) kept.delete(name);
    else kept.set(name, value);
  }
  const text = kept.toString();
  return text ? `?${text}` : "";
}

/** Some browsers fire no "change" for a picked option, or for Enter, before the field is left.
 * @param {HTMLInputElement} input with a list of options @param {() => void} take */
function listenToOptions(input, take) {
  const isOption = () => Array.from(input.list?.options ?? []).some(({ value }) => value === input.value);
  input.addEventListener("input", () => isOption() && take());
  input.addEventListener("keydown", ({ key }) => key === "Enter" && take());
  input.form?.addEventListener("submit", take);
}

/** Emits "change" with the names that changed, and each of those names. */
export class State extends Emitter {
  /** @param {Record<string, string>} defaults */
  constructor(defaults) {
    super();
    this.defaults = defaults;
    this.values = read(location.search, defaults);
    addEventListener("popstate", () => this.#take(read(location.search, this.defaults)));
  }

  /** @param {string} name */
  get(name) {
    if (!(name in this.values)) throw new Error(`the address of this page has no parameter ${name}`);
    return this.values[name];
  }

  /** Returns the value, or "" on a page without this parameter: for charts that several pages have.
   * @param {string} name */
  optional(name) {
    return this.values[name] ?? "";
  }

  /** `push` adds an entry to the browser's history, for changes that feel like navigation.
   * @param {Record<string, string>} changes @param {{push?: boolean}} [how] */
  set(changes, { push = false } = {}) {
    const before = location.search;
    const names = this.#changed(changes);
    if (!names.length) return;
    const after = write({ ...this.values, ...changes }, this.defaults, before);
    history[push ? "pushState" : "replaceState"](null, "", location.pathname + after);
    this.#take({ ...this.values, ...changes });
  }

  /** Ties the form controls that carry `data-state` (their name is the state's) to the state, both ways.
   * @param {ParentNode} [root] */
  bind(root = document) {
    for (const control of root.querySelectorAll("[data-state]")) {
      const input = /** @type {HTMLInputElement} */ (control);
      const show = () => {
        if (input.type === "checkbox") input.checked = this.get(input.name) === "1";
        else input.value = this.get(input.name);
      };
      show();
      this.on(input.name, show);
      const event = input.type === "search" || input.type === "range" ? "input" : "change";
      const take = () =>
        this.set({ [input.name]: input.type === "checkbox" ? (input.checked ? "1" : "0") : input.value });
      input.addEventListener(event, take);
      if (input.list) listenToOptions(input, take);
      input.form?.addEventListener("submit", (event) => event.preventDefault());
    }
  }

  /** @param {Record<string, string>} values */
  #changed(values) {
    return Object.keys(values).filter((name) => values[name] !== this.values[name]);
  }

  /** @param {Record<string, string>} values */
  #take(values) {
    const names = this.#changed(values);
    this.values = values;
    for (const name of names) this.emit(name, values[name]);
    if (names.length) this.emit("change", names);
  }
}
