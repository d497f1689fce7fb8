// @ts-check
/** The pointer on the timeline: a click is a step, a drag is a range, a handle is moved. A finger does the same. */

import { hideTip, showTip } from "../canvas/tip.js";
import { count, stepWords } from "../format.js";

const DRAG_PX = 5; // less is a click

/** @typedef {import("./index.js").Which} Which */

export class Drag {
  /** @type {{id: number, x: number, from: number, which: Which | null, moved: boolean} | null} */
  #drag = null;

  /** @param {import("./index.js").Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    const track = /** @type {HTMLElement} */ (timeline.track);
    track.addEventListener("pointerdown", (event) => this.#press(event));
    track.addEventListener("pointermove", (event) => this.#move(event));
    track.addEventListener("pointerup", (event) => this.#release(event));
    track.addEventListener("pointercancel", () => this.#cancel());
    track.addEventListener("pointerleave", () => this.#leave());
    track.addEventListener("keydown", (event) => event.key === "Escape" && this.#drag && this.#cancel(), true);
  }

  /** @param {PointerEvent} event */
  #press(event) {
    const target = /** @type {Element} */ (event.target);
    if (event.button !== 0 || target.closest("a")) return;
    const which = /** @type {Which | undefined} */ (
      /** @type {HTMLElement | null} */ (target.closest("[data-handle]"))?.dataset.handle
    );
    const from = this.timeline.stepAt(event.clientX);
    this.#drag = { id: event.pointerId, x: event.clientX, from, which: which ?? null, moved: false };
    this.timeline.track.setPointerCapture(event.pointerId);
    if (!which) event.preventDefault(); // no text is selected
  }

  /** @param {PointerEvent} event */
  #move(event) {
    const { timeline } = this;
    const step = timeline.stepAt(event.clientX);
    const drag = this.#drag;
    if (drag === null || drag.id !== event.pointerId) return this.#point(event, step);
    drag.moved ||= Math.abs(event.clientX - drag.x) > DRAG_PX;
    if (!drag.moved) return;
    // The page follows when the pointer is released: each step between would be asked for in vain.
    const range = drag.which === "step" ? undefined : this.#rangeOf(drag.which, drag.from, step);
    timeline.draft = range ? { range } : { step };
    timeline.show();
    if (!range) timeline.page.cursor.move({ step }, timeline);
    showTip(range ? stepWords(...range) : `step ${count(step)}`, event.clientX, this.#below);
  }

  /** @param {Which | null} which @param {number} from @param {number} step @returns {[number, number]} */
  #rangeOf(which, from, step) {
    const other = which === "from" ? this.timeline.page.follow.span?.[1] : this.timeline.page.follow.span?.[0];
    const start = which ? (other ?? from) : from;
    return [Math.min(start, step), Math.max(start, step)];
  }

  /** @param {PointerEvent} event @param {number} step */
  #point(event, step) {
    if (event.pointerType === "touch") return;
    this.timeline.page.cursor.move({ step }, this.timeline);
    const mark = /** @type {Element} */ (event.target).closest("a");
    const words = mark?.getAttribute("aria-label");
    showTip(words ?? `step ${count(step)}`, event.clientX, this.#below);
  }

  get #below() {
    return this.timeline.track.getBoundingClientRect().bottom;
  }

  /** @param {PointerEvent} event */
  #release(event) {
    const { timeline } = this;
    const drag = this.#drag;
    this.#drag = null;
    hideTip();
    if (drag === null) return;
    const { range, step } = timeline.draft ?? {};
    timeline.draft = null;
    if (range && range[1] > range[0]) timeline.page.follow.zoom(...range);
    else if (step !== undefined) timeline.page.follow.hold(step);
    else if (!drag.moved && drag.which === null) timeline.page.follow.hold(timeline.stepAt(event.clientX));
    timeline.show();
  }

  #cancel() {
    this.#drag = null;
    this.timeline.draft = null;
    hideTip();
    this.timeline.show();
  }

  #leave() {
    if (this.#drag) return;
    hideTip();
    this.timeline.page.cursor.move({ step: null }, this.timeline);
  }
}
