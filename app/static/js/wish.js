// @ts-check
/** A subscription that follows what is asked for: another wish is asked anew, and not more often than answers come. */

const MIN_MS = 60; // between two questions: a scrubber moves faster

export class Wish {
  /** @type {ReturnType<import("./net.js").Stream["subscribe"]> | null} */
  #open = null;
  #asked = "";
  #askedAt = -Infinity;
  /** @type {ReturnType<typeof setTimeout> | null} */
  #timer = null;

  /** @param {import("./page.js").Page} page @param {() => Record<string, any> | null} wish null while there is nothing to ask for
   * @param {Parameters<import("./net.js").Stream["subscribe"]>[1]} handlers */
  constructor(page, wish, handlers) {
    this.page = page;
    this.wish = wish;
    this.handlers = handlers;
    page.follow.on("change", () => this.renew());
  }

  /** Asks anew where the wish is another one. */
  renew() {
    if (this.#timer !== null) return;
    const wait = this.#askedAt + MIN_MS - performance.now();
    if (wait <= 0) return this.#ask();
    this.#timer = setTimeout(() => {
      this.#timer = null;
      this.#ask();
    }, wait);
  }

  #ask() {
    const wish = this.wish();
    if (wish === null) return this.close();
    const asked = JSON.stringify(wish);
    if (asked === this.#asked) return;
    this.#asked = asked;
    this.#send(wish);
  }

  /** Asks for the same once more, from the beginning. */
  again() {
    const wish = this.wish();
    if (wish !== null && this.#open !== null) this.#send(wish);
  }

  /** @param {Record<string, any>} wish */
  #send(wish) {
    this.#askedAt = performance.now();
    if (this.#open === null) this.#open = this.page.stream.subscribe(wish, this.handlers);
    else this.#open.change(wish);
  }

  close() {
    this.#open?.close();
    this.#open = null;
    this.#asked = "";
  }
}
