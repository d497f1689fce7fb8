/** The histogram of a layer in one step: values to the right, and their share upwards, by its logarithm. */
import { CanvasChart, penOf } from "../canvas/chart.js";
import { count, number } from "../format.js";
import { ticks } from "../scale.js";
import { colors } from "../theme.js";
import { rowsOf, SHARES } from "./paint.js";
import { axisOf, columnAt, tableOf as numbersOf, say, shapeOf, stepsOf } from "./shape.js";

/** @import { Histograms } from "../answers.js"
 * @import { Shape } from "./shape.js"
 * @import { Page } from "../page.js"
 * @import { Scale } from "../scale.js" */

const PLACES = 100; // that the arrow keys visit on the axis
const BOTTOM = 16;
const FONT = "10.5px system-ui, sans-serif";

/** What the reader points at is a place of the axis, from 0 to 1. @extends {CanvasChart<number>} */
export class HistProfile extends CanvasChart {
  /** @type {Shape | null} */
  shape = null;
  /** @type {Scale | null} */
  axis = null;
  /** @type {Scale | null} */
  shared = null;

  /** @param {Page} page @param {HTMLElement} element
   * @param {{title: string, height: number, onOpen?: (step: number | null) => void}} options */
  constructor(page, element, { title, height, onOpen }) {
    const label = `${title}: the histogram of one step. Left and right move along the values`;
    super(page, element, { label, name: "histmap", height });
    this.onOpen = onOpen;
  }

  /** @param {Histograms} answer @param {[number, number] | null} _span @param {Scale | null} [shared] */
  show(answer, _span, shared = null) {
    this.shape = shapeOf(answer);
    this.shared = shared;
    this.draw();
  }

  table() {
    return this.shape ? numbersOf(this.shape) : { columns: ["step"], rows: [] };
  }

  /** The column of the step under the cursor, of the held one, or the newest; -1 if that has no histogram. */
  get column() {
    const { shape, page } = this;
    if (!shape) return -1;
    const { step = null } = page.cursor.point;
    const pointed = step === null ? -1 : columnAt(shape, step);
    if (pointed >= 0) return pointed;
    const { held } = page.follow;
    return held === null ? shape.columns - 1 : columnAt(shape, held);
  }

  /** Why there is no value. */
  get #missing() {
    return `No histogram of step ${count(this.page.follow.held ?? 0)}`;
  }

  /** @override */
  paint() {
    const { canvas, shape } = this;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!shape?.columns || width < 20) return;
    this.axis = this.shared ?? axisOf([shape]);
    const pen = penOf(canvas, width, height);
    pen.font = FONT;
    const { column } = this;
    if (column < 0) return this.#say(pen);
    const room = height - BOTTOM;
    grid(pen, width, room, room - 14);
    draw(pen, heightsOf(shape, this.axis, column, Math.floor(width)), room, room - 14);
    this.#axis(pen, width, height, column);
  }

  /** @param {CanvasRenderingContext2D} pen */
  #say(pen) {
    pen.fillStyle = colors().quiet;
    pen.textBaseline = "alphabetic";
    pen.textAlign = "left";
    pen.fillText(this.#missing, 2, 10);
  }

  /** @param {CanvasRenderingContext2D} pen @param {number} width @param {number} height @param {number} column */
  #axis(pen, width, height, column) {
    const { axis, shape } = this;
    if (!axis || !shape) return;
    pen.fillStyle = colors().quiet;
    pen.textBaseline = "alphabetic";
    pen.textAlign = "center";
    let free = -Infinity;
    for (const value of ticks(axis)) {
      const [x, words] = [axis.place(value) * width, number(value, { digits: 1 })];
      const half = pen.measureText(words).width / 2;
      const at = Math.max(half, Math.min(width - half, x));
      if (at - half < free + 4) continue;
      free = at + half;
      pen.fillText(words, at, height - 3);
      pen.fillRect(Math.round(x), height - BOTTOM, 1, 3);
    }
    pen.textAlign = "left";
    pen.fillText(stepsOf(shape, column), 2, 10);
  }

  /** @override @param {number} x */
  find(x) {
    return Math.min(1, Math.max(0, x / this.canvas.clientWidth));
  }

  /** @override */
  start() {
    return this.shape?.columns && this.axis ? 0.5 : null;
  }

  /** @override @param {number} at @param {number} right */
  next(at, right) {
    return right ? Math.min(1, Math.max(0, at + right / PLACES)) : null;
  }

  /** @override @param {number} at @returns {[number, number]} */
  cornerOf(at) {
    return [at * this.canvas.clientWidth, 0];
  }

  /** @override @param {number} at */
  wordsOf(at) {
    const { shape, axis, column } = this;
    if (!shape?.columns || !axis) return "";
    return column < 0 ? this.#missing : say(shape, axis, { step: shape.first[column], value: axis.value(at) });
  }

  /** @override */
  choose() {
    this.onOpen?.(null);
  }

  /** @override The bars are those of the step under the cursor. */
  mark() {
    this.draw();
  }
}

/** Lines at round shares.
 * @param {CanvasRenderingContext2D} pen @param {number} width @param {number} base @param {number} tall */
function grid(pen, width, base, tall) {
  pen.textAlign = "right";
  for (const share of [1, 0.1, 0.01, 0.001]) {
    const y = Math.round(base - heightOf(share) * tall);
    pen.fillStyle = colors().line;
    pen.fillRect(0, y, width, 1);
    pen.fillStyle = colors().quiet;
    pen.fillText(`${share * 100}%`, width, y - 2);
  }
}

/** @param {CanvasRenderingContext2D} pen @param {Float32Array} heights @param {number} base @param {number} tall */
function draw(pen, heights, base, tall) {
  const path = new Path2D();
  path.moveTo(0, base);
  for (const [x, high] of heights.entries()) path.lineTo(x, base - high * tall);
  path.lineTo(heights.length, base);
  pen.globalAlpha = 0.75;
  pen.fillStyle = pen.strokeStyle = colors().line1;
  pen.fill(path);
  pen.globalAlpha = 1;
  pen.lineWidth = 1;
  pen.stroke(path);
}

const FLOOR = SHARES[0] / 10;

/** Heights of 0 to 1 by the logarithm of the share, from low values to high ones. @param {Shape} shape @param {Scale}
 * axis @param {number} column @param {number} width @returns {Float32Array} */
export function heightsOf(shape, axis, column, width) {
  const { from, to, band, about } = rowsOf(shape, axis, width);
  const start = column * shape.bins;
  const total = shape.totals[column] || 1;
  const shares = new Float32Array(width);
  let sum = 0;
  for (let bin = about[0]; bin < about[1]; bin += 1) sum += shape.counts[start + bin];
  for (let row = 0; row < width; row += 1) {
    let most = row >= band[0] && row < band[1] ? sum : 0;
    for (let bin = Math.max(0, from[row]); bin < to[row]; bin += 1) most = Math.max(most, shape.counts[start + bin]);
    shares[width - 1 - row] = most / total;
  }
  return shares.map((share) => heightOf(share));
}

/** @param {number} share */
export function heightOf(share) {
  return share <= FLOOR ? 0 : Math.min(1, Math.log10(share / FLOOR) / Math.log10(1 / FLOOR));
}
