// @ts-check
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
