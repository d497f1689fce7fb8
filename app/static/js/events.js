// @ts-check
/** Something that tells its listeners; the base of what lives on a page. No DOM, so that Node can test it. */
export class Told {
  /** @type {Map<string, Set<(detail: any) => void>>} */
  #listeners = new Map();

  /**
   * @param {string} name
   * @param {(detail: any) => void} listener
   * @returns {() => void} ends it
   */
  on(name, listener) {
    const listeners = this.#listeners.get(name) ?? new Set();
    this.#listeners.set(name, listeners.add(listener));
    return () => listeners.delete(listener);
  }

  /** @param {string} name @param {any} [detail] */
  tell(name, detail) {
    for (const listener of [...(this.#listeners.get(name) ?? [])]) listener(detail);
  }
}
