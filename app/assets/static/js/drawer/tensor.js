// @ts-check
/** The newest snapshot of a layer, small. */
import { get } from "../api.js";
import { MAX_PAGE } from "../limits.js";
import { viewsOf } from "../tensors/plan.js";
import { Side } from "../tensors/side.js";

const HEIGHT = 220;

export class DrawerTensor {
  /** @type {Side | null} */
  #side = null;
  #shown = "";
  #asking = new AbortController();

  /** @param {import("../page.js").Page} page @param {HTMLElement} element */
  constructor(page, element) {
    this.page = page;
    this.element = element;
  }

  /** @param {string | undefined} number of a snapshot */
  async show(number) {
    if (number === this.#shown) return;
    this.close();
    if (number === undefined) return;
    this.#shown = number;
    const { signal } = this.#asking;
    try {
      const { snapshots } = await get("snapshots", { run: this.page.run, limit: MAX_PAGE }, signal);
      if (signal.aborted) return;
      const entry = snapshots.find((each) => String(each.number) === number);
      if (!entry) throw new Error("This snapshot was discarded to make room for newer ones.");
      const [view] = viewsOf(entry.kept_shape, entry.tap.label);
      const side = new Side(this.page, entry, HEIGHT);
      this.#side = side;
      this.element.replaceChildren(side.element);
      this.element.hidden = false;
      const picks = view.pickers.map(() => 0);
      await side.load({ view, picks, part: null, pool: "worst", scale: "shared", ends: "most", after: 0 }, signal);
      if (!signal.aborted) side.draw(undefined);
    } catch (error) {
      if (signal.aborted) return;
      this.#shown = ""; // asked for again at the next update
      this.element.textContent = /** @type {Error} */ (error).message;
      this.element.hidden = false;
    }
  }

  close() {
    this.#asking.abort();
    this.#asking = new AbortController();
    this.#side?.close();
    this.#side = null;
    this.#shown = "";
    this.element.hidden = true;
    this.element.replaceChildren();
  }
}
