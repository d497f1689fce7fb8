// @ts-check
/** A button with a menu: opened by click or key, walked with the arrows, closed by Escape, a choice, or leaving it. */
import { h, makeButton } from "../dom.js";

/** @typedef {{words: string, action: () => void}} Item */

let made = 0;

export class Menu {
  /** @param {string} words on the button @param {string} label what it is the menu of
   * @param {() => Item[]} items asked for when it opens */
  constructor(words, label, items) {
    made += 1;
    this.items = items;
    this.button = makeButton(words, () => (this.list.hidden ? this.open() : this.close()), {
      class: "button small",
      "aria-haspopup": "menu",
      "aria-expanded": "false",
      "aria-label": `${words}: ${label}`,
      "aria-controls": `menu-${made}`,
    });
    this.list = h("div", {
      class: "menu",
      id: `menu-${made}`,
      role: "menu",
      "aria-label": `${words}: ${label}`,
      hidden: true,
    });
    this.element = h("span", { class: "menu-place" }, this.button, this.list);
    this.element.addEventListener("keydown", (event) => this.#hear(event));
    this.element.addEventListener("focusout", (event) => {
      if (!document.hasFocus()) return; // the whole window lost it
      if (!this.element.contains(/** @type {Node | null} */ (event.relatedTarget))) this.close(false);
    });
  }

  /** @param {string} label what it is the menu of */
  rename(label) {
    const words = `${this.button.textContent}: ${label}`;
    for (const each of [this.button, this.list]) each.setAttribute("aria-label", words);
  }

  open() {
    this.list.replaceChildren(
      ...this.items().map(({ words, action }) =>
        h("button", { type: "button", role: "menuitem", tabindex: "-1", onclick: () => this.#choose(action) }, words),
      ),
    );
    this.list.hidden = false;
    this.button.setAttribute("aria-expanded", "true");
    this.#entries[0]?.focus();
  }

  /** @param {boolean} [back] to the button with the focus */
  close(back = true) {
    if (this.list.hidden) return;
    this.list.hidden = true;
    this.button.setAttribute("aria-expanded", "false");
    if (back) this.button.focus();
  }

  /** @returns {HTMLElement[]} */
  get #entries() {
    return /** @type {HTMLElement[]} */ ([...this.list.children]);
  }

  /** @param {() => void} action */
  #choose(action) {
    this.close();
    action();
  }

  /** @param {KeyboardEvent} event */
  #hear(event) {
    if (this.list.hidden) {
      if (event.key !== "ArrowDown") return;
      this.open();
    } else if (event.key === "Escape") this.close();
    else {
      const entries = this.#entries;
      const at = entries.indexOf(/** @type {HTMLElement} */ (document.activeElement));
      const next = {
        ArrowDown: (at + 1) % entries.length,
        ArrowUp: (at - 1 + entries.length) % entries.length,
        Home: 0,
        End: entries.length - 1,
      }[event.key];
      if (next === undefined) return;
      entries[next].focus();
    }
    event.preventDefault();
    event.stopPropagation();
  }
}
