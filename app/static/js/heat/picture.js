// @ts-check
/** Brings cells and marks onto a canvas: a texture holds the cells' colours in a ring, and is stretched to the plot. */
import { xOf } from "./layout.js";
import { barMarks, legendMarks, rowMarks, stepMarks } from "./marks.js";
import { drawMarks } from "./pen.js";

/** @typedef {import("./grid.js").Grid} Grid */
/** @typedef {import("./layout.js").Layout} Layout */

/**
 * @typedef {object} Scene what a picture shows
 * @property {Layout} layout
 * @property {[number, number]} span
 * @property {Grid} grid
 * @property {import("./paint.js").Painter} painter
 * @property {readonly import("./rows.js").Row[]} rows
 * @property {boolean} grouped
 * @property {boolean} relative
 * @property {string} words what the colours are of
 * @property {Record<string, string>} page colours
 */

/** All that stands around the cells. @param {Scene} scene */
export function marksOf({ layout, span, painter, rows, grouped, relative, words, page }) {
  return [
    ...rowMarks(layout, rows, grouped, page),
    ...stepMarks(layout, span, page),
    ...barMarks(layout, painter.scale, painter.palette, relative, page),
    ...legendMarks(layout, words, painter.palette, page),
  ];
}

export class Texture {
  canvas = document.createElement("canvas");
  #context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));

  /** Colours cells anew. @param {Grid} grid @param {import("./paint.js").Painter} painter @param {[number, number]} cells */
  paint(grid, painter, [from, to]) {
    if (!grid.height) return;
    if (this.canvas.width !== grid.ring || this.canvas.height !== grid.height) {
      this.canvas.width = grid.ring;
      this.canvas.height = grid.height;
    }
    for (const [first, last] of pieces(from, to, grid.ring)) {
      const image = new ImageData(last - first + 1, grid.height);
      painter.paint(grid, first, last, new Uint32Array(image.data.buffer));
      this.#context.putImageData(image, first % grid.ring, 0);
    }
  }

  /** Stretches what is shown to the plot. @param {CanvasRenderingContext2D} context @param {Scene} scene @param {number} ratio device pixels of a CSS pixel */
  blit(context, { layout, grid, span }, ratio) {
    const { plot, bands } = layout;
    if (!grid.height) return;
    context.save();
    context.beginPath();
    context.rect(plot.x, plot.y, plot.w, plot.h);
    context.clip();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.imageSmoothingEnabled = false;
    for (const [first, last] of pieces(...grid.shown, grid.ring)) {
      const [left, right] = [first, last + 1].map((cell) => Math.round(xOf(layout, span, cell * grid.per) * ratio));
      for (const band of bands) {
        const [top, bottom] = [band.y, band.y + band.h].map((y) => Math.round(y * ratio));
        context.drawImage(this.canvas, first % grid.ring, band.from, last - first + 1, band.to - band.from, left, top, right - left, bottom - top);
      }
    }
    context.restore();
  }
}

/** Cells in runs that do not go over the ring's end. @param {number} from @param {number} to @param {number} ring @returns {[number, number][]} */
function pieces(from, to, ring) {
  const found = /** @type {[number, number][]} */ ([]);
  for (let first = from; first <= to;) {
    const last = Math.min(to, first + ring - 1 - (first % ring));
    found.push([first, last]);
    first = last + 1;
  }
  return found;
}

/** Draws a whole picture. @param {CanvasRenderingContext2D} context @param {Texture} texture @param {Scene} scene @param {number} ratio */
export function drawScene(context, texture, scene, ratio) {
  const { width, height } = scene.layout;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  texture.blit(context, scene, ratio);
  drawMarks(context, marksOf(scene));
}
