// @ts-check
/** The whole picture in a corner, with what of it is in the window. A drag moves the window. */
import { penOf } from "../canvas/index.js";
import { MISSING } from "../canvas/worst.js";
import { NONE } from "./values.js";

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

  /** @param {import("./draw.js").Scene} scene @param {number} now @param {boolean} hurried */
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
      const known = values.known[number] !== NONE && values.bits[number] !== MISSING;
      pen.fillStyle = origins.has(number) ? page.nan : known ? ink.of(values.bits[number]).fill : page.missing;
      pen.fillRect(x, y, w, h);
    }
    const [left, top, right, bottom] = view.seen;
    pen.lineWidth = 1.5 / this.scale;
    pen.strokeStyle = page.accent;
    pen.strokeRect(left, top, right - left, bottom - top);
  }
}
