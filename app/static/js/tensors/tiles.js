// @ts-check
/** A tensor as tiles on one canvas: feature maps, attention heads, a matrix. Point at a cell to read it. */

import { paletteOf } from "../canvas/colors.js";
import { CanvasChart, penOf, pixelRatio } from "../canvas/index.js";
import { colors } from "../theme.js";
import { cellAt, cornerOf, isCausal, layoutOf, pixelsOf, rangeOf } from "./layout.js";
import { drawNames, edgesOf } from "./names.js";

const HEIGHT = 520;

/** @typedef {{tile: number, row: number, column: number}} Cell */
/** `shared`: one scale for all tiles; `whole`: from the minimum to the maximum; `names`: of the rows and the columns.
 * @typedef {{values: Float32Array | Float64Array, shape: [number, number, number], shared: boolean, whole?: boolean,
 *   range?: ReturnType<typeof rangeOf>, names?: {rows: string[], columns: string[]}}} Picture */

export class Tiles extends CanvasChart {
  /** @type {Picture | null} */
  picture = null;
  /** @type {import("./layout.js").Layout | null} */
  layout = null;
  /** @type {ReturnType<typeof rangeOf>[]} */
  ranges = [];
  /** @type {Cell | null} */
  at = null;
  causal = false;
  /** Where names of rows and columns are. */
  edges = { left: 0, top: 0 };
  /** The picture without the cursor. */
  #drawn = document.createElement("canvas");

  /** @param {import("../page.js").Page} page @param {HTMLElement} element
   * @param {{title: string, height?: number, onPoint: (cell: Cell | null, x: number, y: number) => void}} options */
  constructor(page, element, { title, height = HEIGHT, onPoint }) {
    super(page, element, { label: `${title}: arrow keys move the cursor`, name: "tiles" });
    this.tall = height;
    this.onPoint = onPoint;
  }

  /** @param {Picture} picture */
  show(picture) {
    this.picture = picture;
    this.causal = isCausal(picture.values, picture.shape);
    const [tiles, rows, columns] = picture.shape;
    const part = (/** @type {number} */ tile) =>
      picture.values.subarray(tile * rows * columns, (tile + 1) * rows * columns);
    this.ranges = picture.range
      ? [picture.range]
      : picture.shared
        ? [rangeOf(picture.values, picture.whole)]
        : Array.from({ length: tiles }, (_, tile) => rangeOf(part(tile), picture.whole));
    // Neighboring tiles share their colors: a signed scale for all of them or for none.
    const signed = this.ranges.some((range) => range.signed);
    if (signed)
      this.ranges = this.ranges.map(({ low, high, clipped }) => ({
        low: -Math.max(-low, high),
        high: Math.max(-low, high),
        signed,
        clipped,
      }));
    this.draw();
  }

  /** @override */
  paint() {
    const { canvas, picture } = this;
    const width = /** @type {HTMLElement} */ (canvas.parentElement)?.clientWidth ?? 0;
    if (!picture || width < 20) return;
    const [tiles, rows, columns] = picture.shape;
    const names = tiles === 1 ? picture.names : undefined;
    const measuring = /** @type {CanvasRenderingContext2D} */ (this.#drawn.getContext("2d"));
    this.edges = names ? edgesOf(measuring, names, width) : { left: 0, top: 0 };
    const { left: leftEdge, top: topEdge } = this.edges;
    this.layout = layoutOf(width - leftEdge, this.tall, tiles, rows, columns);
    const height = this.layout.height + topEdge;
    penOf(canvas, width, height);
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    const pen = penOf(this.#drawn, width, height);
    pen.imageSmoothingEnabled = false;
    const small = document.createElement("canvas");
    Object.assign(small, { width: columns, height: rows });
    const palette = paletteOf(this.ranges[0]?.signed);
    for (let tile = 0; tile < tiles; tile += 1) {
      const range = this.ranges[this.ranges.length > 1 ? tile : 0];
      const image = new ImageData(columns, rows);
      new Uint32Array(image.data.buffer).set(
        pixelsOf(picture.values, tile * rows * columns, rows, columns, range, palette, this.causal),
      );
      small.getContext("2d")?.putImageData(image, 0, 0);
      const [left, top] = this.#cornerOf(tile);
      pen.drawImage(small, left, top, this.layout.tileWidth, this.layout.tileHeight);
    }
    if (names) drawNames(pen, names, this.edges, this.layout, [rows, columns]);
    this.#mark();
  }

  /** @param {number} tile @returns {[number, number]} */
  #cornerOf(tile) {
    const [left, top] = cornerOf(/** @type {import("./layout.js").Layout} */ (this.layout), tile);
    return [left + this.edges.left, top + this.edges.top];
  }

  /** Shows the picture with the cursor. */
  #mark() {
    const pen = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.drawImage(this.#drawn, 0, 0);
    pen.scale(pixelRatio(), pixelRatio());
    if (!this.at || !this.layout || !this.picture || this.at.tile >= this.picture.shape[0]) return;
    const [, rows, columns] = this.picture.shape;
    const [left, top] = this.#cornerOf(this.at.tile);
    const [wide, high] = [this.layout.tileWidth / columns, this.layout.tileHeight / rows];
    pen.lineWidth = 1.5;
    for (const [color, by] of /** @type {[string, number][]} */ ([
      [colors().ink, 1.5],
      [colors().paper, 0],
    ])) {
      pen.strokeStyle = color;
      pen.strokeRect(
        left + this.at.column * wide - by,
        top + this.at.row * high - by,
        Math.max(3, wide) + 2 * by,
        Math.max(3, high) + 2 * by,
      );
    }
  }

  /** @param {{clientX: number, clientY: number}} event */
  cellOf(event) {
    const box = this.canvas.getBoundingClientRect();
    return this.layout && this.picture
      ? cellAt(
          this.layout,
          event.clientX - box.left - this.edges.left,
          event.clientY - box.top - this.edges.top,
          this.picture.shape,
        )
      : null;
  }

  /** @override @param {number} x @param {number} y */
  point(x, y) {
    this.#point(this.cellOf({ clientX: x, clientY: y }), x, y);
  }

  /** @override */
  leave() {
    this.#point(null, 0, 0);
  }

  /** @param {Cell | null} cell @param {number} x @param {number} y */
  #point(cell, x, y) {
    this.at = cell;
    this.onPoint(cell, x, y);
    this.page.schedule.soon(this.canvas, () => this.#mark());
  }

  /** @override @param {number} right @param {number} up */
  move(right, up) {
    if (!this.picture || !this.layout) return false;
    const [tiles, rows, columns] = this.picture.shape;
    const from = this.at ?? { tile: 0, row: 0, column: 0 };
    const column = from.column + right;
    // Beyond the edge of a tile is the next tile.
    const tile =
      column >= columns && from.tile + 1 < tiles
        ? from.tile + 1
        : column < 0 && from.tile > 0
          ? from.tile - 1
          : from.tile;
    const inside = tile > from.tile ? 0 : tile < from.tile ? columns - 1 : Math.max(0, Math.min(columns - 1, column));
    const cell = { tile, row: Math.max(0, Math.min(rows - 1, from.row - up)), column: inside };
    const [box, [left, top]] = [this.canvas.getBoundingClientRect(), this.#cornerOf(tile)];
    this.#point(
      cell,
      box.left + left + (cell.column / columns) * this.layout.tileWidth,
      box.top + top + (cell.row / rows) * this.layout.tileHeight,
    );
    return true;
  }
}
