// @ts-check
/** What the reader points at: one module and one step for all charts of a page. Emits "move" and "pin". */
import { Emitter } from "./events.js";

/** @typedef {{module?: string | null, tap?: number | null, step?: number | null}} Point */

export class Cursor extends Emitter {
  /** @type {Point} */
  point = {};

  /** Moves it; `source` is the chart that did, which need not draw it again.
   * @param {Point} point @param {object} [source] */
  move(point, source) {
    const next = { ...this.point, ...point };
    if (next.module === this.point.module && next.step === this.point.step && next.tap === this.point.tap) return;
    this.point = next;
    this.emit("move", { ...next, source });
  }

  /** Nothing is pointed at. */
  clear() {
    this.move({ module: null, tap: null, step: null });
  }

  /** A click: the reader means this one. @param {Point} point */
  pin(point) {
    this.move(point);
    this.emit("pin", { ...this.point });
  }
}
