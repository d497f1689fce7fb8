// @ts-check
/** A tensor as tiles on one canvas: feature maps, attention heads, a matrix. Point at a cell to read it. */
import { paletteOf } from "../colors.js";
import { h } from "../dom.js";
import { prefs } from "../prefs.js";
import { colors, onTheme } from "../theme.js";
import { cellAt, cornerOf, isCausal, layoutOf, pixelsOf, rangeOf } from "./layout.js";

const HEIGHT = 520;

/** @typedef {{tile: number, row: number, column: number}} Cell */
/** @typedef {{values: Float32Array | Float64Array, shape: [number, number, number], shared: boolean, whole?: boolean, range?: ReturnType<typeof rangeOf>}} Picture `shared`: one scale for all tiles; `whole`: to the very ends */

export class Tiles {
  /** @type {Picture | null} */
  picture = null;
  /** @type {import("./layout.js").Layout | null} */
  layout = null;
  /** @type {ReturnType<typeof rangeOf>[]} */
  ranges = [];
  /** @type {Cell | null} */
  at = null;
  causal = false;
  /** What is shown without what is pointed at. */
  #drawn = document.createElement("canvas");

  /** @param {import("../page.js").Page} page @param {HTMLElement} element
   * @param {{title: string, height?: number, onPoint: (cell: Cell | null, x: number, y: number) => void}} options */
  constructor(page, element, { title, height = HEIGHT, onPoint }) {
    this.page = page;
    this.tall = height;
    this.onPoint = onPoint;
    this.canvas = /** @type {HTMLCanvasElement} */ (
      h("canvas", {
        class: "tiles",
        tabindex: "0",
        role: "application",
        "aria-label": `${title}: arrow keys move the cursor`,
      })
    );
    element.append(this.canvas);
    const again = () => this.draw();
    const sized = new ResizeObserver(again);
    sized.observe(element);
    const undone = [onTheme(again), prefs.on("colors", again)];
    this.close = () => {
      sized.disconnect();
      for (const undo of undone) undo();
      this.canvas.remove();
    };
    this.canvas.addEventListener("pointermove", (event) =>
      this.#point(this.cellOf(event), event.clientX, event.clientY),
    );
    for (const gone of ["pointerleave", "blur"]) this.canvas.addEventListener(gone, () => this.#point(null, 0, 0));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
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

  draw() {
    this.page.schedule.soon(this, () => this.#paint());
  }

  #paint() {
    const { canvas, picture } = this;
    const width = /** @type {HTMLElement} */ (canvas.parentElement)?.clientWidth ?? 0;
    if (!picture || width < 20) return;
    const [tiles, rows, columns] = picture.shape;
    this.layout = layoutOf(width, this.tall, tiles, rows, columns);
    const ratio = Math.min(2, devicePixelRatio || 1);
    Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(this.layout.height * ratio) });
    Object.assign(canvas.style, { width: `${width}px`, height: `${this.layout.height}px` });
    Object.assign(this.#drawn, { width: canvas.width, height: canvas.height });
    const pen = this.#drawn.getContext("2d");
    if (!pen) return;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.imageSmoothingEnabled = false;
    const small = document.createElement("canvas");
    Object.assign(small, { width: columns, height: rows });
    const palette = paletteOf(this.ranges[0]?.signed ? "diverging" : /** @type {any} */ (prefs.get("colors")));
    for (let tile = 0; tile < tiles; tile += 1) {
      const range = this.ranges[this.ranges.length > 1 ? tile : 0];
      const image = new ImageData(columns, rows);
      new Uint32Array(image.data.buffer).set(
        pixelsOf(picture.values, tile * rows * columns, rows, columns, range, palette, this.causal),
      );
      small.getContext("2d")?.putImageData(image, 0, 0);
      const [left, top] = cornerOf(this.layout, tile);
      pen.drawImage(small, left, top, this.layout.tileWidth, this.layout.tileHeight);
    }
    this.#mark();
  }

  /** The picture, and the cell that is pointed at. */
  #mark() {
    const pen = this.canvas.getContext("2d");
    if (!pen || !this.#drawn.width) return;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.drawImage(this.#drawn, 0, 0);
    pen.scale(Math.min(2, devicePixelRatio || 1), Math.min(2, devicePixelRatio || 1));
    if (!this.at || !this.layout || !this.picture || this.at.tile >= this.picture.shape[0]) return;
    const [, rows, columns] = this.picture.shape;
    const [left, top] = cornerOf(this.layout, this.at.tile);
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

  /** The value of a cell. @param {Cell} cell */
  valueOf({ tile, row, column }) {
    const [, rows, columns] = this.picture?.shape ?? [0, 0, 0];
    return this.picture?.values[(tile * rows + row) * columns + column] ?? NaN;
  }

  /** @param {{clientX: number, clientY: number}} event */
  cellOf(event) {
    const box = this.canvas.getBoundingClientRect();
    return this.layout && this.picture
      ? cellAt(this.layout, event.clientX - box.left, event.clientY - box.top, this.picture.shape)
      : null;
  }

  /** @param {Cell | null} cell @param {number} x @param {number} y */
  #point(cell, x, y) {
    this.at = cell;
    this.onPoint(cell, x, y);
    this.page.schedule.soon(this.canvas, () => this.#mark());
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    /** @type {Record<string, [number, number]>} */
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const move = moves[event.key];
    if (!move || !this.picture || !this.layout) return;
    event.preventDefault();
    event.stopPropagation();
    const [tiles, rows, columns] = this.picture.shape;
    const from = this.at ?? { tile: 0, row: 0, column: 0 };
    const size = event.shiftKey ? 10 : 1;
    const column = from.column + move[1] * size;
    // Over the edge of a tile lies the next one.
    const tile =
      column >= columns && from.tile + 1 < tiles
        ? from.tile + 1
        : column < 0 && from.tile > 0
          ? from.tile - 1
          : from.tile;
    const inside = tile > from.tile ? 0 : tile < from.tile ? columns - 1 : Math.max(0, Math.min(columns - 1, column));
    const cell = { tile, row: Math.max(0, Math.min(rows - 1, from.row + move[0] * size)), column: inside };
    const [box, [left, top]] = [this.canvas.getBoundingClientRect(), cornerOf(this.layout, tile)];
    this.#point(
      cell,
      box.left + left + (cell.column / columns) * this.layout.tileWidth,
      box.top + top + (cell.row / rows) * this.layout.tileHeight,
    );
  }
}
