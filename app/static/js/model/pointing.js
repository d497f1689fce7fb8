// @ts-check
/** What a pointer does with the boxes: a tip over one, a click that selects it, opens it, or closes it. */
import { hideTip, showTip } from "../canvas/tip.js";
import { HEAD } from "./sizes.js";
import { hit } from "./view.js";
import { tipOf } from "./words.js";

const FOLD_PX = 26; // of a box's corner: a click there opens or closes it

/** @param {import("./picture.js").Picture} picture */
export function addPointing(picture) {
  listen(picture.pad, {
    view: picture.view,
    moved: () => picture.moved(),
    point: (x, y) => point(picture, x, y),
    leave: () => point(picture, -1, -1),
    click: (x, y, twice) => click(picture, x, y, twice),
  });
}

/** The box at a place of the window; of an open one, only its heading. @param {import("./picture.js").Picture} picture
 * @param {number} x @param {number} y */
function boxAt({ structure, view }, x, y) {
  const { arranged, open } = structure;
  const place = view.at(x, y);
  const rect = arranged ? hit(arranged.rects, place) : null;
  return rect && open.has(rect.number) && place[1] > rect.y + HEAD ? null : rect;
}

/** @param {import("./picture.js").Picture} picture @param {number} x @param {number} y */
function point(picture, x, y) {
  const rect = x < 0 ? null : boxAt(picture, x, y);
  if (rect && picture.structure.tree) {
    const { left, top } = picture.pad.getBoundingClientRect();
    showTip(tipOf(picture, rect.number), left + x, top + y);
  } else hideTip();
  picture.pad.classList.toggle("over", rect !== null);
  if ((rect?.number ?? null) === picture.pointed) return;
  picture.pointed = rect?.number ?? null;
  picture.draw();
}

/** @param {import("./picture.js").Picture} picture @param {number} x @param {number} y @param {boolean} twice */
function click(picture, x, y, twice) {
  const rect = boxAt(picture, x, y);
  const { tree, open } = picture.structure;
  hideTip();
  if (!rect || !tree) return twice ? undefined : picture.select(null);
  const { kind, parts } = tree.boxes[rect.number];
  const [atX, atY] = picture.view.at(x, y);
  const corner = open.has(rect.number)
    ? atX < rect.x + FOLD_PX
    : atX > rect.x + rect.w - FOLD_PX && atY < rect.y + FOLD_PX;
  if (parts.length && (twice || corner || kind === "repeat")) picture.toggle(rect.number);
  else if (!twice) picture.select(rect.number);
}

const CLICK_PX = 4;
const WHEEL = 0.0022;

/** @typedef {{view: import("./view.js").View, moved: () => void, point: (x: number, y: number) => void,
 *   leave: () => void, click: (x: number, y: number, twice: boolean) => void}} Holder */

/** @param {HTMLElement} pad @param {Holder} holder */
function listen(pad, holder) {
  /** The fingers or buttons that are down. @type {Map<number, {x: number, y: number}>} */
  const down = new Map();
  let far = 0;
  const at = (/** @type {{clientX: number, clientY: number}} */ { clientX, clientY }) => {
    const { left, top } = pad.getBoundingClientRect();
    return { x: clientX - left, y: clientY - top };
  };
  pad.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pad.setPointerCapture(event.pointerId);
    down.set(event.pointerId, at(event));
    far = down.size > 1 ? Infinity : 0;
  });
  pad.addEventListener("pointermove", (event) => {
    const before = down.get(event.pointerId);
    const now = at(event);
    if (!before) return holder.point(now.x, now.y);
    const others = [...down].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
    down.set(event.pointerId, now);
    far += Math.hypot(now.x - before.x, now.y - before.y);
    if (others.length) pinch(holder, others[0], before, now);
    else if (far > CLICK_PX) holder.view.move(now.x - before.x, now.y - before.y);
    else return;
    pad.classList.add("held");
    holder.moved();
  });
  for (const ends of ["pointerup", "pointercancel"])
    pad.addEventListener(ends, (event) => {
      const { pointerId, detail, type } = /** @type {PointerEvent} */ (event);
      const place = down.get(pointerId);
      down.delete(pointerId);
      pad.classList.remove("held");
      if (place && type === "pointerup" && far <= CLICK_PX) holder.click(place.x, place.y, detail === 2);
    });
  pad.addEventListener("pointerleave", () => holder.leave());
  pad.addEventListener("dblclick", (event) => {
    const { x, y } = at(event);
    holder.click(x, y, true);
  });
  pad.addEventListener(
    "wheel",
    (event) => {
      const { x, y } = at(event);
      if (event.ctrlKey || event.metaKey) holder.view.zoom(Math.exp(-event.deltaY * WHEEL), x, y);
      // What can't be moved any further leaves the wheel to the page.
      else if (!holder.view.isWhole && !holder.view.move(-event.deltaX, -event.deltaY)) return;
      else if (holder.view.isWhole) return;
      event.preventDefault();
      holder.moved();
    },
    { passive: false },
  );
}

/** @param {Holder} holder @param {{x: number, y: number}} other @param {{x: number, y: number}} before
 * @param {{x: number, y: number}} now */
function pinch({ view }, other, before, now) {
  const [from, to] = [before, now].map(({ x, y }) => Math.max(1, Math.hypot(x - other.x, y - other.y)));
  view.zoom(to / from, (now.x + other.x) / 2, (now.y + other.y) / 2);
  view.move((now.x - before.x) / 2, (now.y - before.y) / 2);
}
