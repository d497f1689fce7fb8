// @ts-check
/** What the header says of the run and of the connection. Pure: words for a situation. */
import { count, pace } from "./format.js";

/**
 * @typedef {object} Situation
 * @property {string} run the run's state: live, ended, lost, kept, removed
 * @property {boolean} broken the connection to the server is
 * @property {string} refused why the server wants none
 * @property {number | null} newest
 * @property {number | null} step the one that is looked at
 * @property {boolean} held
 * @property {number} waiting steps that came while it was held
 * @property {number | null} rate steps a second
 * @property {number | null} drawing pictures a second, where drawing is slow
 * @property {number} retryS seconds until the next attempt to connect
 * @property {string} heardAt when the server was last heard of
 */

const SEP = " \u00b7 ";

/** The pill: its state (a class) and its words. @param {Situation} now @returns {{state: string, words: string}} */
export function pillOf(now) {
  const { run, newest, held, step } = now;
  const at = newest === null ? "" : `step ${count(newest)}`;
  if (now.broken) return { state: "disconnected", words: joined("disconnected", at) };
  if (run !== "live") {
    const where = run === "ended" || run === "lost" ? at : "";
    return { state: run, words: held ? joined(`held at step ${count(step)}`, run) : joined(run, where) };
  }
  if (newest === null) return { state: "empty", words: "waiting for the first step" };
  if (held) return { state: "paused", words: joined("paused", now.waiting ? `${count(now.waiting)} new ${now.waiting === 1 ? "step" : "steps"}` : `step ${count(step)}`) };
  const slow = now.drawing === null ? "" : `drawing at ${now.drawing}/s`;
  return { state: "live", words: joined("live", at, pace(now.rate), slow) };
}

/** @param {...string} parts */
function joined(...parts) {
  return parts.filter(Boolean).join(SEP);
}

/** The banner, where there is something to say that needs a sentence. @param {Situation} now @returns {{kind: string, words: string} | null} */
export function bannerOf(now) {
  const until = now.newest === null ? "before the first step" : `until step ${count(now.newest)}`;
  if (now.refused) return { kind: "refused", words: now.refused };
  if (now.broken) {
    const retry = now.retryS > 0 ? `Trying again in ${Math.ceil(now.retryS)} s.` : "Trying now.";
    const asOf = now.heardAt ? `, as of ${now.heardAt}` : "";
    const shown = now.run ? ` What is shown is what came ${until}${asOf}.` : "";
    return { kind: "disconnected", words: `The dashboard does not answer.${shown} ${retry}` };
  }
  if (now.run === "lost") {
    return { kind: "lost", words: `No sign of life from the training since ${now.newest === null ? "before its first step" : `step ${count(now.newest)}`}. It was killed, stands still, or cannot reach this server; if it comes back, the page goes on by itself.` };
  }
  if (now.run === "removed") return { kind: "removed", words: "This run was removed from the server. What is shown is what this page still has." };
  return null;
}
