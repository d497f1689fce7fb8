// @ts-check
/** One layer's histograms as lines: ridges, the newest in front, or the bars of one step. Values to the right. */
import { cssOf, tableOf } from "../colors.js";
import { h } from "../dom.js";
import { count, number } from "../format.js";
import { prefs } from "../prefs.js";
import { colors, onTheme } from "../theme.js";
import { heightOf, heightsOf, picked } from "./heights.js";
import { tableOf as numbersOf, say, stepsOf } from "./say.js";
import { columnAt, endsOf, extentOf, SignedLog, shapeOf } from "./shape.js";
import { hideTip, showTip } from "./tip.js";

const RIDGES = 12;
const PLACES = 100; // that the arrow keys visit on the axis
const BOTTOM = 16;
const FONT = "10.5px system-ui, sans-serif";

export class HistProfile {
  /** @type {import("./shape.js").Shape | null} */
  shape = null;
  /** @type {SignedLog | null} */
  axis = null;
  /** @type {SignedLog | null} */
  shared = null;
  /** @type {Float64Array} */
  #ends = new Float64Array();
  /** The place of the cursor on the axis, from 0 to 1. */
  #at = 0.5;

  /** @param {import("../page.js").Page} page @param {HTMLElement} element
   * @param {{title: string, height: number, mode: string, onOpen?: (step: number | null) => void}} options */
  constructor(page, element, { title, height, mode, onOpen }) {
    this.page = page;
    this.mode = mode;
    this.canvas = /** @type {HTMLCanvasElement} */ (
      h("canvas", {
        class: "histmap",
        tabindex: "0",
        role: "application",
        "aria-label":
          `${title}: ${mode === "bars" ? "the histogram of one step" : "histograms of several steps, newest in front"}. ` +
          "Left and right move along the values",
      })
    );
    Object.assign(this.canvas.style, { width: "100%", height: `${height}px` });
    element.append(this.canvas);
    const again = () => page.schedule.soon(this, () => this.#paint());
    const sized = new ResizeObserver(again);
    sized.observe(this.canvas);
    const undone = [
      onTheme(again),
      prefs.on("colors", again),
      page.cursor.on("move", () => mode === "bars" && again()),
    ];
    this.draw = again;
    this.close = () => {
      sized.disconnect();
      for (const undo of undone) undo();
      this.canvas.remove();
    };
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    for (const gone of ["pointerleave", "blur"]) this.canvas.addEventListener(gone, hideTip);
    this.canvas.addEventListener("keydown", (event) => (event.key === "Enter" ? onOpen?.(null) : this.#key(event)));
    this.canvas.addEventListener("click", () => onOpen?.(null));
  }

  /** @param {import("../answers.js").Histograms} said @param {[number, number] | null} _span @param {SignedLog | null} [shared] */
  show(said, _span, shared = null) {
    this.shape = shapeOf(said);
    this.#ends = endsOf(this.shape);
    this.shared = shared;
    this.draw();
  }

  table() {
    return this.shape ? numbersOf(this.shape) : { columns: ["step"], rows: [] };
  }

  /** The column of the bars: the step that is pointed at or held, else the newest. */
  get column() {
    if (!this.shape) return -1;
    const step = this.page.cursor.point.step ?? (this.page.follow.paused ? this.page.follow.step : null);
    const found = step === null ? -1 : columnAt(this.shape, this.#ends, step);
    return found < 0 ? this.shape.columns - 1 : found;
  }

  #paint() {
    const { canvas, shape } = this;
    const [width, height, ratio] = [canvas.clientWidth, canvas.clientHeight, Math.min(2, devicePixelRatio || 1)];
    const pen = canvas.getContext("2d");
    if (!pen || !shape?.columns || width < 20) return;
    this.axis = this.shared ?? new SignedLog(extentOf([shape]));
    Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = FONT;
    const columns = this.mode === "bars" ? [this.column] : picked(shape.columns, RIDGES);
    const room = height - BOTTOM;
    const tall = this.mode === "bars" ? room - 14 : room * 0.55;
    const table = tableOf(/** @type {any} */ (prefs.get("colors")));
    if (this.mode === "bars") grid(pen, width, room, tall);
    for (const [place, column] of columns.entries()) {
      const share = columns.length > 1 ? place / (columns.length - 1) : 1;
      const base = this.mode === "bars" ? room : tall + (room - tall) * share;
      ridge(
        pen,
        heightsOf(shape, this.axis, column, Math.floor(width)),
        base,
        tall,
        cssOf(table[Math.round(30 + 170 * share)]),
        this.mode === "bars",
      );
    }
    this.#axis(pen, width, height, columns);
  }

  /** @param {CanvasRenderingContext2D} pen @param {number} width @param {number} height @param {number[]} columns */
  #axis(pen, width, height, columns) {
    const { axis, shape } = this;
    if (!axis || !shape) return;
    pen.fillStyle = colors().quiet;
    pen.textBaseline = "alphabetic";
    pen.textAlign = "center";
    let free = -Infinity;
    for (const value of axis.ticks(3)) {
      const [x, words] = [axis.place(value) * width, number(value, { digits: 1 })];
      const half = pen.measureText(words).width / 2;
      const at = Math.max(half, Math.min(width - half, x));
      if (at - half < free + 4) continue;
      free = at + half;
      pen.fillText(words, at, height - 3);
      pen.fillRect(Math.round(x), height - BOTTOM, 1, 3);
    }
    pen.textAlign = "left";
    const [first, last] = [columns[0], columns[columns.length - 1]];
    pen.fillText(
      first === last ? stepsOf(shape, first) : `${count(shape.first[first])} \u2026 ${count(shape.last[last])}`,
      2,
      10,
    );
  }

  /** @param {PointerEvent} event */
  #point({ clientX, clientY }) {
    const { left, width } = this.canvas.getBoundingClientRect();
    this.#show((clientX - left) / width, clientX, clientY);
  }

  /** Shows and returns the number of values at a place of the axis, from 0 to 1.
   * @param {number} place @param {number} x of the tooltip, in the window @param {number} y */
  #show(place, x, y) {
    if (!this.shape?.columns || !this.axis) return "";
    this.#at = Math.min(1, Math.max(0, place));
    const column = this.mode === "bars" ? this.column : this.shape.columns - 1;
    const at = { step: this.shape.first[column], value: this.axis.value(this.#at) };
    const words = say(this.shape, this.#ends, this.axis, at);
    showTip(words, x, y);
    return words;
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const place = Math.min(1, Math.max(0, this.#at + (by * (event.shiftKey ? 10 : 1)) / PLACES));
    const { left, top, width } = this.canvas.getBoundingClientRect();
    this.page.announce(this.#show(place, left + place * width, top));
  }
}

/** Lines at round shares. @param {CanvasRenderingContext2D} pen @param {number} width @param {number} base @param {number} tall */
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

/** @param {CanvasRenderingContext2D} pen @param {Float32Array} heights @param {number} base @param {number} tall @param {string} color @param {boolean} full */
function ridge(pen, heights, base, tall, color, full) {
  const path = new Path2D();
  path.moveTo(0, base);
  for (const [x, high] of heights.entries()) path.lineTo(x, base - high * tall);
  path.lineTo(heights.length, base);
  pen.globalAlpha = full ? 0.75 : 0.9;
  pen.fillStyle = full ? colors().line1 : color;
  pen.fill(path);
  pen.globalAlpha = 1;
  pen.lineWidth = 1;
  pen.strokeStyle = full ? colors().line1 : colors().card;
  pen.stroke(path);
}
