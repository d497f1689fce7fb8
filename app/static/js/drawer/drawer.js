/** A drawer for one layer, next to what the reader looks at: facts, lines, a histogram, values, a tensor, incidents. On
 * the pages that have it in `PLACES` (app/pages/frame.py). */
import { get, only } from "../api.js";
import { byId, coded, tell } from "../dom.js";
import { ofParameters } from "../format.js";
import { HistProfile } from "../histograms/profile.js";
import { barsOf, NO_HISTOGRAM } from "../histograms/shape.js";
import { Charts } from "../layer/charts.js";
import { shortOf } from "../layer/plan.js";
import { MAX_PAGE } from "../limits.js";
import { Parts } from "../live/parts.js";
import { failedWords, Refresh } from "../live/refresh.js";
import { Side, viewsOf } from "../tensors/side.js";

/** @import { Tap } from "../answers.js"
 * @import { Page } from "../page.js" */

const MIN_MS = 2000;
const COLUMNS = 240;
const BINS = 80;
const MAX_PARTS = 4;
const KINDS = [
  "output",
  "output_grad",
  "param_grad",
  "raw_grad",
  "param",
  "input",
  "input_grad",
  "update",
  "exp_avg",
  "exp_avg_sq",
  "state",
];

class DrawerCharts {
  /** @type {Tap | null} */
  #tap = null;
  /** The step that is shown unless the page is held at another one. @type {number | null} */
  #step = null;

  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    this.lines = new Charts(page, byId("drawer-lines"), false);
    this.lines.heading = "h3";
    const place = byId("drawer-histogram");
    this.words = /** @type {HTMLElement} */ (place.querySelector("p"));
    this.histogram = new HistProfile(page, /** @type {HTMLElement} */ (place.querySelector(".plot")), {
      title: "Distribution",
      height: 130,
    });
    this.refresh = new Refresh((signal) => this.#ask(signal), {
      min: MIN_MS,
      ready: () => this.#tap !== null,
      failed: (error) => this.histogram.canvas.hidden && tell(this.words, failedWords(error)),
    });
    page.follow.on("change", () => this.#tap && this.refresh.promptly());
    page.follow.on("newest", () => this.#tap && this.#step === null && !page.follow.paused && this.refresh.soon());
  }

  /** @param {Tap[]} taps of a module @param {Layer} layer */
  show(taps, { call, phase, kind, step = null }) {
    this.#step = step;
    const own = taps.filter((tap) => ofParameters(tap.kind) || (tap.call === call && tap.phase === phase));
    const every = KINDS.flatMap((name) => own.filter((tap) => tap.kind === name));
    const parts = every.slice(0, MAX_PARTS);
    const plan = {
      id: "norms",
      title: every.length > MAX_PARTS ? `Norms over steps, ${MAX_PARTS} of ${every.length}` : "Norms over steps",
      y: { title: "norm", scale: /** @type {const} */ ("log"), fixed: true }, // the page's choice is for its own charts
      stats: ["norm"],
      parts: parts.map((tap) => ({ tap, name: shortOf(tap), make: "norm" })),
    };
    if (parts.length) this.lines.show([plan]);
    else this.lines.show([], `No tensor of this ${taps.length ? "call" : "layer"} was captured.`);
    const before = this.#tap;
    this.#tap = own.find((tap) => tap.kind === kind) ?? parts[0] ?? null;
    byId("drawer-histogram").hidden = this.#tap === null;
    if (this.#tap?.number !== before?.number) this.histogram.canvas.hidden = true; // until its own is there
    byId("drawer-histogram-title").textContent = this.#tap ? `Distribution of ${shortOf(this.#tap)}` : "Distribution";
    if (this.#tap) void this.refresh.now();
  }

  /** @param {AbortSignal} signal */
  async #ask(signal) {
    const { span, held } = this.page.follow;
    if (!this.#tap || !span) return;
    const bars = barsOf({ held: held ?? this.#step, span }, COLUMNS);
    const query = { run: this.page.run, tap: this.#tap.number, ...bars, bins: BINS };
    const answer = await get("histograms", query, signal);
    if (!("edges" in answer) || signal.aborted) return;
    const none = !answer.first_step.length;
    tell(this.words, none ? NO_HISTOGRAM : ""); // in the place of the histogram
    this.histogram.canvas.hidden = none;
    this.histogram.show(answer, span);
  }

  /** Nothing is shown: the drawer is closed, or waits for what another layer has.
   * @param {string} [why] in the place of the lines */
  clear(why = "") {
    this.#tap = null;
    this.refresh.stop();
    this.lines.show([], why);
    byId("drawer-histogram").hidden = true;
  }
}

/** @typedef {{module: string, call: number, phase: string, kind: string, index?: string, step?: number | null}} Layer
 * the shown layer; `kind` is that of the histogram, and `step` the one that the values are of, unless the page is held
 * at another one */

export class Drawer {
  /** @type {Layer | null} */
  layer = null;

  /** @param {Page} page @param {HTMLElement} element @param {() => void} [onClose] the reader closed it */
  constructor(page, element, onClose = () => {}) {
    this.page = page;
    this.element = element;
    this.parts = new Parts(page, "drawer", { root: element, query: () => this.#query(), ready: () => !this.closed });
    this.charts = new DrawerCharts(page);
    this.refresh = new Refresh((signal) => this.#look(signal), {
      ready: () => !this.closed,
      failed: (error) => this.charts.clear(failedWords(error)),
    });
    this.tensor = new DrawerTensor(page, byId("drawer-tensor"));
    const close = () => {
      this.close();
      onClose();
    };
    element.addEventListener("focusin", ({ relatedTarget: from }) => {
      if (from instanceof HTMLElement && !element.contains(from)) this.#before = from;
    });
    byId("drawer-close").addEventListener("click", close);
    addEventListener(
      "keydown",
      (event) => {
        if (event.key !== "Escape" || this.closed || event.defaultPrevented || isElsewhere(event.target)) return;
        event.preventDefault();
        event.stopPropagation();
        close();
      },
      { capture: true },
    );
    page.follow.on("change", () => this.closed || this.parts.promptly());
    page.follow.on("newest", () => this.closed || page.follow.paused || this.parts.soon(["about", "numbers"]));
    page.events.on("news", () => this.closed || this.parts.soon(["happened", "kept"]));
    const kept = /** @type {HTMLElement} */ (element.querySelector("[data-part=kept]"));
    kept.addEventListener("renewed", () => this.tensor.show(kept.dataset.snapshot));
  }

  /** What had the focus before the drawer. @type {HTMLElement | null} */
  #before = null;

  #giveBackFocus() {
    const before = this.#before?.isConnected ? this.#before : byId("main");
    before.focus({ preventScroll: true });
  }

  focus() {
    this.element.focus({ preventScroll: true });
  }

  get closed() {
    return this.layer === null;
  }

  #query() {
    const { module = "", call = 0, phase = "train" } = this.layer ?? {};
    const { state } = this.page;
    return new URLSearchParams({
      module,
      call: String(call),
      phase,
      steps: state.get("steps"),
      step: state.get("step") || String(this.layer?.step ?? ""),
    }).toString();
  }

  /** Shows a layer. @param {Layer} layer @param {HTMLElement | null} [from] what gets the focus back */
  open(layer, from = /** @type {HTMLElement | null} */ (document.activeElement)) {
    if (from && !this.element.contains(from)) this.#before = from;
    if (JSON.stringify(layer) === JSON.stringify(this.layer)) return;
    const { module, call, phase, step } = this.layer ?? {};
    const other = layer.module !== module || layer.call !== call || layer.phase !== phase || layer.step !== step;
    this.layer = layer;
    this.element.hidden = false;
    const at = given({ step: layer.step });
    byId("drawer-layer").href = this.page.address("layer", {
      module: layer.module,
      ...given({ kind: layer.kind, index: layer.index }),
      ...at,
    });
    byId("drawer-flow").href = this.page.address("flow", { ...given({ f: layer.module }), ...at });
    if (other) {
      this.element.scrollTop = 0;
      void this.parts.now();
      this.charts.clear();
      this.tensor.close();
    }
    void this.refresh.now();
  }

  /** @param {AbortSignal} signal */
  async #look(signal) {
    const { layer } = this;
    if (layer === null) return;
    const { taps } = await get("taps", { run: this.page.run, ...only(layer.module), limit: MAX_PAGE }, signal);
    if (!signal.aborted) this.charts.show(taps, layer);
  }

  close() {
    const isInside = this.element.contains(document.activeElement);
    this.layer = null;
    this.element.hidden = true;
    this.refresh.stop();
    this.charts.clear();
    this.tensor.close();
    if (isInside) this.#giveBackFocus();
  }
}

/** What of a query is known. @param {Record<string, string | number | null | undefined>} query */
function given(query) {
  const parts = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return /** @type {Record<string, string | number>} */ (Object.fromEntries(parts));
}

/** Whether Escape has something else to do. @param {EventTarget | null} target */
function isElsewhere(target) {
  return target instanceof Element && Boolean(target.closest("dialog[open], input[type=search], .menu"));
}

const HEIGHT = 220;

/** The newest snapshot of a layer, small. */
class DrawerTensor {
  /** @type {Side | null} */
  #side = null;
  #shown = "";
  #asking = new AbortController();

  /** @param {Page} page @param {HTMLElement} element */
  constructor(page, element) {
    this.page = page;
    this.element = element;
  }

  /** @param {string | undefined} number of a snapshot */
  async show(number) {
    if (number === this.#shown) return;
    this.close();
    if (number === undefined) return;
    this.#shown = number;
    const { signal } = this.#asking;
    try {
      const { snapshots } = await get("snapshots", { run: this.page.run, limit: MAX_PAGE }, signal);
      if (signal.aborted) return;
      const entry = snapshots.find((snapshot) => String(snapshot.number) === number);
      if (!entry) throw new Error("This snapshot was discarded to make room for newer ones.");
      const [view] = viewsOf(entry.kept_shape, entry.tap);
      const side = new Side(this.page, entry, HEIGHT);
      this.#side = side;
      this.element.replaceChildren(side.element);
      this.element.hidden = false;
      const picks = view.pickers.map(() => 0);
      await side.load({ view, picks, part: null, pool: "worst", scale: "shared", ends: "most", after: 0 }, signal);
      if (!signal.aborted) side.draw(undefined);
    } catch (error) {
      if (signal.aborted) return;
      this.#shown = ""; // asked for again at the next update
      this.element.replaceChildren(...coded(/** @type {Error} */ (error).message));
      this.element.hidden = false;
    }
  }

  close() {
    this.#asking.abort();
    this.#asking = new AbortController();
    this.#side?.close();
    this.#side = null;
    this.#shown = "";
    this.element.hidden = true;
    this.element.replaceChildren();
  }
}
