/** Requests for a tensor: one, or one every so many steps while the page is open. The server keeps nothing of it. */
import { send } from "../api.js";
import { breakable, byId, copyText, h } from "../dom.js";
import { counted, kindWords } from "../format.js";
import { nextNews, outcomesOf } from "../live/news.js";
import { Refresh } from "../live/refresh.js";
import { toast } from "../popup.js";
import { Emitter } from "../state.js";

/** @import { Outcome, RequestedSnapshot, Snapshot } from "../answers.js"
 * @import { Page } from "../page.js" */

/** @typedef {"asked" | "waiting" | "came" | "gone"} Fate */

const MIN_MS = 300; // between two requests
const SHORT_MS = 6000; // arrived and expired requests leave the list

/** The words and the meaning of each state of a request. */
const WORDS = /** @type {Record<Fate, [string, string]>} */ ({
  asked: ["Requested", "The trainer receives the request with its next frame."],
  waiting: ["Waiting", "The trainer captures it when the module runs."],
  came: ["Captured", ""],
  gone: ["Not captured", ""],
});

/** Why no tensor can be captured of a run that has not ended. @type {Record<string, string>} */
const WITHOUT_TRAINER = {
  lost: "The trainer does not answer, so no tensor can be captured.",
  waiting: "The server was restarted. Tensors can be captured when the trainer has reconnected.",
};

/** What became of a request. Pure.
 * @param {Outcome} outcome @param {boolean} kept whether its snapshot is there @returns {Fate} */
export function fateOf({ outcome }, kept) {
  if (kept) return "came";
  return outcome === "waiting" ? "asked" : outcome === "received" ? "waiting" : "gone";
}

/** What became of several that were asked for together: the fate of the slowest. Pure.
 * @param {Fate[]} fates @returns {Fate} */
export function fateOfAll(fates) {
  return /** @type {Fate[]} */ (["asked", "waiting", "gone"]).find((fate) => fates.includes(fate)) ?? "came";
}

/** The words for a tensor that isn't there although its request is over. Pure. @param {Outcome} outcome */
export function whyGone({ outcome, reason }) {
  return `${outcome === "applied" ? "No longer kept" : WORDS.gone[0]}: ${reason}`;
}

/** @typedef {{numbers: number[], line: HTMLElement, words: HTMLElement}} Request */

export class Asking {
  /** @type {Set<Request>} */
  #open = new Set();
  /** @param {Page} page @param {() => Promise<Snapshot[]>} look gives the snapshots of now @param {(number: number) =>
   * void} show */
  constructor(page, look, show) {
    this.page = page;
    this.look = look;
    this.show = show;
    this.refresh = new Refresh(() => this.#ask(), { min: MIN_MS });
    this.#allow(page.runState);
    page.events.on("run", (run) => this.#allow(run.state));
    page.events.on("news", () => this.#open.size && this.refresh.soon());
    byId("ask-form").addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.one();
    });
    byId("ask-attention").addEventListener("click", () => this.attention());
  }

  /** @param {string} state of the run */
  #allow(state) {
    const may = this.page.mayChange && state === "live";
    for (const id of ["ask-button", "ask-attention"]) byId(id).disabled = !may;
    if (state !== "live")
      byId("ask-words").textContent =
        WITHOUT_TRAINER[state] ?? "The training has ended, so no more tensors can be captured.";
    else if (may)
      byId("ask-words").textContent = "The trainer copies the tensor in its next step. The training does not wait.";
  }

  /** The tensor that the form names. */
  async one() {
    if (byId("ask-button").disabled) return;
    const { state } = this.page;
    const body = {
      module: state.get("module"),
      kind: state.get("kind"),
      index: state.get("index"),
      phase: state.get("phase"),
      call: Number(state.get("call")) || 0,
    };
    await this.#try(async () => {
      const request = await send("POST", "snapshots", body, { run: this.page.run });
      this.#add(
        [request.number],
        `${body.module || "the model"} ${kindWords(body.kind)}${body.index ? ` [${body.index}]` : ""}`,
      );
    });
  }

  /** Every map of attention, all of one step. */
  async attention() {
    await this.#try(async () => {
      const answer = await send("POST", "attention-rollout", undefined, { run: this.page.run });
      const numbers = answer.asked.map((/** @type {RequestedSnapshot} */ snapshot) => snapshot.number);
      this.#add(numbers, counted(numbers.length, "possible attention map"));
      if (answer.left_out) toast(`${answer.left_out} more do not fit in one request`);
    });
  }

  /** @param {() => Promise<void>} work */
  async #try(work) {
    try {
      await work();
      this.refresh.soon();
    } catch (error) {
      toast(/** @type {any} */ (error).message, { kind: "error" });
    }
  }

  /** @param {number[]} numbers @param {string} label */
  #add(numbers, label) {
    const words = h("span", { class: "state" }, WORDS.asked[0]);
    const line = h("li", {}, h("span", {}, label), words);
    this.#open.add({ numbers, line, words });
    byId("asked").append(line);
  }

  /** What became of the open requests. If the server doesn't answer, the page says so, and it is asked again. */
  async #ask() {
    const open = [...this.#open];
    // In this order, so that the snapshot of a finished request is there, if it is kept.
    const outcomes = await outcomesOf(
      this.page.run,
      open.flatMap(({ numbers }) => numbers),
    );
    const kept = new Set((await this.look()).map(({ number }) => number));
    const byNumber = new Map(outcomes.map((outcome) => [outcome.number, outcome]));
    for (const request of open)
      this.#tell(
        request,
        request.numbers.flatMap((number) => byNumber.get(number) ?? []),
        kept,
      );
  }

  /** @param {Request} request @param {Outcome[]} outcomes @param {Set<number>} kept snapshots that are there */
  #tell(request, outcomes, kept) {
    const fates = outcomes.map((outcome) => fateOf(outcome, kept.has(outcome.number)));
    const [came, fate] = [fates.filter((fate) => fate === "came").length, fateOfAll(fates)];
    const counts = fates.length > 1 ? `${came} of ${fates.length} captured` : "";
    const why = fate === "gone" ? whyGone(outcomes[fates.indexOf("gone")]) : "";
    request.words.textContent = [counts, why].filter(Boolean).join(": ") || WORDS[fate][0];
    request.words.title = WORDS[fate][1];
    request.line.className = fate;
    if (fate !== "came" && fate !== "gone") return;
    if (came) this.show(request.numbers[fates.indexOf("came")]);
    this.#open.delete(request);
    setTimeout(() => request.line.remove(), fate === "came" ? SHORT_MS : 4 * SHORT_MS);
  }
}

export const MAX_TAKEN = 200;
const PATIENCE_MS = 30_000; // for a module that doesn't run

/** @typedef {{module: string, kind: string, index: string, call: number, phase: string}} Tap */

/**
 * What it needs of the page.
 * @typedef {object} Around
 * @property {(tap: Tap) => Promise<number>} ask for a snapshot; returns its number
 * @property {(number: number) => Promise<number | null>} look for it; returns its step, or null if it isn't there yet;
 *   throws if it won't come
 * @property {(number: number) => void} show
 * @property {(ms: number) => Promise<void>} news resolves when the run has some, or after a while
 * @property {() => number} [now]
 */

/** Emits "change" when it begins, ends, or has taken a snapshot. */
export class Following extends Emitter {
  /** @type {Tap | null} */
  tap = null;
  /** How many snapshots it has taken. */
  taken = 0;
  /** Why it ended, if it wasn't by hand. */
  why = "";
  every = 10;
  /** The step of the last one. */
  #last = -Infinity;
  #newest = -Infinity;
  #isBusy = false;

  /** @param {Around} around */
  constructor({ now = () => performance.now(), ...around }) {
    super();
    this.around = around;
    this.now = now;
  }

  /** @param {Tap} tap @param {number} every steps @param {number} newest step of the run */
  start(tap, every, newest) {
    Object.assign(this, { tap, every, taken: 0, why: "" });
    this.#last = -Infinity;
    this.emit("change");
    return this.step(newest);
  }

  /** @param {string} [why] */
  stop(why = "") {
    if (this.tap === null) return;
    this.tap = null;
    this.why = why;
    this.emit("change");
  }

  /** The run has a newer step. @param {number} newest */
  async step(newest) {
    this.#newest = newest;
    const { tap } = this;
    if (tap === null || this.#isBusy || newest < this.#last + this.every || globalThis.document?.hidden) return;
    this.#isBusy = true;
    try {
      await this.#take(tap);
    } catch (error) {
      if (this.tap === tap) this.stop(/** @type {Error} */ (error).message);
    } finally {
      this.#isBusy = false;
    }
    if (this.tap !== null) await this.step(this.#newest); // steps that came meanwhile
  }

  /** @param {Tap} tap */
  async #take(tap) {
    const { around } = this;
    const number = await around.ask(tap);
    const until = this.now() + PATIENCE_MS;
    while (this.tap === tap) {
      const news = around.news(Math.max(0, until - this.now()));
      const step = await around.look(number);
      if (this.tap !== tap) return;
      if (step !== null) return this.#took(number, step);
      if (this.now() >= until)
        return this.stop(`No snapshot arrived within ${PATIENCE_MS / 1000} s: the module may no longer run.`);
      await news;
    }
  }

  /** @param {number} number @param {number} step */
  #took(number, step) {
    this.#last = step;
    this.taken += 1;
    this.around.show(number);
    if (this.taken >= MAX_TAKEN) this.stop(`Ended after ${MAX_TAKEN} snapshots.`);
    else this.emit("change");
  }
}

/** The line of Python that captures a tensor in the next run. Pure. @param {string} module @param {string} kind
 * @param {string} index */
export function lineOf(module, kind, index) {
  const more = Object.entries({ kind: kind === "output" ? "" : kind, index }).filter(([, value]) => value);
  const words = more.map(([name, value]) => `, ${name}=${JSON.stringify(value)}`);
  return `watcher.request_snapshot(${JSON.stringify(module)}${words.join("")})`;
}

/** Offers that line while the form is filled, for a run that has ended. @param {Page} page */
export function offerLine(page) {
  const code = document.getElementById("next-line");
  if (!code) return;
  const { state } = page;
  const write = () => {
    code.replaceChildren(...breakable(lineOf(state.get("module"), state.get("kind"), state.get("index"))));
  };
  for (const name of ["module", "kind", "index"]) state.on(name, write);
  write();
  byId("next-copy").addEventListener("click", async () => {
    if (await copyText(code.textContent ?? "")) toast("Line copied");
  });
}

/** Why a run in this state can't be followed. @type {Record<string, string>} */
const ENDS = {
  ended: "The training has ended.",
  crashed: "The training crashed.",
  stopped: "The training was stopped.",
  lost: "The trainer does not answer.",
  removed: "The run was removed.",
};

/** @param {Page} page @param {{look: () => Promise<Snapshot[]>, chosen: () => Snapshot | null | undefined, show:
 * (number: number) => void}} tensors */
export function addFollowing(page, { look, chosen, show }) {
  const { run, state } = page;
  const button = /** @type {HTMLButtonElement} */ (byId("follow-tensor"));
  const every = /** @type {HTMLInputElement} */ (byId("follow-every"));
  const words = byId("following-words");
  let shown = "";
  const following = new Following({
    ask: async ({ module, kind, index, call, phase }) =>
      (await send("POST", "snapshots", { module, kind, index, call, phase }, { run })).number,
    news: (ms) => nextNews(page, ms),
    look: async (number) => {
      const [outcome] = await outcomesOf(run, [number]); // before the list, as above
      const snapshot = (await look()).find((kept) => kept.number === number);
      if (fateOf(outcome, Boolean(snapshot)) === "gone") throw new Error(whyGone(outcome));
      return snapshot?.step ?? null;
    },
    show: (number) => {
      shown = String(number);
      show(number);
    },
  });
  const say = () => {
    const { tap, taken, why } = following;
    const may = page.mayChange && page.runState === "live";
    button.disabled = !may;
    button.setAttribute("aria-pressed", String(tap !== null));
    button.textContent = tap === null ? "Follow this tensor" : "Stop following";
    button.title = may ? "" : "Only a live run can be followed, and only with full access";
    every.disabled = tap !== null;
    const captured = `${counted(taken, "snapshot")} captured`;
    words.textContent = tap === null ? why && `${captured}. ${why}` : `${captured}, until you leave this page`;
  };
  following.on("change", say);
  button.addEventListener("click", () => {
    const one = chosen();
    if (following.tap !== null) return following.stop();
    if (!one || page.follow.newest === null || !every.reportValidity()) return;
    const { module, kind, index, call, phase } = one.tap;
    void following.start({ module, kind, index, call, phase }, Number(every.value), page.follow.newest);
  });
  page.follow.on("newest", () => void following.step(page.follow.newest ?? 0));
  page.follow.on("change", () => page.follow.paused && following.stop("The page was held."));
  state.on("snapshot", (number) => number !== shown && following.stop("Another snapshot was chosen."));
  page.events.on("run", () => {
    if (page.runState !== "live" && page.runState !== "waiting")
      following.stop(ENDS[page.runState] ?? `The run is ${page.runState}.`);
    say();
  });
  say();
}
