// @ts-check
/** A request for a tensor and what became of it: asked, waiting, came, or why not. */
import { get, send } from "../api.js";
import { byId, h } from "../dom.js";
import { eventsNow } from "../hooks/applied.js";
import { kindWords } from "../kinds.js";
import { MAX_PAGE } from "../limits.js";
import { Refresh } from "../live/refresh.js";
import { toast } from "../toast.js";

const MIN_MS = 300; // between two requests
const SHORT_MS = 6000; // arrived and expired requests leave the list

/** @typedef {"asked" | "waiting" | "came" | "gone"} Fate */

/** The words and the meaning of each state of a request. */
export const WORDS = /** @type {Record<Fate, [string, string]>} */ ({
  asked: ["Requested", "The trainer receives the request with its next frame."],
  waiting: ["Waiting", "The trainer captures it when the module runs."],
  came: ["Captured", ""],
  gone: ["The trainer has stopped", ""],
});

/** Why no tensor can be captured of a run that has not ended. @type {Record<string, string>} */
const WITHOUT_TRAINER = {
  lost: "The trainer does not answer, so no tensor can be captured.",
  waiting: "The server was restarted. Tensors can be captured when the trainer has reconnected.",
};

/** What became of a request. Pure.
 * @param {number} number @param {{kept: Set<number>, waiting: Set<number>, state: string}} known @returns {Fate} */
export function fateOf(number, { kept, waiting, state }) {
  if (kept.has(number)) return "came";
  if (state !== "live" && state !== "waiting") return "gone";
  return waiting.has(number) ? "asked" : "waiting";
}

/** What became of several that were asked for together: the fate of the slowest. Pure.
 * @param {Fate[]} fates @returns {Fate} */
export function fateOfAll(fates) {
  return /** @type {Fate[]} */ (["gone", "asked", "waiting"]).find((fate) => fates.includes(fate)) ?? "came";
}

/** Why the trainer didn't capture a tensor that was asked for, as it said last.
 * @param {string | null} run @param {string | null} module null: any @param {number} after how many events it was
 * asked for */
export async function missedWords(run, module, after) {
  const { events } = await get("events", { run, name: "snapshot-missed", after, limit: MAX_PAGE });
  return events.findLast((event) => module === null || event.module === module)?.message;
}

/**
 * @typedef {{numbers: number[], label: string, module: string | null, after: number, line: HTMLElement,
 *   words: HTMLElement}}
 * Request
 */

export class Asking {
  /** @type {Set<Request>} */
  #open = new Set();
  /** @param {import("../page.js").Page} page
   * @param {() => Promise<import("../answers.js").Snapshot[]>} look gives the snapshots of now
   * @param {(number: number) => void} show */
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
    await this.#try(async (after) => {
      const said = await send("POST", "snapshots", body, { run: this.page.run });
      this.#add(
        [said.number],
        `${body.module || "the model"} ${kindWords(body.kind)}${body.index ? ` [${body.index}]` : ""}`,
        body.module,
        after,
      );
    });
  }

  /** Every map of attention, all of one step. */
  async attention() {
    await this.#try(async (after) => {
      const said = await send("POST", "attention-rollout", undefined, { run: this.page.run });
      const numbers = said.asked.map((/** @type {import("../answers.js").RequestedSnapshot} */ each) => each.number);
      this.#add(
        numbers,
        numbers.length === 1 ? "1 possible attention map" : `${numbers.length} possible attention maps`,
        null,
        after,
      );
      if (said.left_out) toast(`${said.left_out} more do not fit in one request`);
    });
  }

  /** @param {(after: number) => Promise<void>} work gets the number of events before it */
  async #try(work) {
    try {
      await work(await eventsNow(this.page.run));
      this.refresh.soon();
    } catch (error) {
      toast(/** @type {any} */ (error).message, { kind: "error" });
    }
  }

  /** @param {number[]} numbers @param {string} label @param {string | null} module null: any
   * @param {number} after how many events it was asked for */
  #add(numbers, label, module, after) {
    const words = h("span", { class: "state" }, WORDS.asked[0]);
    const line = h("li", {}, h("span", {}, label), words);
    this.#open.add({ numbers, label, module, after, line, words });
    byId("asked").append(line);
  }

  /** What became of the open requests. If the server doesn't answer, the page says so, and it is asked again. */
  async #ask() {
    const { run } = this.page;
    const open = [...this.#open];
    const [settings, snapshots, ...reasons] = await Promise.all([
      get("settings", { run }),
      this.look(),
      ...open.map(({ module, after }) => missedWords(run, module, after)),
    ]);
    const known = {
      kept: new Set(snapshots.map((each) => each.number)),
      waiting: new Set(settings.waiting.map((each) => each.number)),
      state: settings.state,
    };
    for (const [place, request] of open.entries())
      this.#tell(
        request,
        request.numbers.map((number) => fateOf(number, known)),
        reasons[place],
      );
  }

  /** @param {Request} request @param {Fate[]} fates @param {string | undefined} why the trainer didn't capture it */
  #tell(request, fates, why) {
    const came = fates.filter((fate) => fate === "came").length;
    const fate = fateOfAll(fates);
    const over = fate === "came" || fate === "gone" || (why && fate === "waiting");
    request.words.textContent =
      over && fate !== "came"
        ? (why ?? WORDS.gone[0])
        : fates.length > 1
          ? `${came} of ${fates.length} captured`
          : WORDS[fate][0];
    request.words.title = WORDS[fate][1];
    request.line.className = over && fate !== "came" ? "gone" : fate;
    if (!over) return;
    if (came) this.show(request.numbers[fates.indexOf("came")]);
    this.#open.delete(request);
    setTimeout(() => request.line.remove(), fate === "came" ? SHORT_MS : 4 * SHORT_MS);
  }
}
