// @ts-check
/** What lies over the cells: the cursor, the layer that was picked, and the step that is held. */
import { boxOf, xOf } from "./layout.js";

/** @typedef {import("./picture.js").Scene} Scene */

/** @param {CanvasRenderingContext2D} pen @param {import("./pointing.js").Pointing} pointing @param {Scene} scene */
export function drawCursor(pen, pointing, scene) {
  const { page, heat } = pointing;
  const { plot } = scene.layout;
  const held = page.state.get("step");
  if (held !== "" && held !== undefined) drawStep(pen, scene, Number(held), 0.9);
  const { module: picked } = page.state.values; // "" is the root
  if (picked !== undefined)
    drawMark(
      pen,
      pointing,
      scene,
      heat.rows.findIndex((row) => row.module === picked),
    );
  const { module, tap, step } = page.cursor.point;
  if (step !== null && step !== undefined) drawStep(pen, scene, step, 0.6);
  const named = heat.rows.findIndex((row) =>
    tap === null || tap === undefined ? row.module === module : row.number === tap,
  );
  const row = pointing.at?.row ?? (named >= 0 ? named : heat.rows.findIndex((each) => each.module === module));
  const place = module === null || module === undefined || row < 0 ? -1 : pointing.placeOf(row);
  if (place < 0) return;
  const box = boxOf(scene.layout, place);
  outline(pen, scene, plot.x, box.y, plot.w, Math.max(2, box.h));
}

/** Light on dark and dark on light: seen on every color.
 * @param {CanvasRenderingContext2D} pen @param {Scene} scene @param {number} x @param {number} y @param {number} w
 * @param {number} h */
function outline(pen, { page }, x, y, w, h) {
  pen.lineWidth = 3;
  pen.strokeStyle = page.card;
  pen.strokeRect(x, y - 0.5, w, h + 1);
  pen.lineWidth = 1;
  pen.strokeStyle = page.ink;
  pen.strokeRect(x, y - 0.5, w, h + 1);
}

/** @param {CanvasRenderingContext2D} pen @param {Scene} scene @param {number} step @param {number} alpha */
function drawStep(pen, { layout, span, page }, step, alpha) {
  if (step < span[0] || step > span[1]) return;
  const { plot } = layout;
  const [left, right] = [xOf(layout, span, step), xOf(layout, span, step + 1)];
  const x = Math.min(plot.x + plot.w - 1, Math.max(plot.x, (left + right) / 2));
  pen.globalAlpha = alpha;
  for (const [width, color] of /** @type {[number, string][]} */ ([
    [3, page.card],
    [1, page.ink],
  ])) {
    pen.fillStyle = color;
    pen.fillRect(x - width / 2, plot.y, width, plot.h + 4);
  }
  pen.globalAlpha = 1;
}

/** A triangle at the picked layer.
 * @param {CanvasRenderingContext2D} pen @param {import("./pointing.js").Pointing} pointing @param {Scene} scene
 * @param {number} row */
function drawMark(pen, pointing, scene, row) {
  const place = row < 0 ? -1 : pointing.placeOf(row);
  if (place < 0) return;
  const { y, h } = boxOf(scene.layout, place);
  const { plot } = scene.layout;
  pen.fillStyle = scene.page.accent;
  pen.beginPath();
  pen.moveTo(plot.x, y + h / 2);
  pen.lineTo(plot.x - 8, y + h / 2 - 5);
  pen.lineTo(plot.x - 8, y + h / 2 + 5);
  pen.fill();
}
