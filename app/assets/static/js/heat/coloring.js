// @ts-check
/** The current colors of a heatmap: the range of the shown values, stable under small changes; the scale; the map. */
import { paletteOf } from "../canvas/colors.js";
import { prefs } from "../prefs.js";
import { Range, Scale } from "../scale.js";
import { Painter } from "./paint.js";

const MIN_DECADES = 0.3; // of a relative scale: a factor of two to each side

export class Coloring {
  /** The one that was chosen last; null where the colors are others. @type {Painter | null} */
  painter = null;
  #range = new Range();

  /** Another quantity: the earlier range no longer applies. */
  forget() {
    this.#range.forget();
  }

  /** The painter of now; the same one as long as its colors hold.
   * @param {import("./index.js").Heat} heat @param {import("./grid.js").Grid} grid @param {number} now */
  choose({ kind, range, relative }, grid, now) {
    const shown = relative ? "linear" : kind;
    const found = range ?? this.#range.held(now) ?? this.#range.of(grid.sample(), shown, now);
    const signed = relative || (shown !== "log" && found[0] < 0 && found[1] > 0);
    const most = Math.max(relative ? MIN_DECADES : 0, Math.abs(found[0]), Math.abs(found[1]));
    const scale = signed ? new Scale(shown, -most, most) : new Scale(shown, ...found);
    if (this.painter?.scale.equals(scale)) return this.painter;
    const map = /** @type {import("../canvas/colors.js").MapName} */ (prefs.get("colors"));
    this.painter = new Painter(scale, paletteOf(signed ? "diverging" : map));
    return this.painter;
  }
}
