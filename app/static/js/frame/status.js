// @ts-check
/** The words of the header about the run and the connection, and the rate of progress. Pure. */
import { count, pace, stepWords } from "../format.js";

/**
 * @typedef {object} Situation
 * @property {[number, number] | null} range the steps that the reader chose
 * @property {string} run the run's state: live, waiting, ended, crashed, stopped, lost, removed
 * @property {boolean} capturePaused
 * @property {boolean} broken whether the connection to the server is
 * @property {string} refused why the server refuses the connection
 * @property {number | null} newest
 * @property {number | null} step the one that is shown
 * @property {boolean} held
 * @property {number} waiting steps that arrived while the page was held
 * @property {number | null} rate steps a second
 * @property {number | null} drawing frames drawn per second, if drawing is slow
 * @property {number} retryS seconds until the next attempt to connect
 * @property {string} heardAt when the server last sent something
 */

const SEP = " \u00b7 ";

/** The pill: its state (a class) and its words. @param {Situation} now @returns {{state: string, words: string}} */
export function pillOf(now) {
  const { run, newest, held, step, range } = now;
  const where = range ? stepWords(...range) : `step ${count(step)}`;
  const at = newest === null ? "" : `step ${count(newest)}`;
  if (now.broken) return { state: "disconnected", words: joined("disconnected", at) };
  if (run !== "live") {
    return { state: run, words: held ? joined(`held at ${where}`, run) : joined(run, run === "removed" ? "" : at) };
  }
  if (newest === null) return { state: "waiting", words: "waiting for the first step" };
  if (held)
    return {
      state: "paused",
      words: joined(
        "paused",
        now.waiting ? `${count(now.waiting)} new ${now.waiting === 1 ? "step" : "steps"}` : where,
      ),
    };
  if (now.capturePaused) return { state: "paused", words: joined("capture paused", at) };
  const slow = now.drawing === null ? "" : `display ${now.drawing} fps`;
  return { state: "live", words: joined("live", at, pace(now.rate), slow) };
}

/** @param {...string} parts */
function joined(...parts) {
  return parts.filter(Boolean).join(SEP);
}

/** The banner, if a sentence is needed. @param {Situation} now @returns {{kind: string, words: string} | null} */
export function bannerOf(now) {
  const until = now.newest === null ? "from before the first step" : `up to step ${count(now.newest)}`;
  if (now.refused) return { kind: "refused", words: now.refused };
  if (now.broken) {
    const retry = now.retryS > 0 ? `Next attempt in ${Math.ceil(now.retryS)} s.` : "Reconnecting \u2026";
    const asOf = now.heardAt ? `, received at ${now.heardAt}` : "";
    const shown = now.run ? ` This page shows data ${until}${asOf}.` : "";
    return { kind: "disconnected", words: `The dashboard isn't responding.${shown} ${retry}` };
  }
  if (now.run === "lost") {
    const what =
      now.newest === null
        ? "The training stopped responding before its first step"
        : `Nothing received from the training since step ${count(now.newest)}`;
    const why = "It was killed, is stuck, or can't reach this server.";
    return { kind: "lost", words: `${what}. ${why} If it reconnects, this page resumes automatically.` };
  }
  if (now.run === "waiting") {
    const what = "The server was restarted and waits for the trainer.";
    return { kind: "waiting", words: `${what} This page shows data ${until}, and resumes automatically.` };
  }
  if (now.run === "removed")
    return {
      kind: "removed",
      words: "This run was removed from the server. This page shows the data it had already loaded.",
    };
  return null;
}

const MAX_MS = 10_000;
const MIN_MS = 900;

/** The rate of progress, from positions and the training's own times: steps that come late, and so close together, were
 * not faster. */
export class Rate {
  /** @type {[number, number][]} time and place, the oldest first */
  #seen = [];
  /** When the last place was heard of. */
  #heardAt = 0;

  /** @param {number} place such as the newest step @param {number} time when it was reached, in the training's
   * milliseconds @param {number} now milliseconds of this page */
  saw(place, time, now) {
    const last = this.#seen.at(-1);
    if (last && place === last[1]) return;
    if (last && (place < last[1] || time < last[0])) this.#seen = [];
    this.#seen.push([time, place]);
    this.#heardAt = now;
    while (this.#seen.length > 2 && time - this.#seen[1][0] > MAX_MS) this.#seen.shift();
  }

  /** Progress per second; null until it is known, 0 once nothing comes.
   * @param {number} now milliseconds of this page */
  at(now) {
    const first = this.#seen[0];
    const last = this.#seen.at(-1);
    if (!first || !last || last[0] - first[0] < MIN_MS) return null;
    const pause = now - this.#heardAt;
    const span = last[0] - first[0];
    const perStep = span / (last[1] - first[1]);
    // A slow training sends nothing between two steps, but it is still running.
    return ((last[1] - first[1]) * 1000) / (pause > 3 * perStep + MIN_MS ? span + pause : span);
  }
}
