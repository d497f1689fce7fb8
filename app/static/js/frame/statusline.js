// @ts-check
/** The pill and the banner of the frame, live. Their words change at most once per second, but at once if the state
 * changes; the newest step is the same in every place that shows it, at any moment. */
import { numberOf } from "../api.js";
import { byId, write } from "../dom.js";
import { count } from "../format.js";
import { prefs } from "../prefs.js";
import { toast } from "../toast.js";
import { bannerOf, pillOf, Rate } from "./status.js";

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

  /** @param {import("../page.js").Page} page */
  constructor(page) {
    this.page = page;
  }

  start() {
    const { stream, follow, run } = this.page;
    if (run !== null)
      stream.subscribe({ view: "runs", run, hz: Number(prefs.get("rate")) }, { json: (said) => this.hear(said) });
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

  /** @param {import("../answers.js").Message} said */
  hear(said) {
    if (said.type !== "runs") return;
    const { page } = this;
    this.heardAt = new Date().toLocaleTimeString();
    const mine = said.runs.find(({ run }) => run === page.run);
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
        link: page.name === "overview" ? undefined : { words: "Show the traceback", href: page.address("") },
      });
    if (wasOpen && page.runState === "ended") toast(`The run ended at step ${count(page.follow.newest)}`);
    if (before === page.runState && wasPaused === this.capturePaused) this.soon();
    else this.show();
  }

  /** @param {import("../answers.js").RunNews | undefined} mine @param {string} before its state on the page */
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
    for (const each of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-newest-step]"))) {
      follow.saw(Number(each.dataset.newestStep));
      write(each, count(follow.newest));
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
