// @ts-check
/** The places of all boxes that are shown: those inside a box first, then the box among its neighbors. Pure. */
import { placeLevel } from "./level.js";
import { HEAD, PAD } from "./sizes.js";

/**
 * What the worker gets. A level is an open box, or OUTSIDE; -1 in an edge is what enters, or leaves.
 * @typedef {{parts: number[], edges: [number, number][], maker: [number, number] | null}} Level
 * @typedef {{levels: [number, Level][], sizes: [number, [number, number]][], width: number}} Wanted
 */

/**
 * What it answers. A line belongs to an edge of a level; one with `at` -1 leads from what an open box computes itself
 * to its border, and `maker` is where that is.
 * @typedef {{level: number, at: number, points: number[], turns: boolean, around: number[]}} Line
 * @typedef {{number: number, x: number, y: number, w: number, h: number, maker: {x: number, y: number} | null}} Rect
 * @typedef {{width: number, height: number, rects: Rect[], lines: Line[]}} Arranged
 */

/** @typedef {{w: number, h: number, enters: number, leaves: number,
 *   placed: import("./level.js").Placed | null}} Shape */

const OUTSIDE = -1;
const ASPECT = 2.2; // of a box whose parts don't fit the window
const NARROWEST = 260;

/** @param {Wanted} wanted @param {any} dagre @returns {Arranged} */
export function arrange({ levels, sizes, width }, dagre) {
  const byNumber = new Map(levels);
  const closed = new Map(sizes);
  /** Equal levels are placed once. @type {Map<string, Shape>} */
  const known = new Map();
  /** @type {Map<number, Shape>} */
  const shapes = new Map();
  const rooms = new Map([[OUTSIDE, width]]);
  for (const [number, { parts }] of levels)
    for (const part of parts) rooms.set(part, Math.max(NARROWEST, (rooms.get(number) ?? 0) - 2 * PAD));
  for (const [number, level] of [...levels].reverse()) {
    const parts = level.parts.map((part) => shapeOf(part, closed, shapes));
    shapes.set(number, placeParts(level, parts, rooms.get(number) ?? width, known, dagre));
  }
  const out = /** @type {Arranged} */ ({ width: 0, height: 0, rects: [], lines: [] });
  const outer = /** @type {Shape} */ (shapes.get(OUTSIDE));
  Object.assign(out, { width: outer.w, height: outer.h });
  spread(OUTSIDE, 0, 0, byNumber, closed, shapes, out);
  return out;
}

/** @param {number} part @param {Map<number, [number, number]>} closed @param {Map<number, Shape>} shapes
 * @returns {Shape} */
function shapeOf(part, closed, shapes) {
  const open = shapes.get(part);
  if (open)
    return {
      ...open,
      w: open.w + 2 * PAD,
      h: open.h + HEAD + PAD,
      enters: open.enters + HEAD,
      leaves: open.leaves + HEAD,
    };
  const [w, h] = closed.get(part) ?? [0, 0];
  return { w, h, enters: h / 2, leaves: h / 2, placed: null };
}

/** @param {Level} level @param {Shape[]} parts @param {number} room @param {Map<string, Shape>} known
 * @param {any} dagre */
function placeParts({ parts: numbers, edges, maker }, parts, room, known, dagre) {
  const last = parts.length + 1;
  const places = new Map(numbers.map((number, place) => [number, place + 1]));
  const ends = /** @type {[number, number][]} */ (
    edges.map(([source, target]) => [places.get(source) ?? 0, places.get(target) ?? last])
  );
  const sizes = /** @type {[number, number][]} */ ([[0, 0], ...parts.map(({ w, h }) => [w, h]), maker ?? [0, 0]]);
  const key = JSON.stringify([sizes, ends, room, parts.map(({ enters, leaves }) => [enters, leaves])]);
  const found = known.get(key);
  if (found) return found;
  const area = parts.reduce((sum, { w, h }) => sum + (w + 30) * (h + 22), 0);
  const width = Math.max(room, Math.sqrt(area * ASPECT), ...parts.map(({ w }) => w));
  const ports = parts.map(
    ({ h, enters, leaves }) => /** @type {[number, number]} */ ([enters - h / 2, leaves - h / 2]),
  );
  const placed = placeLevel(sizes, ends, width, dagre, [[0, 0], ...ports, [0, 0]]);
  const shape = { w: placed.width, h: placed.height, enters: placed.spots[0].y, leaves: placed.spots[last].y, placed };
  known.set(key, shape);
  return shape;
}

/** @param {number} number @param {number} left @param {number} top of its parts @param {Map<number, Level>} levels
 * @param {Map<number, [number, number]>} closed @param {Map<number, Shape>} shapes @param {Arranged} out */
function spread(number, left, top, levels, closed, shapes, out) {
  const level = /** @type {Level} */ (levels.get(number));
  const { placed, w } = /** @type {Shape} */ (shapes.get(number));
  if (!placed) return;
  for (const { at, points, turns } of placed.lines) {
    const moved = points.map((value, axis) => value + (axis % 2 ? top : left));
    if (number !== OUTSIDE && level.edges[at][0] === OUTSIDE) moved[0] = left - PAD;
    if (number !== OUTSIDE && level.edges[at][1] === OUTSIDE && !level.maker) moved[moved.length - 2] = left + w + PAD;
    out.lines.push({ level: number, at, points: moved, turns, around: aroundOf(moved) });
  }
  const made = placed.spots[level.parts.length + 1];
  if (level.maker && number !== OUTSIDE) {
    const points = [left + made.x + level.maker[0] / 2, top + made.y, left + w + PAD, top + made.y];
    out.lines.push({ level: number, at: -1, points, turns: false, around: aroundOf(points) });
  }
  for (const [place, part] of level.parts.entries()) {
    const spot = placed.spots[place + 1];
    const { w: wide, h: high } = shapeOf(part, closed, shapes);
    const [x, y] = [left + spot.x - wide / 2, top + spot.y - high / 2];
    const inner = levels.get(part);
    const own = inner?.maker ? /** @type {Shape} */ (shapes.get(part)).placed?.spots[inner.parts.length + 1] : null;
    const maker = own ? { x: x + PAD + own.x, y: y + HEAD + own.y } : null;
    out.rects.push({ number: part, x, y, w: wide, h: high, maker });
    if (inner) spread(part, x + PAD, y + HEAD, levels, closed, shapes, out);
  }
}

/** The left, top, right, and bottom of a line. @param {number[]} points */
function aroundOf(points) {
  const [across, down] = [0, 1].map((axis) => points.filter((_, at) => at % 2 === axis));
  return [Math.min(...across), Math.min(...down), Math.max(...across), Math.max(...down)];
}
