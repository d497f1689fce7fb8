/** The pill and the banner of the frame, live, and their words. They change at most once per second, but at once if the
 * state changes; the newest step is the same in every place that shows it, at any moment. */
import { numberOf } from "../api.js";
import { byId, write } from "../dom.js";
import { count, counted, pace, stepWords } from "../format.js";
import { toast } from "../popup.js";
import { prefs } from "../prefs.js";

/** @import { Message, RunNews } from "../answers.js"
 * @import { Page } from "../page.js" */

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
    const last = ["crashed", "removed", "stopped"].includes(run) ? "" : at; // the banner says in which step it ended
    return { state: run, words: held ? joined(`held at ${where}`, run) : joined(run, last) };
  }
  if (newest === null) return { state: "waiting", words: "waiting for the first step" };
  if (held) return { state: "paused", words: joined("paused", now.waiting ? counted(now.waiting, "new step") : where) };
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

const CALM_MS = 1000;

export class Status {
  rate = new Rate();
  heardAt = "";
  /** Whether the connection is broken. It stays so during attempts to connect. */
  broken = false;
  /** The last news, and the same without the progress, as JSON. */
  known = { run: "", rest: "" };
  capturePaused = false;
  /** @type {ReturnType<typeof setTimeout> | null} */
  timer = null;
  spoken = "";

  /** @param {Page} page */
  constructor(page) {
    this.page = page;
  }

  start() {
    const { stream, follow, run } = this.page;
    if (run !== null)
      stream.subscribe({ view: "runs", run, hz: Number(prefs.get("rate")) }, { json: (message) => this.hear(message) });
    stream.on("state", (state) => {
      this.broken = state !== "open" && (this.broken || state !== "connecting");
      this.show();
    });
    stream.on("failed", (words) => this.page.runState === "removed" || toast(words, { kind: "error" }));
    follow.on("change", () => this.show());
    follow.on("newest", () => this.show());
    document.addEventListener("renewed", () => this.countSteps());
    byId("banner-retry").addEventListener("click", () => stream.retry());
    this.show();
  }

  /** @param {Message} message */
  hear(message) {
    if (message.type !== "runs") return;
    const { page } = this;
    this.heardAt = new Date().toLocaleTimeString();
    const mine = message.runs.find(({ run }) => run === page.run);
    const before = page.runState;
    const wasPaused = this.capturePaused;
    this.capturePaused = mine?.paused ?? false;
    page.runState = mine ? mine.state : "removed";
    if (mine && mine.last_step !== null) {
      if (mine.time_s !== null) this.rate.saw(mine.last_step, 1000 * numberOf(mine.time_s), performance.now());
      page.follow.saw(mine.last_step);
    }
    if (mine && mine.state !== before) page.events.emit("state", mine);
    this.tell(mine, before);
    const wasOpen = before === "live" || before === "waiting";
    if (wasOpen && page.runState === "crashed")
      toast(`The training crashed at step ${count(page.follow.newest)}.`, {
        kind: "error",
        // The Overview shows it by itself.
        link: page.name === "overview" ? undefined : { words: "Show the traceback", href: page.address("overview") },
      });
    if (wasOpen && page.runState === "ended") toast(`The run ended at step ${count(page.follow.newest)}`);
    if (before === page.runState && wasPaused === this.capturePaused) this.soon();
    else this.show();
  }

  /** @param {RunNews | undefined} mine @param {string} before its state on the page */
  tell(mine, before) {
    const { last_step: _step, steps: _steps, frames: _frames, time_s: _time, ...rest } = mine ?? {};
    const now = { run: JSON.stringify(mine ?? ""), rest: JSON.stringify(rest) };
    const { known } = this;
    this.known = now;
    if (!mine || now.run === known.run) return;
    this.page.events.emit("run", mine);
    this.page.stream.resume();
    // The page of a finished run is complete when it is loaded.
    const isLoaded = known.rest === "" && mine.state === before && mine.state !== "live";
    if (now.rest !== known.rest && !isLoaded) this.page.events.emit("news", mine);
  }

  /** Writes the newest step into the parts of the page that the server has written. */
  countSteps() {
    const { follow } = this.page;
    for (const element of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-newest-step]"))) {
      follow.saw(Number(element.dataset.newestStep));
      write(element, count(follow.newest));
    }
  }

  soon() {
    this.timer ??= setTimeout(() => this.show(), CALM_MS);
  }

  show() {
    if (this.timer !== null) clearTimeout(this.timer);
    this.timer = null;
    const { page } = this;
    const { stream, follow } = page;
    const now = {
      run: page.runState,
      capturePaused: this.capturePaused,
      broken: this.broken,
      refused: stream.state === "refused" ? stream.why : "",
      newest: follow.newest,
      step: follow.step,
      held: follow.paused,
      range: follow.held === null ? follow.range : null,
      waiting: follow.waiting,
      rate: this.rate.at(performance.now()),
      drawing: page.schedule.rate,
      retryS: stream.retryAt ? Math.max(0, (stream.retryAt - Date.now()) / 1000) : 0,
      heardAt: this.heardAt,
    };
    const { state, words } = pillOf(now);
    if (page.run !== null) {
      byId("status").className = `pill ${state}`;
      write(byId("status-words"), words);
    }
    if (follow.newest !== null && !follow.paused) this.countSteps();
    const banner = bannerOf(now);
    this.#showBanner(banner);
    document.body.dataset.connection = this.broken ? "broken" : "open";
    // Pill and countdown change all the time; screen readers announce only a change of state.
    const what = banner?.kind ?? state;
    if (this.spoken && this.spoken !== what) page.announce(banner?.words ?? words);
    this.spoken = what;
    // A countdown continues, and so does the age of a silent run.
    if (this.broken || now.run === "live") this.soon();
  }

  /** @param {{kind: string, words: string} | null} banner */
  #showBanner(banner) {
    const element = byId("banner");
    element.hidden = banner === null;
    element.className = `banner ${banner?.kind ?? ""}`;
    write(byId("banner-words"), banner?.words ?? "");
    byId("banner-retry").hidden = banner?.kind !== "disconnected";
  }
}
