/** A tensor as tiles on one canvas: feature maps, attention heads, a matrix. Point at a cell to read it. */
import { CanvasChart, penOf, pixelRatio } from "../canvas/chart.js";
import { colorOf, makeBar, paintBar, paletteOf, swatch } from "../canvas/colors.js";
import { number } from "../format.js";
import { fitted } from "../paths.js";
import { evenTicks } from "../scale.js";
import { colors } from "../theme.js";

/** @import { SnapshotNames } from "../answers.js"
 * @import { Palette } from "../canvas/colors.js"
 * @import { Page } from "../page.js" */

/** @typedef {Pick<SnapshotNames, "axes" | "tokens" | "shared" | "labels" | "why" | "origin">} Names */

/** @typedef {{across: number, tileWidth: number, tileHeight: number, gap: number, head: number, width: number, height:
 * number}} Layout `head` is the room above each tile for its name */

const MIN_TILE = 48; // pixels of a small tile, in which patterns can still be read
const GAP = 8;

const STRETCHED = 2; // a matrix that is longer is stretched to the width, with cells that aren't square
const ROW_PX = 14; // of a stretched matrix, at least, as long as there is room

/** A matrix as large as its place. @param {number} width @param {number} most @param {number} rows
 * @param {number} columns @returns {Layout} */
function alone(width, most, rows, columns) {
  const aspect = rows / Math.max(1, columns);
  const isSquare = aspect <= STRETCHED && aspect >= 1 / STRETCHED;
  const tileWidth = isSquare ? Math.min(width, Math.floor(most / aspect)) : width;
  const least = isSquare ? 4 : Math.min(most, rows * ROW_PX);
  const tileHeight = Math.max(least, Math.min(most, Math.round(tileWidth * aspect)));
  return { across: 1, tileWidth, tileHeight, gap: 0, head: 0, width, height: tileHeight };
}

/** Tiles in rows: as large as they can be, so that all fit into the height where that leaves them readable.
 * @param {number} width @param {number} most the height that is wanted @param {number} tiles @param {number} rows
 * @param {number} columns @param {{head?: number, across?: number}} [how] `across` tiles are in a row, if it is given
 * @returns {Layout} */
export function layoutOf(width, most, tiles, rows, columns, { head = 0, across: fixed = 0 } = {}) {
  if (tiles === 1 && !fixed) return alone(width, most, rows, columns);
  const aspect = Math.min(8, Math.max(1 / 8, rows / Math.max(1, columns)));
  const gap = tiles > 1 ? GAP : 0;
  let chosen = null;
  for (let across = fixed || 1; across <= (fixed || tiles); across += 1) {
    const tileWidth = Math.floor((width - gap * (across - 1)) / across);
    if (chosen && tileWidth < MIN_TILE) break;
    const fitted = Math.min(tileWidth, Math.floor(most / aspect));
    const tileHeight = Math.max(4, Math.round(fitted * aspect));
    const lines = Math.ceil(tiles / across);
    chosen = {
      across,
      tileWidth: Math.max(4, fitted),
      tileHeight,
      gap,
      head,
      width,
      height: lines * (tileHeight + head) + (lines - 1) * gap,
    };
    if (chosen.height <= most) break;
  }
  return /** @type {Layout} */ (chosen ?? { across: 1, tileWidth: width, tileHeight: 4, gap, head, width, height: 4 });
}

/** Returns the corner of a tile. @param {Layout} layout @param {number} tile @returns {[number, number]} */
export function cornerOf({ across, tileWidth, tileHeight, gap, head = 0 }, tile) {
  return [(tile % across) * (tileWidth + gap), Math.floor(tile / across) * (tileHeight + head + gap) + head];
}

/** The cell at a point; null between tiles. @param {Layout} layout @param {number} x @param {number} y @param {[number,
 * number, number]} shape tiles, rows, columns */
export function cellAt(layout, x, y, [tiles, rows, columns]) {
  const [at, line] = [
    Math.floor(x / (layout.tileWidth + layout.gap)),
    Math.floor(y / (layout.tileHeight + (layout.head ?? 0) + layout.gap)),
  ];
  const tile = line * layout.across + at;
  if (x < 0 || y < 0 || at >= layout.across || tile >= tiles) return null;
  const [left, top] = cornerOf(layout, tile);
  const [column, row] = [
    Math.floor(((x - left) / layout.tileWidth) * columns),
    Math.floor(((y - top) / layout.tileHeight) * rows),
  ];
  return row >= 0 && row < rows && column < columns ? { tile, row, column } : null;
}

const CLIPPED = 0.005; // of the values, at each end: one outlier must not make all others one color

/** Returns the range of colors. That of signed values is as far below zero as above.
 * @param {ArrayLike<number>} values @param {boolean} [whole] to the very ends @returns {{low: number, high: number,
 * signed: boolean, clipped: [boolean, boolean]}} `clipped`: whether values lie beyond its ends */
export function rangeOf(values, whole = false) {
  const stride = Math.max(1, Math.floor(values.length / 50000));
  const finite = [];
  let [least, most] = [Infinity, -Infinity];
  for (let place = 0; place < values.length; place += 1) {
    const value = values[place];
    if (!Number.isFinite(value)) continue;
    least = Math.min(least, value);
    most = Math.max(most, value);
    if (place % stride === 0) finite.push(value);
  }
  if (least > most) return { low: 0, high: 1, signed: false, clipped: [false, false] };
  const signed = least < 0;
  const sorted = Float64Array.from(finite.length ? finite : [least, most], (value) =>
    signed ? Math.abs(value) : value,
  ).sort();
  const at = (/** @type {number} */ share) => sorted[Math.round(share * (sorted.length - 1))];
  const edge = Math.max(-least, most);
  if (signed) {
    const high = whole ? edge : at(1 - 2 * CLIPPED) || edge;
    return { low: -high, high, signed, clipped: [-high > least, high < most] };
  }
  const [low, high] = whole ? [least, most] : [at(CLIPPED), at(1 - CLIPPED)];
  if (high > low) return { low, high, signed, clipped: [low > least, high < most] };
  return most > least
    ? { low: least, high: most, signed, clipped: [false, false] }
    : { low: Math.min(0, least), high: most || 1, signed, clipped: [false, false] };
}

/** Whether all above the diagonal of every tile is zero, and not all else: a mask that lets no position see later ones.
 * @param {ArrayLike<number>} values @param {[number, number, number]} shape */
export function isCausal(values, [tiles, rows, columns]) {
  if (rows !== columns || rows < 3) return false;
  let below = false;
  for (let place = 0; place < tiles * rows * columns; place += 1) {
    const [row, column] = [Math.floor(place / columns) % rows, place % columns];
    if (column > row && values[place] !== 0) return false;
    below ||= column < row && values[place] !== 0;
  }
  return below;
}

/** The pixels of one tile, a pixel for each cell. @param {ArrayLike<number>} values @param {number} start @param
 * {number} rows @param {number} columns @param {{low: number, high: number}} range @param {Palette} palette @param
 * {boolean} causal @returns {Uint32Array} */
export function pixelsOf(values, start, rows, columns, range, palette, causal) {
  const scale = 255 / (range.high - range.low || 1);
  return Uint32Array.from({ length: rows * columns }, (_, place) => {
    const [row, column] = [Math.floor(place / columns), place % columns];
    if (causal && column > row) return palette.missing;
    const value = values[start + place];
    const level = Math.max(0, Math.min(255, Math.round((value - range.low) * scale)));
    return colorOf(palette, value, level, (row + column) % 4 === 0);
  });
}

const FONT = "11px system-ui, sans-serif";
const LINE = 12; // pixels of a name across
const WIDEST = 110;
const NAME_GAP = 4;

/** @type {Names} */
export const NONE = { axes: [], tokens: [], shared: false, labels: [], why: "", origin: "" };

/** Returns the distance between two names that have room. Pure. @param {number} size pixels of a cell */
export function strideOf(size) {
  return Math.max(1, Math.ceil(LINE / Math.max(size, 1e-9)));
}

/** The names of a sample's positions. Pure. @param {Names} names @param {number} sample */
function tokensOf(names, sample) {
  return names.tokens[names.shared ? 0 : sample] ?? [];
}

/** What the indices of a cell are called: "cat.png: the \u2192 cat"; a cell that stands for several has no tokens.
 * Pure. @param {Names} names @param {string[]} indices of each dimension */
export function wordsAt(names, indices) {
  const [sample] = indices;
  const tokens = tokensOf(names, Number(sample));
  const words = names.axes.map((axis) => tokens[Number(indices[axis])]);
  const places = words.length && words.every((word) => word !== undefined) ? words.join(" \u2192 ") : "";
  return [names.labels[Number(sample)], places].filter(Boolean).join(": ");
}

/** The names of the rows and the columns of a picture of the last two dimensions, from the first of its part on. Pure.
 * @param {Names} names @param {{dimensions: number, sample: number, cells: [number, number], factors: [number, number],
 * part: {rows: [number, number], columns: [number, number]} | null}} picture @returns {{rows: string[], columns:
 * string[]} | undefined} undefined without any */
export function besides(names, { dimensions, sample, cells, factors, part }) {
  const tokens = tokensOf(names, sample);
  const of = (/** @type {number} */ place) => {
    const axis = dimensions - 2 + place;
    if (!names.axes.includes(axis) || factors[place] > 1) return [];
    const first = (place ? part?.columns : part?.rows)?.[0] ?? 0;
    return tokens.slice(first, first + cells[place]);
  };
  const [rows, columns] = [of(0), of(1)];
  return rows.length || columns.length ? { rows, columns } : undefined;
}

/** Returns the room that names need. @param {CanvasRenderingContext2D} pen
 * @param {{rows: string[], columns: string[]}} names @param {number} width of the whole */
function edgesOf(pen, { rows, columns }, width) {
  pen.font = FONT;
  const most = (/** @type {string[]} */ texts) =>
    texts.length
      ? NAME_GAP + Math.ceil(Math.min(WIDEST, width / 4, Math.max(...texts.map((text) => pen.measureText(text).width))))
      : 0;
  return { left: most(rows), top: most(columns) };
}

/** Draws the names of rows at the left and of columns above, as many as have room. @param {CanvasRenderingContext2D}
 * pen @param {{rows: string[], columns: string[]}} names @param {{left: number, top: number}} edges @param {{tileWidth:
 * number, tileHeight: number}} layout @param {[number, number]} cells */
function drawNames(pen, { rows, columns }, { left, top }, layout, cells) {
  pen.save();
  pen.font = FONT;
  pen.fillStyle = colors().quiet;
  pen.textBaseline = "middle";
  const [high, wide] = [layout.tileHeight / cells[0], layout.tileWidth / cells[1]];
  pen.textAlign = "right";
  for (let row = 0; row < rows.length; row += strideOf(high))
    pen.fillText(fitted(pen, rows[row], left - NAME_GAP), left - NAME_GAP, top + (row + 0.5) * high);
  pen.textAlign = "left";
  for (let column = 0; column < columns.length; column += strideOf(wide)) {
    pen.save();
    pen.translate(left + (column + 0.5) * wide, top - NAME_GAP);
    pen.rotate(-Math.PI / 2);
    pen.fillText(fitted(pen, columns[column], top - NAME_GAP), 0, 0);
    pen.restore();
  }
  pen.restore();
}

const AXIS_PX = 34; // for the numbers of rows
const HEAD_PX = 30; // for the names of both axes, and for the numbers of columns
const TICK_PX = 44;

/** Draws the numbers of rows and columns, and what they are. @param {CanvasRenderingContext2D} pen
 * @param {NonNullable<Picture["axes"]>} axes @param {{tileWidth: number, tileHeight: number}} layout
 * @param {[number, number]} cells */
function drawAxes(pen, { words, first, factors }, layout, cells) {
  pen.save();
  pen.font = FONT;
  pen.fillStyle = colors().quiet;
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  pen.fillText(`${words[0]} \u2193   ${words[1]} \u2192`, AXIS_PX, 7);
  const ticksOf = (/** @type {number} */ place, /** @type {number} */ size) =>
    evenTicks(first[place], first[place] + (cells[place] - 1) * factors[place], Math.max(1, size / TICK_PX)).filter(
      Number.isInteger,
    );
  const along = (/** @type {number} */ place, /** @type {number} */ value, /** @type {number} */ size) =>
    (((value - first[place]) / factors[place] + 0.5) / cells[place]) * size;
  pen.textAlign = "right";
  for (const row of ticksOf(0, layout.tileHeight))
    pen.fillText(String(row), AXIS_PX - NAME_GAP, HEAD_PX + along(0, row, layout.tileHeight));
  pen.textAlign = "center";
  for (const column of ticksOf(1, layout.tileWidth))
    pen.fillText(String(column), AXIS_PX + along(1, column, layout.tileWidth), HEAD_PX - 8);
  pen.restore();
}

/** Fills an element with the color bar of a picture. @param {HTMLElement} element @param {Tiles | null} tiles */
export function showScale(element, tiles) {
  element.replaceChildren();
  if (!tiles?.ranges.length) return;
  const [{ low, high, clipped, signed }] = tiles.ranges;
  const ends =
    tiles.ranges.length > 1
      ? ["smallest", "largest of each tile"]
      : [`${clipped[0] ? "\u2264 " : ""}${number(low)}`, `${clipped[1] ? "\u2265 " : ""}${number(high)}`];
  element.append(
    ends[0],
    paintBar(makeBar("the colors, from low to high"), signed),
    ends[1],
    swatch("nan", "NaN"),
    swatch("inf", "infinite"),
    ...(tiles.causal ? [swatch("missing", "masked")] : []),
  );
}

const HEIGHT = 520;

/** @typedef {{tile: number, row: number, column: number}} Cell */
/** `shared`: one scale for all tiles; `whole`: from the minimum to the maximum; `names`: of the rows and the columns.
 * @typedef {{values: Float32Array | Float64Array, shape: [number, number, number], shared: boolean, whole?: boolean,
 *   range?: ReturnType<typeof rangeOf>, names?: {rows: string[], columns: string[]}, axes?: {words: [string, string],
 *   first: [number, number], factors: [number, number]}, tiles?: string[], across?: number}} Picture `axes` are what
 *   rows and columns are, and the numbers of the first ones; `tiles` are the names of the tiles */

/** @extends {CanvasChart<Cell>} */
export class Tiles extends CanvasChart {
  /** @type {Picture | null} */
  picture = null;
  /** @type {Layout | null} */
  layout = null;
  /** @type {ReturnType<typeof rangeOf>[]} */
  ranges = [];
  causal = false;
  /** Where names of rows and columns are. */
  edges = { left: 0, top: 0 };
  /** The picture without the cursor. */
  #drawn = document.createElement("canvas");

  /** @param {Page} page @param {HTMLElement} element
   * @param {{title: string, height?: number, onPoint: (cell: Cell | null) => string, onChoose?: (cell: Cell) => void}}
   * options `onPoint` shows and returns what a cell is */
  constructor(page, element, { title, height = HEIGHT, onPoint, onChoose }) {
    super(page, element, { label: `${title}: arrow keys move the cursor`, name: "tiles", isLinked: false });
    this.tall = height;
    this.tell = this.spokenOf = onPoint;
    this.onChoose = onChoose;
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
    const axes = tiles === 1 && !names ? picture.axes : undefined;
    this.edges = names
      ? edgesOf(measuring, names, width)
      : axes
        ? { left: AXIS_PX, top: HEAD_PX }
        : { left: 0, top: 0 };
    const { left: leftEdge, top: topEdge } = this.edges;
    const head = tiles > 1 && picture.tiles ? LINE + 2 : 0;
    this.layout = layoutOf(width - leftEdge, this.tall, tiles, rows, columns, { head, across: picture.across });
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
    if (axes) drawAxes(pen, axes, this.layout, [rows, columns]);
    if (head) this.#nameTiles(pen, picture.tiles ?? []);
    this.paintCursor();
  }

  /** @param {CanvasRenderingContext2D} pen @param {string[]} names */
  #nameTiles(pen, names) {
    pen.font = FONT;
    pen.fillStyle = colors().quiet;
    pen.textBaseline = "bottom";
    pen.textAlign = "left";
    for (const [tile, name] of names.entries()) {
      const [left, top] = this.#cornerOf(tile);
      pen.fillText(fitted(pen, name, this.layout?.tileWidth ?? 0), left, top - 1);
    }
  }

  /** @param {number} tile @returns {[number, number]} */
  #cornerOf(tile) {
    const [left, top] = cornerOf(/** @type {Layout} */ (this.layout), tile);
    return [left + this.edges.left, top + this.edges.top];
  }

  /** @override */
  paintCursor() {
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

  /** @override @param {number} x @param {number} y @returns {Cell | null} */
  find(x, y) {
    const { layout, picture, edges } = this;
    return layout && picture ? cellAt(layout, x - edges.left, y - edges.top, picture.shape) : null;
  }

  /** @override @returns {Cell | null} */
  start() {
    return this.picture && this.layout ? { tile: 0, row: 0, column: 0 } : null;
  }

  /** Beyond the edge of a tile is the next tile. @override @param {Cell} at @param {number} right @param {number} up
   * @returns {Cell | null} */
  next(at, right, up) {
    if (!this.picture) return null;
    const [tiles, rows, columns] = this.picture.shape;
    const [to, row] = [at.column + right, Math.max(0, Math.min(rows - 1, at.row - up))];
    if (Number.isFinite(right) && to >= columns && at.tile + 1 < tiles) return { tile: at.tile + 1, row, column: 0 };
    if (Number.isFinite(right) && to < 0 && at.tile > 0) return { tile: at.tile - 1, row, column: columns - 1 };
    return { tile: at.tile, row, column: Math.max(0, Math.min(columns - 1, to)) };
  }

  /** @override @param {Cell | null} cell */
  choose(cell) {
    if (cell) this.onChoose?.(cell);
  }
}
