/** The socket's news about runs, and waiting until the trainer applies or refuses a command. */
import { get } from "../api.js";
import { MAX_PAGE } from "../limits.js";

/** @import { RunNews } from "../answers.js"
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

/** How many events a run has had: those after it came later, whatever the trainer's clock says.
 * @param {string | null} run */
export async function eventsNow(run) {
  return (await get("events", { run, limit: 1 })).next;
}

/** Throws if the trainer refused the command, or if the run ended before it. @param {Pick<Page, "run" | "events">} page
 * @param {{number: number, names: string[], from: number}} command its number, the settings that it changes, and how
 * many events there were before it was sent @param {(why: string) => void} wait called with the reason for a longer
 * wait */
export async function applied(page, { number, names, from }, wait) {
  const { run } = page;
  const missing = new Set(names);
  for (let after = from, wasLive = true; ; ) {
    const news = nextNews(page);
    // In this order, so that the events of a command that still waits are those of other ones.
    const { events, next } = await get("events", { run, after, limit: MAX_PAGE });
    const { waiting, state } = await get("settings", { run });
    after = next;
    const isDone = !waiting.some((each) => each.number === number);
    for (const { name, message } of isDone ? events : []) {
      if (name === "settings-refused" && isOf(message, names)) throw new Error(`The trainer refused ${message}`);
      if (name === "settings-changed")
        for (const each of names) if (message.includes(`${each}: `)) missing.delete(each);
      if (name === "settings-waiting") wait(`Waiting: ${message}`);
    }
    if (isDone && missing.size === 0) return;
    const isLive = state === "live" || state === "waiting"; // for its trainer, since the server was restarted
    if (!isLive && !wasLive) throw new Error(`The run is ${state} now, so the change was not applied.`);
    wasLive = isLive;
    if (events.length < MAX_PAGE) await news;
  }
}

/** Whether a refusal, such as `every, budget: why not`, is of a change of these settings.
 * @param {string} message @param {string[]} names */
function isOf(message, names) {
  const refused = message.split(": ", 1)[0].split(", ");
  return refused.toSorted().join() === names.toSorted().join();
}
