// @ts-check
/** "Follow this tensor": the button and its words. */
import { send } from "../api.js";
import { byId } from "../dom.js";
import { count } from "../format.js";
import { eventsNow } from "../hooks/applied.js";
import { nextNews } from "../live/news.js";
import { missedWords } from "./ask.js";
import { Following, PATIENCE_MS } from "./following.js";

/** Why a run in this state can't be followed. @type {Record<string, string>} */
const ENDS = {
  ended: "The training has ended.",
  crashed: "The training crashed.",
  stopped: "The training was stopped.",
  lost: "The trainer does not answer.",
  removed: "The run was removed.",
};

/** @typedef {import("../answers.js").Snapshot} Snapshot */

/**
 * @param {import("../page.js").Page} page
 * @param {{look: () => Promise<Snapshot[]>, chosen: () => Snapshot | null | undefined,
 *   show: (number: number) => void}} tensors */
export function addFollowing(page, { look, chosen, show }) {
  const { run, state } = page;
  const button = /** @type {HTMLButtonElement} */ (byId("follow-tensor"));
  const every = /** @type {HTMLInputElement} */ (byId("follow-every"));
  const words = byId("following-words");
  let shown = "";
  let before = 0; // events before it was asked for
  const following = new Following({
    ask: async ({ module, kind, index, call, phase }) => {
      before = await eventsNow(run);
      return (await send("POST", "snapshots", { module, kind, index, call, phase }, { run })).number;
    },
    news: (ms) => nextNews(page, ms),
    look: async (number) => (await look()).find((each) => each.number === number)?.step ?? null,
    show: (number) => {
      shown = String(number);
      show(number);
    },
    why: async ({ module }) =>
      (await missedWords(run, module, before)) ??
      `No snapshot arrived within ${PATIENCE_MS / 1000} s: the module may no longer run.`,
  });
  const say = () => {
    const { tap, taken, why } = following;
    const may = page.mayChange && page.runState === "live";
    button.disabled = !may;
    button.setAttribute("aria-pressed", String(tap !== null));
    button.textContent = tap === null ? "Follow this tensor" : "Stop following";
    button.title = may ? "" : "Only a live run can be followed, and only with full access";
    every.disabled = tap !== null;
    const captured = `${count(taken)} snapshot${taken === 1 ? "" : "s"} captured`;
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
