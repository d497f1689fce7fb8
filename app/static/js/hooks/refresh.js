// @ts-check
/** The parts of the page that change while a training runs, asked of the server anew. */
const OFTEN_MS = 5000;
const SOON_MS = 1000;
const SOON = 8; // questions, after something was changed

export class Refresh {
  #last = 0;
  #asking = false;

  /** @param {import("../page.js").Page} page @param {string[]} parts @param {string[]} ids @param {() => void} changed told when other modules are captured */
  constructor(page, parts, ids, changed) {
    this.page = page;
    this.query = parts.map((part) => `part=${part}`).join("&");
    this.ids = ids;
    this.changed = changed;
    page.events.on("run", () => this.maybe());
  }

  /** Asks where it was long ago, the page is seen, and it is not held. */
  maybe() {
    if (document.hidden || this.page.follow.paused || performance.now() - this.#last < OFTEN_MS) return;
    void this.now();
  }

  /** Asks until the trainer has told what is captured now, or for a while. */
  async soon() {
    const before = this.#coverage;
    for (let asked = 0; asked < SOON && this.#coverage === before; asked += 1) {
      if (asked) await new Promise((go) => setTimeout(go, SOON_MS));
      await this.now();
    }
  }

  get #coverage() {
    return document.getElementById("hook-figures")?.dataset.coverage;
  }

  async now() {
    if (this.#asking) return;
    this.#asking = true;
    this.#last = performance.now();
    try {
      const answer = await fetch(`${this.page.address("hooks")}?${this.query}`);
      if (answer.ok) this.#show(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } catch {
      // The banner tells that the server is away; what is shown stays.
    } finally {
      this.#asking = false;
    }
  }

  /** @param {Document} newer */
  #show(newer) {
    const before = this.#coverage;
    for (const id of this.ids) {
      const [old, next] = [document.getElementById(id), newer.getElementById(id)];
      if (old && next && !old.isEqualNode(next) && !old.contains(document.activeElement))
        old.replaceWith(document.adoptNode(next));
    }
    if (this.#coverage !== before) this.changed();
  }
}
