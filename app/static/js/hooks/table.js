/** The table of modules, which the server renders: its boxes, which edit the patterns of the form, and its types. */
import { byId } from "../dom.js";
import { toast } from "../popup.js";
import { ROOT } from "../vocabulary.js";

/** @import { Capture } from "./capture.js"
 * @import { Page } from "../page.js" */

export class ModuleTable {
  /** @param {Page} page @param {HTMLElement} element the part @param {Capture | null} capture */
  constructor(page, element, capture) {
    this.page = page;
    this.element = element;
    this.capture = capture;
    element.addEventListener("renewed", () => this.showWatched());
    element.addEventListener("change", ({ target }) => {
      const control = /** @type {HTMLInputElement} */ (target);
      if (control.id === "module-type") this.#chooseType(control.value);
      else if (control.matches(".box")) void this.#watch(control);
    });
    this.showWatched();
  }

  /** Shows which modules the form's patterns select. */
  showWatched() {
    for (const box of /** @type {NodeListOf<HTMLInputElement>} */ (this.element.querySelectorAll(".box"))) {
      const [watched, total] = [this.#watchedIn(box), Number(box.dataset.total)];
      Object.assign(box, { checked: watched === total, indeterminate: watched > 0 && watched < total });
    }
  }

  /** @param {HTMLElement} box */
  #watchedIn({ dataset: { members = "[]", total, whole } }) {
    return this.capture?.watched(JSON.parse(members), Number(total), whole === "true") ?? 0;
  }

  /** Switches the modules of a row on or off in the form. @param {HTMLInputElement} box */
  async #watch(box) {
    const { capture } = this;
    if (!capture) return;
    await capture.known; // a switch before that would go the wrong way
    const { members = "[]", total, whole } = box.dataset;
    const on = this.#watchedIn(box) !== Number(total);
    const blocked = await capture.switch({ paths: JSON.parse(members), whole: whole === "true", on });
    const name = box.closest("tr")?.dataset.path || ROOT;
    const words = `${name} is still excluded by ${blocked}. Remove that pattern from Exclude.`;
    if (blocked) toast(words, { kind: "error" });
    else this.page.announce(byId("dry-run").textContent ?? "");
    this.showWatched();
  }

  /** The type is a term of the search, so that there is one filter, not two. @param {string} type */
  #chooseType(type) {
    const { state } = this.page;
    const others = state
      .get("f")
      .split(/\s+/)
      .filter((/** @type {string} */ term) => term && !term.startsWith("type:"));
    state.set({ f: [...others, ...(type ? [`type:${type}`] : [])].join(" ") });
  }
}
