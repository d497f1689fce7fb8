// @ts-check
/** A subscription that follows a changing query, and renews itself no more often than answers can come. */

const MIN_MS = 60; // between two requests: a slider moves faster

export class Subscription {
  /** @type {ReturnType<import("./stream.js").Stream["subscribe"]> | null} */
  #open = null;
  #asked = "";
  #askedAt = -Infinity;
  /** @type {ReturnType<typeof setTimeout> | null} */
  #timer = null;

  /** @param {import("../page.js").Page} page
   * @param {() => Record<string, any> | null} query null if there is nothing to request
   * @param {Parameters<import("./stream.js").Stream["subscribe"]>[1]} handlers */
  constructor(page, query, handlers) {
    this.page = page;
    this.query = query;
    this.handlers = handlers;
    page.follow.on("change", () => this.renew());
  }

  /** Subscribes again if the query has changed. */
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
    const query = this.query();
    if (query === null) return this.close();
    const asked = JSON.stringify(query);
    if (asked === this.#asked) return;
    this.#asked = asked;
    this.#send(query);
  }

  /** Subscribes again with the same query. */
  again() {
    const query = this.query();
    if (query !== null && this.#open !== null) this.#send(query);
  }

  /** @param {Record<string, any>} query */
  #send(query) {
    this.#askedAt = performance.now();
    if (this.#open === null) this.#open = this.page.stream.subscribe(query, this.handlers);
    else this.#open.change(query);
  }

  close() {
    this.#open?.close();
    this.#open = null;
    this.#asked = "";
  }
}
