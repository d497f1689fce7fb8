// @ts-check
/** What a pointer does with the boxes: a tip over one, a click that selects it, opens it, or closes it. */
import { hideTip, showTip } from "../canvas/tip.js";
import { listen } from "./hand.js";
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
