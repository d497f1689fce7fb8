// @ts-check
/** A heatmap by keyboard: the arrows move over layers and steps, and the value there is read out. */

import { movedBy } from "../canvas/index.js";
import { number } from "../format.js";
import { cellValue } from "./export.js";
import { ROW_PX } from "./layout.js";
import { labelOf } from "./rows.js";
import { zoom } from "./zoom.js";

const READ_MS = 400; // a key that is held down is read once, at its end
const ZOOM = 1.5;

/** @typedef {import("./pointing.js").Pointing} Pointing */

/** @type {ReturnType<typeof setTimeout> | undefined} */
let reading;

/** @param {KeyboardEvent} event @param {Pointing} pointing */
export function moveBy(event, pointing) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const [right, up] = movedBy(event);
  if (right || up) go(pointing, -up, right);
  else if (event.key === "Home" || event.key === "End") jump(pointing, event.key === "End");
  else if (event.key === "+" || event.key === "-")
    zoom(pointing, event.key === "-" ? ZOOM : 1 / ZOOM, start(pointing)?.step ?? 0);
  else if (event.key === "Enter") pointing.pick(pointing.at);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

/** The current position; at first the first layer, at the current step. @param {Pointing} pointing */
function start({ at, heat, page }) {
  const span = heat.span;
  if (at !== null) return at;
  if (span === null || !heat.visible.length) return null;
  return { row: heat.visible[0], step: Math.min(span[1], Math.max(span[0], page.follow.step ?? span[1])), sharing: 1 };
}

/** @param {Pointing} pointing @param {number} rows @param {number} steps */
function go(pointing, rows, steps) {
  const { heat } = pointing;
  const from = start(pointing);
  if (from === null) return;
  const begun = pointing.at === null;
  const place = Math.min(heat.visible.length - 1, Math.max(0, heat.visible.indexOf(from.row) + (begun ? 0 : rows)));
  reveal(pointing, place);
  pointing.point({ row: heat.visible[place], step: heat.stopAt(from.step, begun ? 0 : steps), sharing: 1 });
  read(pointing);
}

/** @param {Pointing} pointing @param {boolean} end */
function jump(pointing, end) {
  const span = pointing.heat.span;
  const from = start(pointing);
  if (span === null || from === null) return;
  pointing.point({ ...from, step: pointing.heat.stopAt(span[end ? 1 : 0]), sharing: 1 });
  read(pointing);
}

/** Scrolls to a row. @param {Pointing} pointing @param {number} place */
function reveal({ heat, screen }, place) {
  const layout = screen.scene?.layout;
  if (!layout || layout.content <= layout.plot.h || place < layout.pinned) return;
  const room = layout.shown.length - layout.pinned;
  const first = Math.round(screen.pad.scrollTop / ROW_PX);
  const wanted = place - heat.pinned;
  if (wanted < first) screen.pad.scrollTop = wanted * ROW_PX;
  else if (wanted >= first + room) screen.pad.scrollTop = (wanted - room + 1) * ROW_PX;
}

/** @param {Pointing} pointing */
function read(pointing) {
  clearTimeout(reading);
  reading = setTimeout(() => {
    const { at, heat, page } = pointing;
    if (at === null || !heat.columns) return;
    const value = cellValue(heat.columns, heat.columns.at(at.step), at.row);
    page.announce(`${labelOf(heat.rows[at.row])}, step ${at.step}, ${value === null ? "not captured" : number(value)}`);
  }, READ_MS);
}
