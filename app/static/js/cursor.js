// @ts-check
/** The pointer's position: one module and one step for all charts of a page. Emits "move" and "pin". */
import { Emitter } from "./emitter.js";

/** @typedef {{module?: string | null, tap?: number | null, step?: number | null}} Point */

export class Cursor extends Emitter {
  /** @type {Point} */
  point = {};

  /** Moves the cursor; `source` is the chart that moved it and need not redraw.
   * @param {Point} point @param {object} [source] */
  move(point, source) {
    const next = { ...this.point, ...point };
    if (next.module === this.point.module && next.step === this.point.step && next.tap === this.point.tap) return;
    this.point = next;
    this.emit("move", { ...next, source });
  }

  /** Clears the cursor. */
  clear() {
    this.move({ module: null, tap: null, step: null });
  }

  /** Pins the cursor at a click. @param {Point} point */
  pin(point) {
    this.move(point);
    this.emit("pin", { ...this.point });
  }
}
