// @ts-check
/** A drawer for one layer, next to what the reader looks at: facts, lines, a histogram, values, a tensor, incidents. On
 * the pages that have it in `PLACES` (app/pages/frame.py). */
import { get, only } from "../api.js";
import { byId } from "../dom.js";
import { MAX_PAGE } from "../limits.js";
import { failedWords } from "../live/failed.js";
import { Parts } from "../live/parts.js";
import { Refresh } from "../live/refresh.js";
import { viewsOf } from "../tensors/plan.js";
import { Side } from "../tensors/side.js";
import { DrawerCharts } from "./charts.js";

/**
 * @typedef {{module: string, call: number, phase: string, kind: string, index?: string, step?: number | null}}
 * Layer the shown layer;
 * `kind` is that of the histogram, and `step` the one that the values are of, unless the page is held at another one */

export class Drawer {
  /** @type {Layer | null} */
  layer = null;

  /** @param {import("../page.js").Page} page @param {HTMLElement} element
   * @param {() => void} [onClose] the reader closed it */
  constructor(page, element, onClose = () => {}) {
    this.page = page;
    this.element = element;
    this.parts = new Parts(page, "drawer", { root: element, query: () => this.#query(), ready: () => !this.closed });
    this.charts = new DrawerCharts(page);
    this.refresh = new Refresh((signal) => this.#look(signal), {
      ready: () => !this.closed,
      failed: (error) => this.charts.say(failedWords(error)),
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

  /** @param {import("../page.js").Page} page @param {HTMLElement} element */
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
      const entry = snapshots.find((each) => String(each.number) === number);
      if (!entry) throw new Error("This snapshot was discarded to make room for newer ones.");
      const [view] = viewsOf(entry.kept_shape, entry.tap.label);
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
      this.element.textContent = /** @type {Error} */ (error).message;
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
