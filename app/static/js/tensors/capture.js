/** Requests for a tensor: one, or one every so many steps while the page is open. The server keeps nothing of it. */
import { send } from "../api.js";
import { breakable, byId, copyText, h } from "../dom.js";
import { counted, kindWords } from "../format.js";
import { outcomesOf } from "../live/news.js";
import { Refresh } from "../live/refresh.js";
import { attempt, toast } from "../popup.js";
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

/** @typedef {{module: string, kind: string, index: string, call: number, phase: string}} Tap */
/** Called once: with the snapshot, or with why there is none.
 * @typedef {(snapshot: Snapshot | undefined, why: string) => void} Done */
/** @typedef {{numbers: number[], line: HTMLElement, words: HTMLElement, done?: Done}} Request */

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
    await attempt("Capturing failed", () => this.take(body));
  }

  /** @param {Tap} tap @param {Done} [done] then the request isn't listed */
  async take(tap, done) {
    const { number } = await send("POST", "snapshots", tap, { run: this.page.run });
    this.#add([number], `${tap.module || "the model"} ${kindWords(tap.kind)}${tap.index && ` [${tap.index}]`}`, done);
  }

  /** Every map of attention, all of one step. */
  async attention() {
    await attempt("Capturing failed", async () => {
      const answer = await send("POST", "attention-rollout", undefined, { run: this.page.run });
      const numbers = answer.asked.map((/** @type {RequestedSnapshot} */ snapshot) => snapshot.number);
      this.#add(numbers, counted(numbers.length, "possible attention map"));
      if (answer.left_out) toast(`${answer.left_out} more do not fit in one request`);
    });
  }

  /** @param {number[]} numbers @param {string} label @param {Done} [done] */
  #add(numbers, label, done) {
    const words = h("span", { class: "state" }, WORDS.asked[0]);
    const line = h("li", {}, h("span", {}, label), words);
    this.#open.add({ numbers, line, words, done });
    if (!done) byId("asked").append(line);
    this.refresh.soon();
  }

  /** What became of the open requests. If the server doesn't answer, the page says so, and it is asked again. */
  async #ask() {
    const open = [...this.#open];
    // In this order, so that the snapshot of a finished request is there, if it is kept.
    const outcomes = await outcomesOf(
      this.page.run,
      open.flatMap(({ numbers }) => numbers),
    );
    const kept = new Map((await this.look()).map((snapshot) => [snapshot.number, snapshot]));
    const byNumber = new Map(outcomes.map((outcome) => [outcome.number, outcome]));
    for (const request of open)
      this.#tell(
        request,
        request.numbers.flatMap((number) => byNumber.get(number) ?? []),
        kept,
      );
  }

  /** @param {Request} request @param {Outcome[]} outcomes @param {Map<number, Snapshot>} kept snapshots that are there
   */
  #tell(request, outcomes, kept) {
    const fates = outcomes.map((outcome) => fateOf(outcome, kept.has(outcome.number)));
    const [came, fate] = [fates.filter((fate) => fate === "came").length, fateOfAll(fates)];
    const counts = fates.length > 1 ? `${came} of ${fates.length} captured` : "";
    const why = fate === "gone" ? whyGone(outcomes[fates.indexOf("gone")]) : "";
    request.words.textContent = [counts, why].filter(Boolean).join(": ") || WORDS[fate][0];
    request.words.title = WORDS[fate][1];
    request.line.className = fate;
    if (fate !== "came" && fate !== "gone") return;
    this.#open.delete(request);
    if (request.done) return request.done(kept.get(request.numbers[0]), why);
    if (came) this.show(request.numbers[fates.indexOf("came")]);
    setTimeout(() => request.line.remove(), fate === "came" ? SHORT_MS : 4 * SHORT_MS);
  }
}

export const MAX_TAKEN = 200;

/** Requests a tensor again and again, one at a time. Emits "change" when it begins, ends, or has a snapshot. */
export class Following extends Emitter {
  /** @type {Tap | null} */
  tap = null;
  /** How many snapshots it has taken. */
  taken = 0;
  /** Why it ended, if it wasn't by hand. */
  why = "";
  every = 10;
  /** The step from which on the next one is requested. */
  #next = -Infinity;
  #newest = -Infinity;
  #isBusy = false;

  /** @param {(tap: Tap, done: Done) => Promise<void>} take @param {(number: number) => void} show */
  constructor(take, show) {
    super();
    this.take = take;
    this.show = show;
  }

  /** @param {Tap} tap @param {number} every steps @param {number} newest step of the run */
  start(tap, every, newest) {
    Object.assign(this, { tap, every, taken: 0, why: "" });
    this.#next = -Infinity;
    this.emit("change");
    this.step(newest);
  }

  /** @param {string} [why] */
  stop(why = "") {
    if (this.tap === null) return;
    Object.assign(this, { tap: null, why });
    this.emit("change");
  }

  /** The run has a newer step. @param {number} newest */
  step(newest) {
    this.#newest = newest;
    const { tap } = this;
    if (tap === null || this.#isBusy || newest < this.#next || globalThis.document?.hidden) return;
    this.#isBusy = true;
    /** @type {Done} */
    const done = (snapshot, why) => {
      this.#isBusy = false;
      if (this.tap === tap && snapshot) this.#took(snapshot);
      else if (this.tap === tap) this.stop(why);
      this.step(this.#newest); // steps that came meanwhile
    };
    this.take(tap, done).catch((error) => done(undefined, error.message));
  }

  /** @param {Snapshot} snapshot */
  #took({ number, step }) {
    this.#next = step + this.every;
    this.taken += 1;
    this.show(number);
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

/** @param {Page} page @param {Asking} asking
 * @param {{chosen: () => Snapshot | null | undefined, show: (number: number) => void}} tensors */
export function addFollowing(page, asking, { chosen, show }) {
  const { state } = page;
  const button = /** @type {HTMLButtonElement} */ (byId("follow-tensor"));
  const every = /** @type {HTMLInputElement} */ (byId("follow-every"));
  const words = byId("following-words");
  let shown = "";
  const following = new Following(
    (tap, done) => asking.take(tap, done),
    (number) => {
      shown = String(number);
      show(number);
    },
  );
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
    following.start({ module, kind, index, call, phase }, Number(every.value), page.follow.newest);
  });
  page.follow.on("newest", () => following.step(page.follow.newest ?? 0));
  page.follow.on("change", () => page.follow.paused && following.stop("The page was held."));
  state.on("snapshot", (number) => number !== shown && following.stop("Another snapshot was chosen."));
  page.events.on("run", () => {
    if (page.runState !== "live" && page.runState !== "waiting") following.stop("The run is no longer live.");
    say();
  });
  say();
}
