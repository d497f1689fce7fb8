// @ts-check
/** Small lines without axes, many on a page. What is not finite is told apart: a strip at the foot, and a cross where the
 * line ends in it. */
import { colours } from "./theme.js";

const PAD = 3;
const STRIP = 2; // height of the strip below what is not finite

/**
 * @typedef {object} Shape
 * @property {[number, number][][]} lines stretches of points; a single point is a dot
 * @property {[number, number, boolean][]} strips from, to (pixels), and whether all of it is infinite rather than NaN
 * @property {[number, number] | null} end where the line went bad for good
 */

/**
 * Where everything of a line goes in a box of pixels. Where several values share a pixel, the lowest and the highest are
 * drawn, and one that is not finite marks it. Pure.
 * @param {ArrayLike<number | null>} values null is a step without a value: a gap and no more
 * @param {number} width @param {number} height @param {boolean} [log] by magnitude; what is 0 stands at the foot
 * @returns {Shape}
 */
export function shapeOf(values, width, height, log = false) {
  const many = values.length;
  const columns = Math.max(1, Math.min(many, Math.floor(width - 2 * PAD)));
  const place = (/** @type {number} */ column) => (columns < 2 ? width - PAD : PAD + ((width - 2 * PAD) * column) / (columns - 1));
  const up = scaleOf(values, height, log);
  /** @type {Shape} */
  const shape = { lines: [], strips: [], end: null };
  /** @type {[number, number][] | null} */
  let line = null;
  const half = columns < 2 ? 1 : Math.max(0.5, (width - 2 * PAD) / (columns - 1) / 2);
  for (let column = 0; column < columns; column += 1) {
    const found = columnOf(values, Math.floor((column * many) / columns), Math.floor(((column + 1) * many) / columns));
    const x = place(column);
    if (found.bad) mark(shape.strips, x - half, x + half, found.infinite);
    if (found.low === null || found.high === null) {
      line = null;
      continue;
    }
    if (!line) shape.lines.push((line = []));
    // Joined with the less steep of the two ways.
    const [low, high] = [up(found.low), up(found.high)];
    const before = line.at(-1)?.[1] ?? low;
    const ends = Math.abs(before - low) <= Math.abs(before - high) ? [low, high] : [high, low];
    for (const y of ends[0] === ends[1] ? [ends[0]] : ends) line.push([x, y]);
  }
  shape.end = endOf(values, shape);
  return shape;
}

/** @param {ArrayLike<number | null>} values @param {number} from @param {number} to */
function columnOf(values, from, to) {
  /** @type {{low: number | null, high: number | null, bad: boolean, infinite: boolean}} */
  const found = { low: null, high: null, bad: false, infinite: true };
  for (let i = from; i < to; i += 1) {
    const value = values[i];
    if (value === null || value === undefined) continue;
    if (!Number.isFinite(value)) {
      found.bad = true;
      if (Number.isNaN(value)) found.infinite = false;
    } else {
      if (found.low === null || value < found.low) found.low = value;
      if (found.high === null || value > found.high) found.high = value;
    }
  }
  return found;
}

/** @param {ArrayLike<number | null>} values @param {number} height @param {boolean} log @returns {(value: number) => number} */
function scaleOf(values, height, log) {
  const size = (/** @type {number} */ value) => (log ? (value === 0 ? -Infinity : Math.log10(Math.abs(value))) : value);
  let low = Infinity;
  let high = -Infinity;
  for (let i = 0; i < values.length; i += 1) {
    const value = values[i];
    if (value === null || !Number.isFinite(value)) continue;
    const at = size(value);
    if (at > -Infinity && at < low) low = at;
    if (at > high) high = at;
  }
  const [top, foot] = [PAD, height - PAD - STRIP];
  if (!(high > low)) return (value) => (size(value) === -Infinity && high > -Infinity ? foot : (top + foot) / 2);
  return (value) => Math.min(foot, foot - ((foot - top) * (Math.max(size(value), low) - low)) / (high - low));
}

/** @param {[number, number, boolean][]} strips @param {number} from @param {number} to @param {boolean} infinite */
function mark(strips, from, to, infinite) {
  const last = strips.at(-1);
  if (last && from - last[1] < 0.01 && last[2] === infinite) last[1] = to;
  else strips.push([from, to, infinite]);
}

/** The place of the cross: behind the last finite value, where nothing finite follows. @param {ArrayLike<number | null>} values @param {Shape} shape @returns {[number, number] | null} */
function endOf(values, shape) {
  let last = values.length - 1;
  while (last >= 0 && values[last] === null) last -= 1;
  const value = values[last];
  if (last < 0 || value === null || Number.isFinite(value)) return null;
  return shape.lines.at(-1)?.at(-1) ?? null;
}

/**
 * Draws it. The size is given rather than measured: many of them shall not make the browser lay the page out anew.
 * @param {HTMLCanvasElement} canvas @param {ArrayLike<number | null>} values
 * @param {{colour?: string, width?: number, height?: number, log?: boolean, at?: number | null}} [how] `at` is the index of a
 *   value to mark
 */
export function drawSpark(canvas, values, { colour, width = 96, height = 24, log = false, at = null } = {}) {
  const paint = fitted(canvas, width, height);
  if (!paint) return;
  const { line1, nan, inf, quiet } = colours();
  const shape = shapeOf(values, width, height, log);
  if (at !== null && values.length > 1) {
    paint.fillStyle = quiet;
    paint.fillRect(PAD + ((width - 2 * PAD) * at) / (values.length - 1) - 0.5, 0, 1, height);
  }
  paint.strokeStyle = paint.fillStyle = colour ?? line1;
  paint.lineWidth = 1.25;
  paint.lineJoin = "round";
  paint.beginPath();
  for (const line of shape.lines) {
    if (line.length === 1) paint.fillRect(line[0][0] - 1, line[0][1] - 1, 2, 2);
    line.forEach(([x, y], place) => (place ? paint.lineTo(x, y) : paint.moveTo(x, y)));
  }
  paint.stroke();
  for (const [from, to, infinite] of shape.strips) {
    paint.fillStyle = infinite ? inf : nan;
    paint.fillRect(from, height - STRIP, Math.max(1, to - from), STRIP);
  }
  if (shape.end) cross(paint, shape.end, nan);
}

/** @param {CanvasRenderingContext2D} paint @param {[number, number]} place @param {string} colour */
function cross(paint, [x, y], colour) {
  paint.strokeStyle = colour;
  paint.lineWidth = 1.75;
  paint.beginPath();
  for (const way of [-1, 1]) {
    paint.moveTo(x - 3, y - 3 * way);
    paint.lineTo(x + 3, y + 3 * way);
  }
  paint.stroke();
}

/** A clean canvas of this size at the screen's density. @param {HTMLCanvasElement} canvas @param {number} width @param {number} height */
function fitted(canvas, width, height) {
  const density = globalThis.devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * density), Math.round(height * density)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const paint = canvas.getContext("2d");
  paint?.setTransform(density, 0, 0, density, 0, 0);
  paint?.clearRect(0, 0, width, height);
  return paint;
}
