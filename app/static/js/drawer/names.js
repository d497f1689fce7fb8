/** The names of layers open the drawer, which is loaded when it is opened first. */
import { byId, onClick } from "../dom.js";
import { loadOpened } from "../popup.js";
import { added, sharedOf } from "../timeline/links.js";

/** @import { Drawer, Layer } from "./drawer.js"
 * @import { Row } from "../heat/rows.js"
 * @import { Page } from "../page.js" */

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

/** The drawer before and after it is loaded. */
export class LateDrawer {
  /** @type {Drawer | null} */
  #drawer = null;
  /** @type {Promise<void> | null} */
  #loading = null;
  /** What it shows once it is there, and what gets the focus back. @type {Parameters<Drawer["open"]> | null} */
  #wanted = null;
  #takesFocus = false;

  /** @param {Page} page @param {() => void} onClose the reader closed it */
  constructor(page, onClose) {
    this.page = page;
    this.onClose = onClose;
  }

  get closed() {
    return this.#drawer?.closed ?? this.#wanted === null;
  }

  /** @param {Parameters<Drawer["open"]>} wanted */
  open(...wanted) {
    this.#wanted = wanted;
    if (this.#drawer) this.#drawer.open(...wanted);
    else this.#loading ??= this.#load();
  }

  close() {
    this.#wanted = null;
    this.#drawer?.close();
  }

  focus() {
    this.#takesFocus = true;
    this.#drawer?.focus();
  }

  async #load() {
    const part = await loadOpened(() => import("./drawer.js"));
    this.#loading = null; // another click tries again
    if (!part) return;
    this.#drawer = new part.Drawer(this.page, byId("drawer"), this.onClose);
    if (!this.#wanted) return;
    this.#drawer.open(...this.#wanted);
    if (this.#takesFocus) this.#drawer.focus();
  }
}

/** The drawer of a page that has no other use for a click on a layer. */
export class LayerNames {
  /** What was clicked. @type {HTMLElement | null} */
  #from = null;

  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    this.drawer = new LateDrawer(page, () => page.state.set({ drawer: "" }));
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
    this.drawer.focus();
    from?.scrollIntoView({ block: "nearest" }); // a narrower page may have moved it
  }

  /** The path of the layer that is shown; null if there is none. */
  get module() {
    return new URLSearchParams(this.page.state.get("drawer")).get("module");
  }

  #show() {
    const layer = read(new URLSearchParams(this.page.state.get("drawer")));
    if (layer) this.drawer.open(layer, this.#from);
    else this.drawer.close();
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
