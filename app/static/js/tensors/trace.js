/** A row of values as a line, from minimum to maximum where values share a pixel. Non-finite values are at the edge. */
import { CanvasChart, penOf } from "../canvas/chart.js";
import { number } from "../format.js";
import { evenTicks } from "../scale.js";
import { colors } from "../theme.js";

/** @import { Page } from "../page.js" */

const [LEFT, BOTTOM, TOP] = [56, 18, 8];

/** What the reader points at is a place of the row. @extends {CanvasChart<number>} */
export class Trace extends CanvasChart {
  /** @type {{low: ArrayLike<number>, high: ArrayLike<number>, factor: number, length: number} | null} */
  data = null;

  /** @param {Page} page @param {HTMLElement} element
   * @param {{title: string, height?: number, onPoint: (place: number | null) => string}} options `onPoint` shows and
   * returns what a place is */
  constructor(page, element, { title, height = 260, onPoint }) {
    super(page, element, { label: `${title}: arrow keys move the cursor`, height, isLinked: false });
    this.tell = this.spokenOf = onPoint;
  }

  /** @param {ArrayLike<number>} low @param {ArrayLike<number>} high
   * @param {number} factor values per place @param {number} length number of values */
  show(low, high, factor = 1, length = low.length) {
    this.data = { low, high, factor, length };
    this.draw();
  }

  /** @override @param {number} x */
  find(x) {
    const many = this.data?.low.length ?? 0;
    const place = Math.min(many - 1, Math.floor(((x - LEFT) / (this.canvas.clientWidth - LEFT)) * many));
    return place < 0 ? null : place;
  }

  /** @override */
  start() {
    return this.data ? 0 : null;
  }

  /** @override @param {number} at @param {number} right */
  next(at, right) {
    return right && this.data ? Math.max(0, Math.min(this.data.low.length - 1, at + right)) : null;
  }

  /** @override */
  paint() {
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    if (!this.data || width < LEFT + 20) return;
    const pen = penOf(this.canvas, width, height);
    const { low, high, length } = this.data;
    const page = colors();
    const finite = [...Array.from(low), ...Array.from(high)].filter(Number.isFinite);
    let [least, most] = finite.length
      ? [finite.reduce((a, b) => Math.min(a, b)), finite.reduce((a, b) => Math.max(a, b))]
      : [0, 1];
    if (most === least) [least, most] = [least - 1, most + 1];
    const x = (/** @type {number} */ place) => LEFT + ((place + 0.5) / low.length) * (width - LEFT);
    const y = (/** @type {number} */ value) => TOP + (1 - (value - least) / (most - least)) * (height - BOTTOM - TOP);
    axis(pen, width, height, evenTicks(least, most, 5), y, length, page);
    this.#line(pen, x, y, page);
    if (this.at === null) return;
    pen.fillStyle = page.ink;
    pen.fillRect(Math.round(x(this.at)), 0, 1, height - BOTTOM);
  }

  /** @param {CanvasRenderingContext2D} pen @param {(place: number) => number} x @param {(value: number) => number} y
   * @param {Record<string, string>} page */
  #line(pen, x, y, page) {
    const { low, high } = /** @type {NonNullable<Trace["data"]>} */ (this.data);
    pen.strokeStyle = page.line1;
    pen.lineWidth = 1.5;
    pen.beginPath();
    let open = false;
    for (let place = 0; place < low.length; place += 1) {
      const finite = Number.isFinite(low[place]) && Number.isFinite(high[place]);
      if (!finite) {
        pen.fillStyle = Number.isNaN(low[place]) || Number.isNaN(high[place]) ? page.nan : page.inf;
        pen.fillRect(x(place) - 2, 0, 4, TOP - 1);
      } else {
        if (open) pen.lineTo(x(place), y(low[place]));
        else pen.moveTo(x(place), y(low[place]));
        pen.lineTo(x(place), y(high[place]));
      }
      open = finite;
    }
    pen.stroke();
    if (low.length <= 64)
      for (let place = 0; place < low.length; place += 1)
        if (Number.isFinite(low[place])) dot(pen, x(place), y(low[place]), page.line1);
  }
}

/** @param {CanvasRenderingContext2D} pen @param {number} x @param {number} y @param {string} color */
function dot(pen, x, y, color) {
  pen.fillStyle = color;
  pen.beginPath();
  pen.arc(x, y, 2.5, 0, 7);
  pen.fill();
}

/** @param {CanvasRenderingContext2D} pen @param {number} width @param {number} height @param {number[]} ticks
 * @param {(value: number) => number} y @param {number} length @param {Record<string, string>} page */
function axis(pen, width, height, ticks, y, length, page) {
  pen.font = "10.5px system-ui, sans-serif";
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const value of ticks) {
    pen.fillStyle = page.line;
    pen.fillRect(LEFT, Math.round(y(value)), width - LEFT, 1);
    pen.fillStyle = page.quiet;
    pen.fillText(number(value, { digits: 3 }), LEFT - 6, y(value));
  }
  pen.textBaseline = "alphabetic";
  pen.fillText(String(length - 1), width, height - 4);
  pen.textAlign = "left";
  pen.fillText("0", LEFT, height - 4);
}
