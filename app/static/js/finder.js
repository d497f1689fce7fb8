/** Which modules the find box matches. The server says so, with the function that also makes the first paint. */
import { get } from "./api.js";
import { tell } from "./dom.js";

/** @import { Page } from "./page.js" */

const TYPED_MS = 120;
const SLOW_MS = 600; // then the box says that it waits
const RETRY_MS = 2000;
const RENEWED_MS = 10_000; // in a live run, a module can become non-finite, dead, or captured

/** @typedef {{problem: string, fits: boolean, paths: string[]}} Answer */
/** The modules whose path is listed, or all others. @typedef {{fits: boolean, paths: Set<string>}} Found */

/** @type {Found} */
const EVERYTHING = { fits: false, paths: new Set() };

/** Until an answer comes, the last one holds. */
export class Finder {
  /** What is wrong with the text, or with the server. */
  problem = "";
  /** @type {Found | null} null until the first answer */
  #found = null;
  /** The text that was answered last. @type {string | null} */
  #answered = null;
  #asking = new AbortController();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  /** @type {number | null} of taps, when the question was last asked */
  #taps = null;

  /** @param {Page} page @param {() => void} onChange called when other modules match
   * @param {{run?: string | null, ask?: typeof get}} [from] */
  constructor(page, onChange, { run = page.run, ask = get } = {}) {
    this.page = page;
    this.onChange = onChange;
    this.run = run;
    this.ask = ask;
    if (this.text) void this.#ask();
    else this.#found = EVERYTHING;
    page.state.on("f", () => {
      this.#asking.abort();
      clearTimeout(this.#timer);
      if (this.text) this.#soon(TYPED_MS);
      else this.#take(EVERYTHING);
    });
    page.events.on("run", ({ taps }) => {
      if (taps !== this.#taps) this.renew(); // there are new layers
      this.#taps = taps;
    });
    setInterval(() => {
      if (page.runState === "live" && !document.hidden && !page.follow.paused) this.renew();
    }, RENEWED_MS);
  }

  get text() {
    return this.page.state.get("f").trim();
  }

  /** Whether it is known what matches. */
  get ready() {
    return this.#found !== null;
  }

  /** @param {string} path of a module */
  fits(path) {
    return this.#found !== null && this.#found.paths.has(path) === this.#found.fits;
  }

  /** Asks again: the answer can be another one. */
  renew() {
    if (this.text) this.#soon(0);
  }

  /** @param {number} wait milliseconds */
  #soon(wait) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#ask(), wait);
  }

  async #ask() {
    this.#asking.abort(); // the answer to an older question must not win
    this.#asking = new AbortController();
    const { signal } = this.#asking;
    const isNew = this.#answered !== this.text; // an answer that is only renewed is nothing to wait for
    const slow = setTimeout(() => isNew && say("Searching \u2026"), SLOW_MS);
    try {
      const path = `runs/${encodeURIComponent(this.run ?? "")}/find`;
      const { problem, fits, paths } = /** @type {Answer} */ (await this.ask(path, { f: this.text }, signal));
      if (signal.aborted) return;
      // Text that can't be read leaves the result as it is. The first paint then shows everything, as this answer does.
      this.#take(problem && this.#found ? this.#found : { fits, paths: new Set(paths) }, problem);
    } catch (error) {
      if (signal.aborted) return;
      const { status, message } = /** @type {{status?: number, message: string}} */ (error);
      const why =
        status === 0
          ? "Can\u2019t reach the dashboard. The filter will be applied when it responds."
          : `The filter isn\u2019t applied: ${message}`;
      if (isNew) this.#say(why);
      this.#soon(RETRY_MS);
    } finally {
      clearTimeout(slow);
    }
  }

  /** @param {Found} found @param {string} [problem] */
  #take(found, problem = "") {
    this.#found = found;
    this.#answered = this.text;
    this.#say(problem);
    this.onChange();
  }

  /** @param {string} problem */
  #say(problem) {
    this.problem = problem;
    say(problem, "error");
  }
}

/** Words at the find box. @param {string} words @param {string} [kind] */
function say(words, kind = "quiet") {
  const element = document.getElementById("find-problem");
  if (!element) return;
  tell(element, words);
  element.className = `find-problem ${kind}`;
}

/** @param {{runState: string}} page */
export function noModules({ runState }) {
  return runState === "live"
    ? "No modules yet. They appear with the first step of a training that watches a model."
    : "This run reported no modules.";
}
