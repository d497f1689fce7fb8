// @ts-check
/** The sampled values: everything at first, then only what is newer while the page follows. */
import { get } from "../api.js";
import { Emitter } from "../emitter.js";
import { MAX_SCALARS } from "../limits.js";
import { Curve, lineIn } from "../live/curve.js";
import { Refresh } from "../live/refresh.js";

const POINTS = 1000;
const MAX_POINTS = 3 * POINTS; // in a curve, until it is loaded whole again
const EVERY_MS = 2000; // the machine is sampled no more often

/** Emits "data" when the curves have changed, "error" with the server's error. */
export class SystemFeed extends Emitter {
  /** @type {string[]} */
  #names = [];
  /** @type {Map<string, Curve>} */
  #curves = new Map();
  /** The step from which on points may be missing; null if all are. @type {number | null} */
  #from = null;

  /** @param {import("../page.js").Page} page */
  constructor(page) {
    super();
    this.page = page;
    const ready = () => this.#from === null || !page.follow.paused;
    this.refresh = new Refresh((signal) => this.#ask(signal), { min: EVERY_MS, ready });
    page.follow.on("change", () => this.load());
    // While no step ends, samples are added to the last one, which is news of the run but no newer step.
    page.events.on("run", () => page.follow.paused || this.refresh.soon());
  }

  /** @param {string[]} names */
  show(names) {
    this.#names = names;
    this.load();
  }

  /** @param {string} name @returns {import("../plot/thin.js").Line | null} */
  find(name) {
    return this.#curves.get(name)?.line(name) ?? null;
  }

  /** The lines of one step, in which no other one is. @param {string[]} name @param {number} step
   * @returns {Promise<(name: string) => import("../plot/thin.js").Line | null>} */
  async at(name, step) {
    const { series } = await get("scalars", { run: this.page.run, name, from: step, to: step, points: 1 });
    return (each) => lineIn(series, each);
  }

  /** Loads everything again. */
  load() {
    this.#from = null;
    void this.refresh.now();
  }

  /** @param {AbortSignal} signal */
  async #ask(signal) {
    const { span, paused } = this.page.follow;
    if (!span || !this.#names.length) return this.emit("data");
    const whole = this.#from === null;
    const [from, to] = [this.#from ?? span[0], paused ? span[1] : null];
    const parts = Array.from({ length: Math.ceil(this.#names.length / MAX_SCALARS) }, (_, place) =>
      this.#names.slice(place * MAX_SCALARS, (place + 1) * MAX_SCALARS),
    );
    try {
      const answers = await Promise.all(
        parts.map((name) => get("scalars", { run: this.page.run, name, from, to, points: POINTS }, signal)),
      );
      signal.throwIfAborted();
      if (whole) this.#curves.clear();
      for (const series of answers.flatMap((answer) => answer.series)) this.#take(series, whole);
      for (const curve of this.#curves.values()) curve.forget(span[0]);
      const lasts = [...this.#curves.values()].map((curve) => curve.line("").last);
      this.#from = Math.min(...lasts.map((last) => last[last.length - 1] ?? span[0]), span[1]);
      // A whole run that is followed grows without end: it is loaded again, in fewer points.
      if (!whole && [...this.#curves.values()].some(({ length }) => length > MAX_POINTS)) this.#from = null;
      this.emit("data");
    } catch (error) {
      if (!signal.aborted) this.emit("error", error);
      throw error;
    }
  }

  /** @param {import("../answers.js").Series} series @param {boolean} whole */
  #take(series, whole) {
    const curve = this.#curves.get(series.name) ?? new Curve();
    this.#curves.set(series.name, curve);
    curve.take(series, whole);
  }
}
