/** Draws the picture. What is outside of the window is skipped, and what would be too small to be seen is left out:
 * names first, then borders. Lines of one color and width are one path. */
import { penOf } from "../canvas/chart.js";
import { isBad, MISSING, worstOf } from "../canvas/columns.js";
import { drawBox, drawCircle, drawFrame, markFrame, NAMES, NONE } from "./boxes.js";
import { timesOf } from "./tree.js";

/** @import { Arranged, Line } from "./arrange.js"
 * @import { BoxValues } from "./boxes.js"
 * @import { Ink, Stroke } from "./readings.js"
 * @import { Tree } from "./tree.js"
 * @import { View } from "./view.js" */

const CURVES = 0.25; // the scale from which lines have round corners
const ARROWS = 0.45;
const ARROW = 5;
const TURN = 7; // the radius of corners

/**
 * What is drawn.
 * @typedef {object} Scene
 * @property {Tree} tree
 * @property {Arranged} arranged
 * @property {Set<number>} open
 * @property {View} view
 * @property {BoxValues} values
 * @property {Ink} ink
 * @property {(bits: number) => Stroke} stroke of a gradient
 * @property {Uint32Array} gradients of the boxes' outputs, as bits
 * @property {boolean} forward whether the values are those of the forward pass
 * @property {Set<number>} origins where non-finite values begin
 * @property {Set<number> | null} found what the find box matches; null: there is no text
 * @property {number | null} selected
 * @property {number | null} pointed
 * @property {Record<string, string>} page the colors of the page
 */

/** @param {CanvasRenderingContext2D} pen for CSS pixels @param {Scene} scene @param {number} ratio device pixels of one
 * @param {Ground} ground */
export function drawModel(pen, scene, ratio, ground) {
  const { view, arranged, open, page } = scene;
  const { scale, x, y } = view;
  const place = (/** @type {CanvasRenderingContext2D} */ target) =>
    target.setTransform(ratio * scale, 0, 0, ratio * scale, ratio * x, ratio * y);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, view.width, view.height);
  const seen = view.seen;
  const shown = arranged.rects.filter((rect) => isSeen(rect, seen));
  const frames = shown.filter(({ number }) => open.has(number));
  const { groups, looks } = groupsOf(scene, seen);
  const below = (/** @type {CanvasRenderingContext2D} */ target) => {
    place(target);
    for (const rect of frames) drawFrame(target, scene, rect);
    drawLines(target, scene, groups);
  };
  // From this scale on there are words on the frames, and few boxes in the window.
  if (scale >= NAMES) below(pen);
  else ground.put(pen, [arranged, scale, x, y, page.band, page.line, page.quiet, looks], below);
  place(pen);
  for (const rect of frames) markFrame(pen, scene, rect);
  for (const rect of shown)
    if (!open.has(rect.number)) drawBox(pen, scene, rect, timesOf(scene.tree.boxes[rect.number]));
    else if (rect.maker) drawCircle(pen, scene, rect);
}

/** @param {{x: number, y: number, w: number, h: number}} rect @param {[number, number, number, number]} seen */
function isSeen({ x, y, w, h }, [left, top, right, bottom]) {
  return x < right && y < bottom && x + w > left && y + h > top;
}

/** Lines that are drawn alike. @typedef {{number: number, width: number, color: string, dashed: boolean, lines:
 * Line[]}} Group */

/** The lines in the window by how they look, and how all of them look, as a text. @param {Scene} scene @param {[number,
 * number, number, number]} seen @returns {{groups: Map<string, Group>, looks: string}} */
function groupsOf(scene, [left, top, right, bottom]) {
  const { arranged, view, page } = scene;
  const least = 0.7 / view.scale;
  /** @type {Map<string, Group>} */
  const groups = new Map();
  let looks = ""; // a sign for each line: the number of its group
  for (const line of arranged.lines) {
    const [from, high, to, low] = line.around;
    if (from > right || to < left || high > bottom || low < top) continue;
    const { carries, guessed } = edgeOf(scene.tree, line);
    const { width, state } = strokeOf(scene, carries);
    const color = state === "nan" ? page.nan : state === "inf" ? page.inf : page.quiet;
    const wide = Math.max(width, least);
    const key = `${wide} ${color} ${guessed}`;
    let group = groups.get(key);
    if (!group) {
      group = { number: groups.size, width: wide, color, dashed: guessed, lines: [] };
      groups.set(key, group);
    }
    group.lines.push(line);
    looks += String.fromCharCode(group.number);
  }
  return { groups, looks: `${[...groups.keys()]} ${looks}` };
}

/** @param {CanvasRenderingContext2D} pen @param {Scene} scene @param {Map<string, Group>} groups */
function drawLines(pen, { view, page }, groups) {
  for (const { width, color, dashed, lines } of groups.values()) {
    pen.strokeStyle = pen.fillStyle = color;
    pen.lineWidth = width;
    pen.globalAlpha = color === page.quiet ? 0.55 : 0.9;
    if (dashed) pen.setLineDash([5, 4]);
    pen.beginPath();
    for (const { points, turns } of lines)
      if (turns) turn(pen, points, view.scale >= CURVES ? TURN : 0);
      else trace(pen, points, view.scale >= CURVES);
    pen.stroke();
    if (dashed) pen.setLineDash([]);
    if (view.scale >= ARROWS) arrows(pen, lines, width);
  }
  pen.globalAlpha = 1;
}

/** As wide as the gradient; where what flows forward isn't finite, that is what the line shows. @param {Scene} scene
 * @param {readonly number[]} carries */
function strokeOf({ values, gradients, stroke, forward }, carries) {
  const look = stroke(worstOf(gradients, 0, carries.length, carries));
  if (!forward) return look;
  const flows = worstOf(values.bits, 0, carries.length, carries);
  if (isBad(flows)) return stroke(flows);
  return look.state === "plain" || look.state === "unknown" ? look : { ...look, width: 1 };
}

const OWN = { carries: /** @type {number[]} */ ([]), guessed: false };

/** The edge of a line; the last one of an open box carries its own results. @param {Tree} tree @param {Line} line */
function edgeOf(tree, { level, at }) {
  if (at >= 0) return tree.edgesOf(level)[at];
  OWN.carries = [level];
  return OWN;
}

/** A line with corners. @param {CanvasRenderingContext2D} pen @param {number[]} points @param {number} radius */
function turn(pen, points, radius) {
  const last = points.length - 2;
  pen.moveTo(points[0], points[1]);
  for (let at = 2; at < last; at += 2) {
    const [x, y, toX, toY] = points.slice(at, at + 4);
    const room = Math.min(
      radius,
      Math.hypot(toX - x, toY - y) / 2,
      Math.hypot(x - points[at - 2], y - points[at - 1]) / 2,
    );
    pen.arcTo(x, y, toX, toY, room);
  }
  pen.lineTo(points[last], points[last + 1]);
}

/** @param {CanvasRenderingContext2D} pen @param {number[]} points @param {boolean} round */
function trace(pen, points, round) {
  const last = points.length - 2;
  pen.moveTo(points[0], points[1]);
  if (last === 2 && round && Math.abs(points[1] - points[3]) > 1) {
    const middle = (points[0] + points[2]) / 2;
    pen.bezierCurveTo(middle, points[1], middle, points[3], points[2], points[3]);
    return;
  }
  for (let at = 2; at < last; at += 2) {
    const [x, y] = [points[at], points[at + 1]];
    if (round && at + 2 < last) pen.quadraticCurveTo(x, y, (x + points[at + 2]) / 2, (y + points[at + 3]) / 2);
    else if (round) pen.quadraticCurveTo(x, y, points[last], points[last + 1]);
    else pen.lineTo(x, y);
  }
  if (!round || last === 2) pen.lineTo(points[last], points[last + 1]);
}

/** @param {CanvasRenderingContext2D} pen @param {Line[]} lines @param {number} width */
function arrows(pen, lines, width) {
  const size = ARROW + width / 2;
  pen.beginPath();
  for (const { points } of lines) {
    const [x, y] = points.slice(-2);
    pen.moveTo(x, y);
    pen.lineTo(x - size, y - size * 0.6);
    pen.lineTo(x - size, y + size * 0.6);
    pen.closePath();
  }
  pen.fill();
}

/** What lies below the boxes, as a picture: frames and lines. While the steps are played, it seldom changes, and most
 * of the time of a drawing would be spent on it. */
export class Ground {
  #canvas = document.createElement("canvas");
  #pen = /** @type {CanvasRenderingContext2D} */ (this.#canvas.getContext("2d"));
  /** What the picture shows. @type {readonly unknown[]} */
  #shown = [];

  /** Puts the picture on another canvas, and draws it before if it is about other things.
   * @param {CanvasRenderingContext2D} pen @param {readonly unknown[]} about compared one by one
   * @param {(pen: CanvasRenderingContext2D) => void} draw */
  put(pen, about, draw) {
    const { width, height } = pen.canvas;
    const now = [width, height, ...about];
    if (now.length !== this.#shown.length || now.some((part, place) => part !== this.#shown[place])) {
      this.#shown = now;
      Object.assign(this.#canvas, { width, height }); // also clears it
      draw(this.#pen);
    }
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.drawImage(this.#canvas, 0, 0);
  }
}

const WIDE = 170;
const HIGH = 110;
const REST_MS = 200; // while it plays

export class Minimap {
  #drawnAt = -Infinity;

  /** @param {HTMLCanvasElement} canvas @param {(x: number, y: number) => void} onMove to a place of the picture */
  constructor(canvas, onMove) {
    this.canvas = canvas;
    this.scale = 1;
    const move = (/** @type {PointerEvent} */ { clientX, clientY }) => {
      const { left, top } = canvas.getBoundingClientRect();
      onMove((clientX - left) / this.scale, (clientY - top) / this.scale);
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      move(event);
    });
    canvas.addEventListener("pointermove", (event) => canvas.hasPointerCapture(event.pointerId) && move(event));
  }

  /** @param {Scene} scene @param {number} now @param {boolean} hurried */
  draw(scene, now, hurried) {
    const { view, arranged, values, ink, page, open, origins } = scene;
    this.canvas.hidden = view.isWhole;
    if (view.isWhole || (hurried && now - this.#drawnAt < REST_MS)) return;
    this.#drawnAt = now;
    this.scale = Math.min(WIDE / arranged.width, HIGH / arranged.height);
    const [width, height] = [arranged.width * this.scale, arranged.height * this.scale];
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    const pen = penOf(this.canvas, width, height);
    pen.fillStyle = page.card;
    pen.fillRect(0, 0, width, height);
    pen.scale(this.scale, this.scale);
    for (const { number, x, y, w, h } of arranged.rects) {
      if (open.has(number)) continue;
      const isKnown = values.known[number] !== NONE && values.bits[number] !== MISSING;
      pen.fillStyle = origins.has(number) ? page.nan : isKnown ? ink.of(values.bits[number]).fill : page.missing;
      pen.fillRect(x, y, w, h);
    }
    const [left, top, right, bottom] = view.seen;
    pen.lineWidth = 1.5 / this.scale;
    pen.strokeStyle = page.accent;
    pen.strokeRect(left, top, right - left, bottom - top);
  }
}
