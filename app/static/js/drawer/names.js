/** The names of layers open the drawer, which is loaded once everything else is there, or at the click. */
import { byId, onClick } from "../dom.js";
import { toast } from "../popup.js";
import { added, sharedOf } from "../timeline/links.js";

/** @import { Drawer, Layer } from "./drawer.js"
 * @import { Row } from "../heat/rows.js"
 * @import { Page } from "../page.js" */

const QUIET_MS = 1000; // after the page has loaded

/** Returns a function that resolves to the module, or to null if it can't be loaded, which it tells the reader.
 * @template T @param {() => Promise<T>} load @returns {() => Promise<T | null>} */
function late(load) {
  /** @type {Promise<T> | null} */
  let loading = null;
  const get = () => {
    loading ??= load().catch((error) => {
      loading = null; // another click tries again
      throw error;
    });
    return loading;
  };
  addEventListener("load", () => setTimeout(() => get().catch(() => {}), QUIET_MS), { once: true });
  return () =>
    get().catch(() => {
      toast("A part of the page could not be loaded. Reload the page.", { kind: "error" });
      return null;
    });
}

const drawers = late(() => import("./drawer.js"));

/** Calls `open` at a plain click on a link to a layer, and follows the link if it returns false. Other clicks follow it
 * as well: with Ctrl, in the middle, on a button, and in the drawer.
 * @param {Page} page @param {(layer: Layer, link: HTMLElement) => boolean} open */
export function listenToNames(page, open) {
  onClick("main a[href]", (link, event) => {
    const isPlain = !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
    if (!isPlain || event.defaultPrevented || link.matches(".button, [data-set], [target]")) return;
    const layer = layerIn(link.getAttribute("href") ?? "", page);
    if (layer && open(layer, link)) event.preventDefault();
  });
}

/** The drawer of a page that has no other use for a click on a layer. */
export class LayerNames {
  /** Made when it is opened first. @type {Drawer | null} */
  #drawer = null;
  /** What was clicked. @type {HTMLElement | null} */
  #from = null;

  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    listenToNames(page, (layer, link) => {
      this.open(layer, link);
      return true;
    });
    page.state.on("drawer", () => this.#show());
    this.#show();
  }

  /** Shows a layer, and moves the focus there. @param {Layer} layer @param {HTMLElement | null} [from] gets it back */
  open(layer, from = null) {
    const { state } = this.page;
    this.#from = from ?? /** @type {HTMLElement | null} */ (document.activeElement);
    state.set({ drawer: written(layer) }, { push: state.get("drawer") === "" });
    this.#drawer?.focus();
    from?.scrollIntoView({ block: "nearest" }); // a narrower page may have moved it
  }

  #show() {
    const layer = read(new URLSearchParams(this.page.state.get("drawer")));
    if (!layer) return this.#drawer?.close();
    if (this.#drawer) this.#drawer.open(layer, this.#from);
    else void this.#make();
  }

  async #make() {
    const module = await drawers();
    if (!module || this.#drawer) return;
    this.#drawer = new module.Drawer(this.page, byId("drawer"), () => this.page.state.set({ drawer: "" }));
    this.#show(); // for the current address
    if (this.#from && !this.#drawer.closed) this.#drawer.focus();
  }

  /** What a heatmap of layers does at a click on a name, and at one that asks for another tab. */
  get ofHeatmap() {
    return {
      onName: (/** @type {Row} */ row) => this.open(layerOf(row)),
      onAside: (/** @type {Row} */ row, /** @type {number | null} */ step) => {
        const query = Object.fromEntries(new URLSearchParams(written({ ...layerOf(row), step })));
        const address = added(this.page.address("layer", query), sharedOf(this.page));
        globalThis.open(new URL(address, document.baseURI), "_blank", "noopener");
      },
    };
  }
}

/** @param {any} row of a heatmap @returns {Layer} */
export function layerOf({ module, kind, call, phase }) {
  return { module, kind, call: call || 0, phase: phase || "train" };
}

/** The layer to whose page a link leads. @param {string} href @param {Page} page */
function layerIn(href, page) {
  const [path, query = ""] = href.split("#")[0].split("?");
  if (path !== page.address("layer")) return null;
  const layer = read(new URLSearchParams(query));
  // The step of a page that is held is in its links, too, and may change.
  return layer && page.follow.held !== null ? { ...layer, step: null } : layer;
}

/** @param {URLSearchParams} query as that of the page Layer @returns {Layer | null} */
function read(query) {
  const module = query.get("module");
  if (module === null) return null;
  const [call, step] = ["call", "step"].map((name) => /^\d{1,15}$/.exec(query.get(name) ?? "")?.[0] ?? null);
  return {
    module,
    kind: query.get("kind") ?? "",
    index: query.get("index") ?? "",
    call: Number(call),
    phase: query.get("phase") === "eval" ? "eval" : "train",
    step: step === null ? null : Number(step),
  };
}

/** @param {Layer} layer */
function written({ module, kind, index = "", call, phase, step = null }) {
  const query = { kind, index, call: call || "", phase: phase === "train" ? "" : phase, step: step ?? "" };
  const parts = Object.entries(query).filter(([, value]) => value !== "");
  return new URLSearchParams([["module", module], ...parts.map(([name, value]) => [name, String(value)])]).toString();
}
