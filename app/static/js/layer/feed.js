// @ts-check
/** The series of a module's charts: everything at first, then only new points while the page follows. */
import { get } from "../api.js";
import { Emitter } from "../events.js";
import { Curve } from "../overview/curve.js";
import { leadOf } from "../smooth.js";

const MIN_MS = 500; // between two requests for new points
const POINTS = 1000;
const SMOOTH_POINTS = 4000; // smoothing needs unmerged points

/** @typedef {{taps: (number | null)[], stats: string[]}} Ask */

/** Emits "data" when the curves have changed, "error" with the server's error. */
export class Feed extends Emitter {
  /** @type {Ask[]} */
  asks = [];
  /** @type {Map<string, Curve>} */
  #curves = new Map();
  /** The steps that were asked for. @type {[number, number] | null} */
  #loaded = null;
  #merged = false;
  /** @type {AbortController | null} */
  #asking = null;
  #notBefore = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  /** @param {import("../page.js").Page} page */
  constructor(page) {
    super();
    this.page = page;
    page.follow.on("change", () => this.#look());
    page.follow.on("newest", () => this.#soon());
    page.state.on("smooth", () => this.load());
    document.addEventListener("visibilitychange", () => this.#soon());
  }

  /** @param {Ask[]} asks */
  show(asks) {
    this.asks = asks;
    this.load();
  }

  /** @param {number | null} tap @param {string} stat @returns {import("../plot/thin.js").Line | null} */
  find(tap, stat) {
    return this.#curves.get(`${tap} ${stat}`)?.line(stat) ?? null;
  }

  /** Loads everything again. */
  async load() {
    const { span } = this.page.follow;
    this.#asking?.abort();
    if (!span || !this.asks.length) return this.emit("data");
    const halfLife = Number(this.page.state.get("smooth")) || 0;
    const from = Math.max(0, span[0] - leadOf(halfLife));
    this.#loaded = [from, span[1]];
    await this.#ask(from, this.page.follow.paused ? span[1] : null, halfLife ? SMOOTH_POINTS : POINTS, true);
  }

  /** The shown steps have changed; the loaded points may suffice. */
  #look() {
    const { span, paused } = this.page.follow;
    const [from, to] = this.#loaded ?? [Infinity, -Infinity];
    if (!paused || !span || this.#merged || span[0] < from || span[1] > to) this.load();
    else this.emit("data");
  }

  #soon() {
    if (this.page.follow.paused || document.hidden || this.#timer !== undefined) return;
    this.#timer = setTimeout(
      () => {
        this.#timer = undefined;
        if (!this.page.follow.paused && !document.hidden) this.#more();
      },
      Math.max(0, this.#notBefore - performance.now()),
    );
  }

  /** Loads new points; the last one may have been incomplete. */
  async #more() {
    if (this.#asking) return;
    if (!this.#loaded) return this.load();
    const lasts = [...this.#curves.values()]
      .map((curve) => curve.line("").first)
      .filter((first) => first.length)
      .map((first) => first[first.length - 1]);
    const from = lasts.length ? Math.min(...lasts) : this.#loaded[0];
    if (await this.#ask(from, null, POINTS, false)) this.#forget();
  }

  #forget() {
    const { span } = this.page.follow;
    if (!span || !this.#loaded) return;
    const first = span[0] - leadOf(Number(this.page.state.get("smooth")) || 0);
    for (const curve of this.#curves.values()) curve.forget(first);
    this.#loaded = [Math.max(this.#loaded[0], first), span[1]];
  }

  /** @param {number} from @param {number | null} to @param {number} points @param {boolean} whole */
  async #ask(from, to, points, whole) {
    const asking = new AbortController();
    this.#asking = asking;
    this.#notBefore = performance.now() + MIN_MS;
    try {
      const wanted = this.asks.map(({ taps, stats }) =>
        get("series", { run: this.page.run, tap: taps, stat: stats.join(","), from, to, points }, asking.signal),
      );
      const answers = await Promise.all(wanted);
      if (whole) this.#curves.clear();
      for (const series of answers.flatMap((answer) => answer.series)) this.#take(series, whole);
      this.emit("data");
      return true;
    } catch (error) {
      if (!asking.signal.aborted) this.emit("error", error);
      return false;
    } finally {
      if (this.#asking === asking) this.#asking = null;
    }
  }

  /** @param {import("../answers.js").Series} series @param {boolean} whole */
  #take(series, whole) {
    const key = `${series.tap?.number ?? null} ${series.name}`;
    const curve = this.#curves.get(key) ?? new Curve();
    this.#curves.set(key, curve);
    curve.take(series, whole);
    if (whole) this.#merged = this.#merged && this.#curves.size > 1;
    this.#merged ||= series.first_step.some((first, place) => first !== series.last_step[place]);
  }
}
