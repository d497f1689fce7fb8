/** The socket's news about runs, and waiting until the trainer applies or refuses a command. */
import { get } from "../api.js";

/** @import { Outcome, RunNews } from "../answers.js"
 * @import { Page } from "../page.js"
 * @import { Emitter } from "../state.js" */

const MAX_MS = 5000; // while the socket is away

/** Resolves when the run has other news than steps, such as an event, a snapshot, or a command that its trainer has
 * received. Call it before the request whose answer the news may change. @param {{events: Emitter<any>}} page @param
 * {number} [ms] the longest wait @returns {Promise<void>} */
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

/** What became of commands. @param {string | null} run @param {number[]} numbers @returns {Promise<Outcome[]>} */
export async function outcomesOf(run, numbers) {
  return numbers.length ? (await get("commands", { run, numbers: numbers.join(",") })).outcomes : [];
}

/** Waits until the trainer has applied a command. Throws if it hasn't, or if that is unknown.
 * @param {Pick<Page, "run" | "events">} page @param {number} number @param {(why: string) => void} wait called with the
 * reason for a longer wait */
export async function applied(page, number, wait) {
  for (;;) {
    const news = nextNews(page);
    const [{ outcome, reason }] = await outcomesOf(page.run, [number]);
    if (outcome === "applied") return;
    if (outcome !== "waiting" && outcome !== "received") throw new Error(`${FAILED[outcome]}: ${reason}`);
    if (outcome === "received" && reason) wait(`Waiting: ${reason}`);
    await news;
  }
}

const FAILED = {
  refused: "The trainer refused the change",
  superseded: "Another change replaced yours",
  dropped: "The server dropped the change",
  unknown: "It is unknown whether the change was applied",
};
