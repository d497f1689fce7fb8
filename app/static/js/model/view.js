/** Which part of the picture is in the window: moved, zoomed, fitted, and pointed at. */

/** @import { Arranged, Rect } from "./arrange.js" */

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

  /** Fits the whole picture, or its width if names couldn't be read otherwise. @param {boolean} [all] the whole one */
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

  /** Moves the picture so that a point is where one was. @param {[number, number]} now
   * @param {[number, number]} before */
  anchor([x, y], [beforeX, beforeY]) {
    this.move((beforeX - x) * this.scale, (beforeY - y) * this.scale);
  }

  /** Returns what of the picture is at a place. @param {number} x @param {number} y @returns {[number, number]} */
  at(x, y) {
    return [(x - this.x) / this.scale, (y - this.y) / this.scale];
  }

  /** The visible part of the picture: left, top, right, bottom. @returns {[number, number, number, number]} */
  get seen() {
    return [...this.at(0, 0), ...this.at(this.width, this.height)];
  }

  /** Whether all of it is in the window. */
  get isWhole() {
    const [left, top, right, bottom] = this.seen;
    return left <= 0 && top <= 0 && right >= this.picture[0] && bottom >= this.picture[1];
  }

  /** Keeps a part of the picture in the window. */
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

/** Decides what is in the window after boxes have been rearranged. */
export class Place {
  /** The box that stays where it is. @type {Rect | null} */
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

  /** Fits the picture now. @param {boolean} all */
  fit(all) {
    this.#next = "keep";
    this.isMoved = false;
    this.view.fit(all);
  }

  /** Fits the whole picture once it is arranged. */
  fitSoon() {
    this.#next = "all";
  }

  /** Takes a rearranged picture. @param {Arranged} arranged */
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

const CLICK_PX = 4;
const WHEEL = 0.0022;

/** Moves and zooms a view, by a drag, by two fingers, and by the wheel. */
export class Pan {
  /** The fingers or buttons that are down. @type {Map<number, {x: number, y: number}>} */
  #down = new Map();
  #far = 0;

  /** @param {HTMLElement} element @param {View} view @param {() => void} moved */
  constructor(element, view, moved) {
    this.element = element;
    this.view = view;
    this.moved = moved;
    element.addEventListener("pointerdown", (event) => this.#press(event));
    element.addEventListener("pointermove", (event) => this.#move(event));
    for (const ends of ["pointerup", "pointercancel"])
      element.addEventListener(ends, (event) => {
        this.#down.delete(/** @type {PointerEvent} */ (event).pointerId);
        element.classList.remove("held");
      });
    // The click that ends a drag means nothing else.
    const isOver = () => this.#far > CLICK_PX;
    element.addEventListener("click", (event) => isOver() && event.stopImmediatePropagation(), { capture: true });
    element.addEventListener("wheel", (event) => this.#turn(event), { passive: false });
  }

  get isMoving() {
    return this.#down.size > 0;
  }

  /** @param {MouseEvent} event */
  #placeOf({ clientX, clientY }) {
    const { left, top } = this.element.getBoundingClientRect();
    return { x: clientX - left, y: clientY - top };
  }

  /** @param {PointerEvent} event */
  #press(event) {
    if (event.button !== 0) return;
    this.element.setPointerCapture(event.pointerId);
    this.#down.set(event.pointerId, this.#placeOf(event));
    this.#far = this.#down.size > 1 ? Infinity : 0;
  }

  /** @param {PointerEvent} event */
  #move(event) {
    const before = this.#down.get(event.pointerId);
    if (!before) return;
    const now = this.#placeOf(event);
    const others = [...this.#down].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
    this.#down.set(event.pointerId, now);
    this.#far += Math.hypot(now.x - before.x, now.y - before.y);
    if (others.length) this.#pinch(others[0], before, now);
    else if (this.#far > CLICK_PX) this.view.move(now.x - before.x, now.y - before.y);
    else return;
    this.element.classList.add("held");
    this.moved();
  }

  /** @param {{x: number, y: number}} other the finger that stays @param {{x: number, y: number}} before
   * @param {{x: number, y: number}} now */
  #pinch(other, before, now) {
    const [from, to] = [before, now].map(({ x, y }) => Math.max(1, Math.hypot(x - other.x, y - other.y)));
    this.view.zoom(to / from, (now.x + other.x) / 2, (now.y + other.y) / 2);
    this.view.move((now.x - before.x) / 2, (now.y - before.y) / 2);
  }

  /** @param {WheelEvent} event */
  #turn(event) {
    const { view } = this;
    const { x, y } = this.#placeOf(event);
    if (event.ctrlKey || event.metaKey) view.zoom(Math.exp(-event.deltaY * WHEEL), x, y);
    // What can't be moved any further leaves the wheel to the page.
    else if (view.isWhole || !view.move(-event.deltaX, -event.deltaY)) return;
    event.preventDefault();
    this.moved();
  }
}
