/** Which boxes there are, which of them are open, and where they stand. */
import { get } from "../api.js";
import { Refresh } from "../live/refresh.js";
import { Emitter } from "../state.js";
import { makerSize, OUTSIDE, readFolds, sizeOf, Tree, writeFolds } from "./tree.js";

/** @import { Arranged, Level, Wanted } from "./arrange.js"
 * @import { Page } from "../page.js" */

const MIN_MS = 2000;

/** Emits "model" when there are other boxes, and "arranged" when they stand elsewhere. What is shown changes at
 * once. */
export class Structure extends Emitter {
  /** @type {Tree | null} */
  tree = null;
  /** The boxes that show their parts. @type {Set<number>} */
  open = new Set();
  /** @type {Arranged | null} */
  arranged = null;
  /** Why they can't be arranged. */
  problem = "";
  /** What is shown once it is arranged. @type {{tree: Tree, open: Set<number>} | null} */
  #wanted = null;
  /** What the run had when the server told about it last. */
  #news = "";
  #known = "";

  /** @param {Page} page @param {() => number} width of the window to the picture */
  constructor(page, width) {
    super();
    this.page = page;
    this.width = width;
    this.arranger = new Arranger(page.folder);
    this.refresh = new Refresh((signal) => this.#ask(signal), { min: MIN_MS });
    page.events.on("run", ({ taps, flow_step: flow }) => {
      const counts = `${taps} ${flow}`;
      const isLater = flow !== null && this.tree !== null && !this.tree.model.steps.includes(flow);
      if (isLater || (this.#news && counts !== this.#news)) this.refresh.soon();
      this.#news = counts;
    });
    page.follow.on("change", () => this.#isOther() && this.refresh.soon());
    page.state.on("folds", (text) => this.#wanted && this.#show(this.#wanted.tree, readFolds(this.#wanted.tree, text)));
    void this.refresh.now();
  }

  /** The step whose structure is shown; null: the newest one. */
  get #step() {
    const { follow } = this.page;
    return follow.paused ? follow.step : null;
  }

  /** Whether another structure was learned for the step that is shown now. */
  #isOther() {
    if (!this.tree) return false;
    const { step, steps } = this.tree.model;
    const shown = this.#step;
    return (steps.findLast((learned) => shown === null || learned <= shown) ?? null) !== step;
  }

  /** @param {AbortSignal} signal */
  async #ask(signal) {
    const { page } = this;
    const model = await get("model", { run: page.run, step: this.#step }, signal);
    const text = JSON.stringify(model);
    if (text === this.#known) return;
    this.#known = text;
    const tree = new Tree(model);
    await this.#show(tree, this.#openIn(tree));
  }

  /** What the address says. A link that says no more than a box shows it. @param {Tree} tree */
  #openIn(tree) {
    const { state } = this.page;
    const open = readFolds(tree, state.get("folds"));
    const linked = state.get("folds") ? undefined : tree.numbers.get(state.get("box"));
    return linked === undefined ? open : tree.reveal([linked], open);
  }

  /** What is open, or will be once it is arranged. */
  get #openSoon() {
    return this.#wanted?.tree === this.tree ? this.#wanted.open : this.open;
  }

  /** Opens or closes boxes, and writes it to the address. @param {Set<number>} open */
  setOpen(open) {
    if (this.tree) this.page.state.set({ folds: writeFolds(this.tree, open) });
  }

  /** @param {number} number @returns {boolean} whether it is open then */
  toggle(number) {
    const open = new Set(this.#openSoon);
    const opens = !open.delete(number);
    if (opens) open.add(number);
    this.setOpen(open);
    return opens;
  }

  /** Opens whatever is around a box. @param {number} number @returns {boolean} whether anything was closed */
  reveal(number) {
    const open = this.#openSoon;
    if (!this.tree || this.tree.shownFor(number, open) === number) return false;
    this.setOpen(this.tree.reveal([number], open));
    return true;
  }

  /** Opens all. @returns {boolean} whether anything was closed */
  openAll() {
    const { boxes = [] } = this.tree ?? {};
    const closed = boxes.filter(({ number, parts }) => parts.length && !this.#openSoon.has(number));
    this.setOpen(new Set([...this.#openSoon, ...closed.map(({ number }) => number)]));
    return closed.length > 0;
  }

  /** Arranges the boxes for a window of another width. */
  rearrange() {
    if (this.#wanted) void this.#show(this.#wanted.tree, this.#wanted.open);
  }

  /** Shows these boxes open, once it is known where they stand. @param {Tree} tree @param {Set<number>} open */
  async #show(tree, open) {
    this.#wanted = { tree, open };
    const shown = tree.shown(open);
    const levels = [OUTSIDE, ...shown.filter((number) => open.has(number))].map((number) => levelOf(tree, number));
    const sizes = shown
      .filter((number) => !open.has(number))
      .map((number) => /** @type {[number, [number, number]]} */ ([number, sizeOf(tree, number)]));
    const { arranged, problem } = await this.arranger.ask({ levels, sizes, width: this.width() });
    if (!arranged && !problem) return; // there is a newer question
    const isOther = tree !== this.tree;
    Object.assign(this, { tree, open, arranged, problem });
    if (isOther) this.emit("model");
    this.emit("arranged");
  }
}

/** @param {Tree} tree @param {number} number @returns {[number, Level]} */
function levelOf(tree, number) {
  const box = number === OUTSIDE ? null : tree.boxes[number];
  const edges = tree
    .edgesOf(number)
    .map(({ source, target }) => /** @type {[number, number]} */ ([source ?? -1, target ?? -1]));
  const maker = box?.computes && box.parts.length ? makerSize(box.made_by) : null;
  return [number, { parts: [...tree.partsOf(number)], edges, maker }];
}

/** The places, or why they can't be found; neither if there is a newer question.
 * @typedef {{arranged: Arranged | null, problem: string}} Answer */

/** Asks the worker where the boxes stand. The newest question counts. */
class Arranger {
  #asked = 0;
  /** @type {(answer: Answer) => void} */
  #answer = () => {};

  /** @param {string} folder of the static files */
  constructor(folder) {
    this.worker = new Worker(new URL(`${folder}/joined/workers/layout.js`, document.baseURI));
    this.worker.addEventListener("message", ({ data: { id, arranged = null, problem = "" } }) => {
      if (id === this.#asked) this.#answer({ arranged, problem });
    });
    this.worker.addEventListener("error", () => {
      this.#answer({ arranged: null, problem: "the script that does it did not load" });
    });
  }

  /** @param {Wanted} wanted @returns {Promise<Answer>} */
  ask(wanted) {
    this.#answer({ arranged: null, problem: "" });
    this.#asked += 1;
    this.worker.postMessage({ id: this.#asked, wanted });
    return new Promise((answer) => {
      this.#answer = answer;
    });
  }
}
