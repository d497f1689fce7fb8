// @ts-check
/**
 * A drawer for one layer, next to what the reader looks at: facts, lines, a histogram, values, a tensor, incidents. For any
 * page whose template includes drawer.html and whose head has css/drawer.css.
 */
import { get, only } from "../api.js";
import { byId } from "../dom.js";
import { failedWords } from "../live/failed.js";
import { Parts } from "../live/parts.js";
import { Refresh } from "../live/refresh.js";
import { DrawerCharts } from "./charts.js";
import { DrawerTensor } from "./tensor.js";

/** @typedef {{module: string, call: number, phase: string, kind: string}} Layer what is shown; `kind` is that of the histogram */

export class Drawer {
  /** @type {Layer | null} */
  layer = null;

  /** @param {import("../page.js").Page} page @param {HTMLElement} element @param {() => void} [onClose] the reader closed it */
  constructor(page, element, onClose = () => {}) {
    this.page = page;
    this.element = element;
    this.parts = new Parts(page, "drawer", { root: element, query: () => this.#query(), ready: () => !this.closed });
    this.charts = new DrawerCharts(page);
    this.refresh = new Refresh((signal) => this.#look(signal), { ready: () => !this.closed });
    this.tensor = new DrawerTensor(page, byId("drawer-tensor"));
    const close = () => {
      const isInside = element.contains(document.activeElement);
      this.close();
      onClose();
      if (isInside) this.#giveBackFocus();
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
    page.follow.on("change", () => this.closed || this.parts.soon());
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
      step: state.get("step"),
    }).toString();
  }

  /** Shows a layer. @param {Layer} layer */
  open(layer) {
    if (JSON.stringify(layer) === JSON.stringify(this.layer)) return;
    const { module, call, phase } = this.layer ?? {};
    const other = layer.module !== module || layer.call !== call || layer.phase !== phase;
    if (this.closed) this.#before = /** @type {HTMLElement | null} */ (document.activeElement);
    this.layer = layer;
    this.element.hidden = false;
    const query = { module: layer.module };
    byId("drawer-layer").href = this.page.address("layer", { ...query, kind: layer.kind });
    byId("drawer-flow").href = this.page.address("flow", layer.module ? { f: layer.module } : {});
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
    try {
      const { taps } = await get("taps", { run: this.page.run, ...only(layer.module), limit: 1000 }, signal);
      if (!signal.aborted) this.charts.show(taps, layer);
    } catch (error) {
      if (!signal.aborted) this.charts.say(failedWords(error));
      throw error;
    }
  }

  close() {
    this.layer = null;
    this.element.hidden = true;
    this.refresh.stop();
    this.charts.clear();
    this.tensor.close();
  }
}

/** Whether Escape has something else to do. @param {EventTarget | null} target */
function isElsewhere(target) {
  return target instanceof Element && Boolean(target.closest("dialog[open], input[type=search], .menu"));
}
