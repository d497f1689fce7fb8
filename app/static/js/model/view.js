/** Which part of the picture is in the window: moved, zoomed, fitted, and pointed at. */

import { hideTip, showTip } from "../popup.js";
import { tipOf } from "./boxes.js";
import { HEAD } from "./tree.js";

/** @import { Arranged, Rect } from "./arrange.js"
 * @import { Picture } from "./picture.js" */

const MAX_SCALE = 2.5; // CSS pixels of a unit of the picture
const MIN_SCALE = 0.02;
const EDGE = 60; // of the picture, that stays in the window
const READABLE = 0.62; // a smaller scale shows no names: then only the width is fitted
const MARGIN = 14;

export class View {
  scale = 1;
  /** The picture's place in the window, in CSS pixels. */
  x = 0;
  y = 0;
  width = 1;
  height = 1;
  /** @type {[number, number]} */
  picture = [1, 1];

  /** @param {number} width @param {number} height */
  resize(width, height) {
    this.width = width;
    this.height = height;
    this.#keep();
  }

  /** All of it, or at least its width, if names can be read then. @param {boolean} [all] even if they can't */
  fit(all = false) {
    const [wide, high] = this.picture;
    const whole = Math.min((this.width - 2 * MARGIN) / wide, (this.height - 2 * MARGIN) / high, 1.2);
    const scale = all || whole >= READABLE ? whole : Math.min(1, Math.max(READABLE, (this.width - 2 * MARGIN) / wide));
    this.scale = Math.min(MAX_SCALE, Math.max(MIN_SCALE, scale));
    const fits = (/** @type {number} */ room, /** @type {number} */ size) =>
      Math.max(MARGIN, (room - size * this.scale) / 2);
    this.x = fits(this.width, wide);
    this.y = high * this.scale < this.height ? fits(this.height, high) : MARGIN;
  }

  /** @param {number} right @param {number} down */
  move(right, down) {
    const [x, y] = [this.x, this.y];
    this.x += right;
    this.y += down;
    this.#keep();
    return this.x !== x || this.y !== y;
  }

  /** @param {number} factor @param {number} x in the window, what stays where it is @param {number} y */
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const scale = Math.min(MAX_SCALE, Math.max(MIN_SCALE, this.scale * factor));
    this.x = x - ((x - this.x) / this.scale) * scale;
    this.y = y - ((y - this.y) / this.scale) * scale;
    this.scale = scale;
    this.#keep();
  }

  /** Brings a rectangle into the window. @param {{x: number, y: number, w: number, h: number}} rect */
  show({ x, y, w, h }) {
    const [left, top] = [x * this.scale + this.x, y * this.scale + this.y];
    const [wide, high] = [w * this.scale, h * this.scale];
    if (left < MARGIN || left + wide > this.width - MARGIN)
      this.x += wide > this.width - 2 * MARGIN ? MARGIN - left : this.width / 2 - left - wide / 2;
    if (top < MARGIN || top + high > this.height - MARGIN)
      this.y += high > this.height - 2 * MARGIN ? MARGIN - top : this.height / 2 - top - high / 2;
    this.#keep();
  }

  /** Brings a point of the picture to where another one was. @param {[number, number]} now
   * @param {[number, number]} before */
  anchor([x, y], [beforeX, beforeY]) {
    this.move((beforeX - x) * this.scale, (beforeY - y) * this.scale);
  }

  /** A place in the window as one of the picture. @param {number} x @param {number} y @returns {[number, number]} */
  at(x, y) {
    return [(x - this.x) / this.scale, (y - this.y) / this.scale];
  }

  /** What of the picture is in the window: left, top, right, bottom. @returns {[number, number, number, number]} */
  get seen() {
    return [...this.at(0, 0), ...this.at(this.width, this.height)];
  }

  /** Whether all of it is in the window. */
  get isWhole() {
    const [left, top, right, bottom] = this.seen;
    return left <= 0 && top <= 0 && right >= this.picture[0] && bottom >= this.picture[1];
  }

  /** A part of the picture stays in the window. */
  #keep() {
    const edge = (/** @type {number} */ size, /** @type {number} */ room) => Math.min(EDGE, size, room / 2);
    const [wide, high] = [this.picture[0] * this.scale, this.picture[1] * this.scale];
    this.x = Math.min(this.width - edge(wide, this.width), Math.max(edge(wide, this.width) - wide, this.x));
    this.y = Math.min(this.height - edge(high, this.height), Math.max(edge(high, this.height) - high, this.y));
  }
}

/** The box at a point of the picture, the innermost one; null if there is none.
 * @template {{x: number, y: number, w: number, h: number}} R @param {readonly R[]} rects outer ones first
 * @param {[number, number]} point @returns {R | null} */
export function hit(rects, [x, y]) {
  for (let place = rects.length - 1; place >= 0; place -= 1) {
    const rect = rects[place];
    if (x >= rect.x && x <= rect.x + rect.w && y >= rect.y && y <= rect.y + rect.h) return rect;
  }
  return null;
}

/** The next box in a direction, as the eye sees it: near, and not far off the line.
 * @template {{x: number, y: number, w: number, h: number}} R @param {readonly R[]} rects @param {R} from
 * @param {number} right @param {number} down @returns {R | null} */
export function neighbor(rects, from, right, down) {
  const middle = (/** @type {R} */ { x, y, w, h }) => [x + w / 2, y + h / 2];
  const [x, y] = middle(from);
  let best = null;
  let least = Infinity;
  for (const rect of rects) {
    if (rect === from) continue;
    const [toX, toY] = middle(rect);
    const ahead = (toX - x) * right + (toY - y) * down;
    const aside = Math.abs((toX - x) * down) + Math.abs((toY - y) * right);
    if (ahead <= 1 || aside > 4 * ahead) continue;
    const far = ahead + 2 * aside;
    if (far < least) [best, least] = [rect, far];
  }
  return best;
}

/** What is in the window after boxes have been rearranged. */
export class Place {
  /** What stays where it is. @type {Rect | null} */
  anchor = null;
  /** The box to bring into the window once it stands somewhere. @type {number | null} */
  wanted = null;
  /** Whether the reader has moved the picture: then it isn't fitted again by itself. */
  isMoved = false;
  #next = /** @type {"fit" | "all" | "keep"} */ ("fit");

  /** @param {View} view */
  constructor(view) {
    this.view = view;
  }

  /** Shows all of it, with names or whatever it takes. @param {boolean} all */
  fit(all) {
    this.#next = "keep";
    this.isMoved = false;
    this.view.fit(all);
  }

  /** Shows all of it once it is arranged. */
  fitSoon() {
    this.#next = "all";
  }

  /** Takes a picture. @param {Arranged} arranged */
  take(arranged) {
    const { view, anchor } = this;
    view.picture = [arranged.width, arranged.height];
    if (view.width < 10) return; // it isn't visible
    const find = (/** @type {number | undefined | null} */ wanted) =>
      arranged.rects.find(({ number }) => number === wanted);
    const stays = find(anchor?.number);
    if (this.#next !== "keep" || (!this.isMoved && !anchor)) this.fit(this.#next === "all");
    else if (anchor && stays) view.anchor([stays.x, stays.y], [anchor.x, anchor.y]);
    else view.move(0, 0);
    this.anchor = null;
    const wanted = find(this.wanted);
    if (!wanted) return;
    view.show(wanted);
    this.wanted = null;
  }
}

const FOLD_PX = 26; // of a box's corner: a click there opens or closes it

/** @param {Picture} picture */
export function addPointing(picture) {
  listen(picture.pad, {
    view: picture.view,
    moved: () => picture.moved(),
    point: (x, y) => point(picture, x, y),
    leave: () => point(picture, -1, -1),
    click: (x, y, twice) => click(picture, x, y, twice),
  });
}

/** The box at a place of the window; of an open one, only its heading. @param {Picture} picture
 * @param {number} x @param {number} y */
function boxAt({ structure, view }, x, y) {
  const { arranged, open } = structure;
  const place = view.at(x, y);
  const rect = arranged ? hit(arranged.rects, place) : null;
  return rect && open.has(rect.number) && place[1] > rect.y + HEAD ? null : rect;
}

/** @param {Picture} picture @param {number} x @param {number} y */
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

/** @param {Picture} picture @param {number} x @param {number} y @param {boolean} twice */
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

/** @typedef {{view: View, moved: () => void, point: (x: number, y: number) => void,
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
