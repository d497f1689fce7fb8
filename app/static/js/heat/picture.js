// @ts-check
/** Brings cells and marks onto a canvas: a texture holds the cells' colors in a ring, and is stretched to the plot. */
import { xOf } from "./layout.js";
import { barMarks, legendMarks, rowMarks, stepMarks } from "./marks.js";
import { drawMarks } from "./pen.js";

const HATCH_PX = 6;

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
 * @property {string} words what the colors are of
 * @property {Record<string, string>} page colors
 * @property {boolean} lumped whether NaN and infinities are one kind
 * @property {import("../timeline/clock.js").Clock} [clock]
 */

/** All that stands around the cells. @param {Scene} scene */
export function marksOf({ layout, span, painter, rows, grouped, relative, words, page, lumped, clock }) {
  return [
    ...rowMarks(layout, rows, grouped, page),
    ...stepMarks(layout, span, page, clock),
    ...barMarks(layout, painter.scale, painter.palette, relative, page),
    ...legendMarks(layout, words, painter.palette, page, lumped),
  ];
}

export class Texture {
  canvas = document.createElement("canvas");
  #context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));

  /** Repaints cells.
   * @param {Grid} grid @param {import("./paint.js").Painter} painter @param {[number, number]} cells */
  paint(grid, painter, [from, to]) {
    if (!grid.height) return;
    if (this.canvas.width !== grid.ring || this.canvas.height !== grid.height) {
      this.canvas.width = grid.ring;
      this.canvas.height = grid.height;
    }
    for (const [first, last] of pieces(from, to, grid.ring)) {
      const [image, hatch] = [0, 1].map(() => new ImageData(last - first + 1, grid.height));
      const [pixels, lines] = [image, hatch].map(({ data }) => new Uint32Array(data.buffer));
      const hatched = painter.paint(grid, first, last, pixels, lines);
      this.#context.putImageData(image, first % grid.ring, 0);
      if (hatched || this.#hatched) this.#hatch(grid).putImageData(hatch, first % grid.ring, 0);
    }
  }

  /** @type {CanvasRenderingContext2D | null} the colors of hatches, cell by cell; made when the first one is needed */
  #hatched = null;

  /** @param {Grid} grid */
  #hatch(grid) {
    this.#hatched ??= /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
    const { canvas } = this.#hatched;
    if (canvas.width !== grid.ring || canvas.height !== grid.height)
      Object.assign(canvas, { width: grid.ring, height: grid.height });
    return this.#hatched;
  }

  /** Stretches the shown part to the plot.
   * @param {CanvasRenderingContext2D} context @param {Scene} scene @param {number} ratio device pixels of a CSS pixel
   */
  blit(context, { layout, grid, span }, ratio) {
    const { plot } = layout;
    if (!grid.height) return;
    context.save();
    context.beginPath();
    context.rect(plot.x, plot.y, plot.w, plot.h);
    context.clip();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.imageSmoothingEnabled = false;
    this.#stretch(context, this.canvas, { layout, grid, span }, ratio);
    if (this.#hatched)
      context.drawImage(this.#lines(this.#hatched.canvas, { layout, grid, span }, context.canvas, ratio), 0, 0);
    context.restore();
  }

  /** The hatches as lines of one width: drawn in the screen's pixels, for a stretched pattern shows stripes that mean
   * nothing.
   * @param {HTMLCanvasElement} cells @param {Pick<Scene, "layout" | "grid" | "span">} scene
   * @param {HTMLCanvasElement} like @param {number} ratio */
  #lines(cells, scene, like, ratio) {
    const canvas = Object.assign(document.createElement("canvas"), { width: like.width, height: like.height });
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.imageSmoothingEnabled = false;
    this.#stretch(context, cells, scene, ratio);
    context.globalCompositeOperation = "destination-in";
    context.fillStyle = diagonals(context, ratio);
    context.fillRect(0, 0, canvas.width, canvas.height);
    return canvas;
  }

  /** @param {CanvasRenderingContext2D} context @param {HTMLCanvasElement} cells
   * @param {Pick<Scene, "layout" | "grid" | "span">} scene @param {number} ratio */
  #stretch(context, cells, { layout, grid, span }, ratio) {
    const { bands } = layout;
    for (const [first, last] of pieces(...grid.shown, grid.ring)) {
      const [left, right] = [first, last + 1].map((cell) => Math.round(xOf(layout, span, cell * grid.per) * ratio));
      for (const band of bands) {
        const [top, bottom] = [band.y, band.y + band.h].map((y) => Math.round(y * ratio));
        context.drawImage(
          cells,
          first % grid.ring,
          band.from,
          last - first + 1,
          band.to - band.from,
          left,
          top,
          right - left,
          bottom - top,
        );
      }
    }
  }
}

/** @param {CanvasRenderingContext2D} context @param {number} ratio @returns {CanvasPattern | string} */
function diagonals(context, ratio) {
  const size = Math.round(HATCH_PX * ratio);
  const canvas = Object.assign(document.createElement("canvas"), { width: size, height: size });
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.lineWidth = ratio;
  for (const shift of [-size, 0, size]) {
    pen.moveTo(shift, size);
    pen.lineTo(shift + size, 0);
  }
  pen.stroke();
  return context.createPattern(canvas, "repeat") ?? "transparent";
}

/** Cells in runs that do not go over the ring's end.
 * @param {number} from @param {number} to @param {number} ring @returns {[number, number][]} */
function pieces(from, to, ring) {
  const found = /** @type {[number, number][]} */ ([]);
  for (let first = from; first <= to; ) {
    const last = Math.min(to, first + ring - 1 - (first % ring));
    found.push([first, last]);
    first = last + 1;
  }
  return found;
}

/** Draws a whole picture.
 * @param {CanvasRenderingContext2D} context @param {Texture} texture @param {Scene} scene @param {number} ratio */
export function drawScene(context, texture, scene, ratio) {
  const { width, height } = scene.layout;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  texture.blit(context, scene, ratio);
  drawMarks(context, marksOf(scene));
}
