// @ts-check
/** Other steps of a heatmap, by wheel and by key: closer, further away, along. */
import { stepAt } from "./layout.js";

const ZOOM = 1.25;
const PAN = 0.05; // of the shown part
const MIN_STEPS = 2; // steps between the first and the last

/** @typedef {import("./pointing.js").Pointing} Pointing */

/** The wheel zooms with Ctrl (so do two fingers), and moves along the steps sideways; else the page scrolls.
 * @param {WheelEvent} event @param {Pointing} pointing @param {number} x */
export function turn(event, pointing, x) {
  const { scene } = pointing.screen;
  if (!scene) return;
  const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
  if (event.ctrlKey || event.metaKey)
    zoom(pointing, event.deltaY > 0 ? ZOOM : 1 / ZOOM, stepAt(scene.layout, scene.span, x));
  else if (event.shiftKey || Math.abs(sideways) > Math.abs(event.deltaY)) pan(pointing, Math.sign(sideways) * PAN);
  else return;
  event.preventDefault();
}

/** @param {Pointing} pointing @param {number} factor @param {number} around a step */
export function zoom({ screen, page }, factor, around) {
  const span = screen.scene?.span;
  if (!span) return;
  const from = Math.max(0, around - (around - span[0]) * factor);
  const to = Math.min(page.follow.newest ?? span[1], around + (span[1] - around) * factor);
  if (to - from >= MIN_STEPS) page.follow.zoom(from, to);
}

/** @param {Pointing} pointing @param {number} share of the shown part */
function pan({ screen, page }, share) {
  const span = screen.scene?.span;
  const newest = page.follow.newest;
  if (!span || newest === null) return;
  const by = Math.max(-span[0], Math.min(newest - span[1], Math.round((span[1] - span[0] + 1) * share)));
  if (by) page.follow.zoom(span[0] + by, span[1] + by);
}
