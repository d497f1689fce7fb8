// @ts-check
/** The socket's news about runs: waiting for them, and the news as of when the page was made. */

const MAX_MS = 5000; // while the socket is away

/** Resolves when the run has other news than steps, such as an event, a snapshot, or a command that its trainer has
 * received. Call it before the request whose answer the news may change.
 * @param {{events: import("../emitter.js").Emitter<any>}} page @param {number} [ms] the longest wait
 * @returns {Promise<void>} */
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

/** What the page shows of its runs, so that the same news isn't a reason to ask again. @returns {RunNews[]} */
export function newsInPage() {
  return JSON.parse(document.getElementById("news")?.textContent || "[]");
}

/** @typedef {import("../answers.js").RunNews} RunNews */
