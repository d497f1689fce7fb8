// @ts-check
/** Waiting for what the socket says of the run. */

const MAX_MS = 5000; // while the socket is away

/**
 * Resolves when the run has other news than steps, such as an event, a snapshot, or a command that its trainer has
 * received. Call it before the request whose answer the news may change.
 * @param {{events: import("../emitter.js").Emitter<any>}} page @param {number} [ms] the longest wait
 * @returns {Promise<void>}
 */
export function nextNews(page, ms = MAX_MS) {
  return new Promise((done) => {
    const end = () => {
      clearTimeout(timer);
      forget();
      done();
    };
    const forget = page.events.on("news", end);
    const timer = setTimeout(end, ms);
  });
}
