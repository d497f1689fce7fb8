// @ts-check
/** The sampled values. */
import { get } from "../api.js";
import { MAX_SCALARS } from "../limits.js";
import { lineIn } from "../live/curve.js";
import { CurveFeed } from "../live/curvefeed.js";

const EVERY_MS = 2000; // the machine is sampled no more often

export class SystemFeed extends CurveFeed {
  /** @type {string[]} */
  #names = [];

  /** @param {import("../page.js").Page} page */
  constructor(page) {
    const request = (/** @type {import("../live/curvefeed.js").Range} */ range, /** @type {AbortSignal} */ signal) =>
      this.#parts().map((name) => get("scalars", { run: page.run, name, ...range }, signal));
    super(page, request, ({ name }) => name, { min: EVERY_MS });
    page.follow.on("change", () => this.load());
    // While no step ends, samples are added to the last one, which is news of the run but no newer step.
    page.events.on("run", () => page.follow.paused || this.refresh.soon());
  }

  /** The names, as many as one question takes at a time. */
  #parts() {
    return Array.from({ length: Math.ceil(this.#names.length / MAX_SCALARS) }, (_, place) =>
      this.#names.slice(place * MAX_SCALARS, (place + 1) * MAX_SCALARS),
    );
  }

  /** @param {string[]} names */
  show(names) {
    this.#names = names;
    this.load();
  }

  /** @param {string} name @returns {import("../plot/thin.js").Line | null} */
  find(name) {
    return this.curves.get(name)?.line(name) ?? null;
  }

  /** The lines of one step, in which no other one is. @param {string[]} name @param {number} step
   * @returns {Promise<(name: string) => import("../plot/thin.js").Line | null>} */
  async at(name, step) {
    const { series } = await get("scalars", { run: this.page.run, name, from: step, to: step, points: 1 });
    return (each) => lineIn(series, each);
  }
}
