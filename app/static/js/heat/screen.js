// @ts-check
/** The elements of a heatmap, and when what of it is drawn: cells that are new, all cells, or all that stands around
 * them. */

import { paletteOf } from "../canvas/colors.js";
import { fitCanvas, reportDrawn } from "../canvas/index.js";
import { h } from "../dom.js";
import { prefs } from "../prefs.js";
import { Range, Scale } from "../scale.js";
import { colors, onTheme } from "../theme.js";
import { Grid } from "./grid.js";
import { layOut, ROW_PX } from "./layout.js";
import { widthOf } from "./marks.js";
import { Painter } from "./paint.js";
import { drawScene, Texture } from "./picture.js";
import { Pointing } from "./pointing.js";
import { relativeTo, usualOf } from "./relative.js";

const RENEWED = 8; // how often in a window the medians of the rows are computed again

export class Screen {
  grid = new Grid();
  texture = new Texture();
  /** @type {import("./picture.js").Scene | null} the scene drawn last */
  scene = null;
  /** @type {import("./layout.js").Layout | null} */
  layout = null;
  #coloring = new Coloring();
  #relative = { at: 0, convert: /** @type {((bits: Uint32Array) => Uint32Array) | null} */ (null) };
  #news = false;

  /** @param {import("../page.js").Page} page @param {import("./index.js").Heat} heat @param {HTMLElement} plot */
  constructor(page, heat, plot) {
    this.page = page;
    this.heat = heat;
    this.plot = plot;
    const { noun } = heat;
    const keys = `Arrow keys move between ${noun}s and steps, Enter selects the ${noun}, plus and minus zoom.`;
    const words = `${heat.options.title}. ${keys}`;
    this.spacer = h("div", { class: "heat-spacer" });
    this.pad = h("div", { class: "heat-pad", role: "application", tabindex: "0", "aria-label": words }, this.spacer);
    this.picture = /** @type {HTMLCanvasElement} */ (h("canvas", { class: "heat-picture" }));
    this.over = /** @type {HTMLCanvasElement} */ (h("canvas", { class: "heat-over" }));
    plot.classList.add("heat");
    plot.replaceChildren(this.picture, this.over, this.pad);
    this.context = /** @type {CanvasRenderingContext2D} */ (this.picture.getContext("2d"));
    this.pointing = new Pointing(page, heat, this);
    new ResizeObserver(() => this.arrange()).observe(plot);
    this.pad.addEventListener("scroll", () => this.arrange());
    page.schedule.watch(plot, () => this.soon());
    onTheme(() => this.#recolor());
    prefs.on("colors", () => this.#recolor());
  }

  soon() {
    if (this.page.schedule.isSeen(this.plot)) this.page.schedule.soon(this, () => this.draw());
    this.heat.card?.soon();
  }

  /** Rows are elsewhere, or there is another room for them. */
  arrange() {
    this.layout = null;
    this.soon();
  }

  /** Marks all cells as outdated. */
  forget() {
    this.grid.forget();
    this.#relative.convert = null;
    this.soon();
  }

  forgetRange() {
    this.#coloring.forget();
  }

  /** @param {[number, number] | null} steps null: any */
  changed(steps) {
    if (steps === null) this.forget();
    else this.grid.changed(steps);
    this.#news = true;
    this.soon();
  }

  #recolor() {
    this.#coloring.painter = null;
    this.soon();
  }

  draw() {
    const began = performance.now();
    const { heat, grid, texture } = this;
    const { columns, span } = heat;
    if (columns === null || span === null || !this.plot.clientWidth) return;
    const ratio = globalThis.devicePixelRatio || 1;
    const layout = this.layout ?? this.#layOut(ratio);
    grid.show(span[0], span[1], Math.floor(layout.plot.w * Math.min(1, ratio)));
    const fresh = grid.fill(columns, this.#convert(columns));
    const before = this.#coloring.painter;
    const painter = this.#coloring.choose(heat, grid, began);
    if (painter !== before && grid.have) texture.paint(grid, painter, grid.have);
    else if (fresh) texture.paint(grid, painter, fresh);
    const { rows, grouped, relative, words } = heat;
    this.scene = {
      layout,
      span,
      grid,
      painter,
      rows,
      grouped,
      relative,
      words,
      lumped: heat.options.lumped ?? false,
      page: colors(),
      clock: this.page.clock,
    };
    drawScene(this.context, texture, this.scene, ratio);
    this.pointing.draw();
    if (this.#news && columns.length) reportDrawn("heat", columns.last(columns.length - 1), performance.now() - began);
    this.#news = false;
  }

  /** @param {number} ratio */
  #layOut(ratio) {
    const { visible: order, pinned, fit } = this.heat;
    const { clientWidth, clientHeight } = this.plot;
    for (const canvas of [this.picture, this.over]) fitCanvas(canvas, clientWidth, clientHeight, ratio);
    const layout = layOut(
      clientWidth,
      clientHeight,
      order,
      pinned,
      fit,
      Math.round(this.pad.scrollTop / ROW_PX),
      widthOf(this.heat.rows),
      Math.min(1, ratio),
    );
    const more = layout.content - layout.plot.h;
    this.spacer.style.height = `${clientHeight + more}px`;
    this.pad.classList.toggle("scrolls", more > 0);
    this.grid.shape(layout.starts, layout.shown);
    this.layout = layout;
    return layout;
  }

  /** @param {import("../canvas/columns.js").Columns} columns */
  #convert(columns) {
    if (!this.heat.relative) return null;
    const held = this.#relative;
    if (held.convert === null || columns.version - held.at > columns.capacity / RENEWED) {
      Object.assign(held, { at: columns.version, convert: relativeTo(usualOf(columns)) });
      this.grid.forget();
    }
    return held.convert;
  }

  /** A copy of the picture, on a canvas of its own. @returns {HTMLCanvasElement} */
  copy() {
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width: this.picture.width, height: this.picture.height });
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.fillStyle = colors().card;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(this.picture, 0, 0);
    return canvas;
  }
}

const MIN_DECADES = 0.3; // of a relative scale: a factor of two to each side

/** The current colors: the range of the shown values, stable under small changes; the scale; the map. */
class Coloring {
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
    this.painter = new Painter(scale, paletteOf(signed));
    return this.painter;
  }
}
