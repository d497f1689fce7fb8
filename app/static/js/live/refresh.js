/** Keeps something up to date: the one throttle of all pages, and what a chart says if it fails. */

/** Whether a request that failed is worth repeating: the server didn't answer, or failed itself.
 * @param {unknown} error */
export function isPassing(error) {
  const { status = 0 } = /** @type {{status?: number}} */ (error ?? {});
  return status === 0 || status >= 500;
}

/** Why a chart is empty, if its `Refresh` retries what is worth retrying. @param {unknown} error */
export function failedWords(error) {
  const { status, message } = /** @type {{status?: number, message: string}} */ (error);
  if (status === 0) return `${message}. Values appear when it is back.`;
  return isPassing(error) ? `${message}. The chart will retry.` : message;
}

const RETRY_MS = 5000;
const PROMPT_MS = 300; // between two calls for a reader, who may hold a key down

/** Calls `work` after a change: one call at a time, with pauses in between, and again for changes during a call.
 * Nothing runs while the page is hidden or `ready` says no; the change is remembered. If `work` throws, it is called
 * again, unless the server has rejected the request itself (a status below 500). */
export class Refresh {
  #isDue = false;
  /** @type {AbortController | null} */
  #running = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #notBefore = -Infinity;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #prompt;
  #promptedAt = -Infinity;

  /** @param {(signal: AbortSignal) => Promise<unknown>} work throws if it failed
   * @param {{min?: number, max?: number, share?: number, ready?: () => boolean, failed?: (error: unknown) => void,
   * page?: any}} [how] the pause after a call: `share` times as long as the call took, but at least `min` and at most
   * `max` milliseconds; `failed` hears the errors of calls that weren't aborted */
  constructor(work, how = {}) {
    const { min = 1000, max = 5000, share = 10, ready = () => true, failed = () => {}, page = document } = how;
    this.work = work;
    this.failed = failed;
    this.pause = { min, max, share };
    this.ready = ready;
    this.page = page;
    page.addEventListener("visibilitychange", this.#hear);
  }

  #hear = () => this.#plan();

  /** Runs soon: something has changed. */
  soon() {
    this.#isDue = true;
    this.#plan();
  }

  /** Runs now, because the reader waits. A running call is aborted: its answer is outdated. */
  async now() {
    this.stop();
    this.#isDue = true;
    await this.#run();
  }

  /** Runs without the usual pause, because the reader waits: at once, or a few times a second. */
  promptly() {
    this.#isDue = true;
    this.#prompt ??= setTimeout(
      () => {
        this.#prompt = undefined;
        this.#promptedAt = performance.now();
        void this.now();
      },
      Math.max(0, this.#promptedAt + PROMPT_MS - performance.now()),
    );
  }

  /** Aborts a running call and forgets changes. */
  stop() {
    clearTimeout(this.#prompt);
    this.#prompt = undefined;
    this.#running?.abort();
    this.#running = null;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#isDue = false;
  }

  /** Stops permanently, because the refreshed element is gone. */
  close() {
    this.stop();
    this.page.removeEventListener("visibilitychange", this.#hear);
  }

  #plan() {
    if (!this.#isDue || this.#running || this.#timer !== undefined || this.page.hidden) return;
    const wait = Math.max(0, this.#notBefore - performance.now());
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      void this.#run();
    }, wait);
  }

  async #run() {
    if (this.page.hidden || !this.ready()) return;
    const running = new AbortController();
    this.#running = running;
    this.#isDue = false;
    const began = performance.now();
    let wait = 0;
    try {
      await this.work(running.signal);
    } catch (error) {
      wait = RETRY_MS;
      if (!running.signal.aborted) {
        this.#isDue ||= isPassing(error);
        this.failed(error);
      }
    }
    if (this.#running !== running) return;
    this.#running = null;
    const { min, max, share } = this.pause;
    const now = performance.now();
    this.#notBefore = now + Math.max(min, wait, Math.min(max, share * (now - began)));
    this.#plan();
  }
}
