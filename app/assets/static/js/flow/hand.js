// @ts-check
/** The reader's hand on the bars of one step: the values under the pointer, one cursor with the other charts, and
 * picking. */
import { penOf } from "../canvas/index.js";
import { hideTip, showTip } from "../canvas/tip.js";
import { MISSING, startOf, worse } from "../canvas/worst.js";
import { colors } from "../theme.js";
import { barsIn } from "./bars.js";
import { layerAt } from "./marks.js";

/** @type {Record<string, number>} */
const MOVES = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };

export class Hand {
  /** The layer that is pointed at, by its place; -1: none. */
  at = -1;

  /** @param {import("../page.js").Page} page @param {import("./profile.js").Profile} profile */
  constructor(page, profile) {
    this.page = page;
    this.profile = profile;
    const { pad } = profile;
    page.cursor.on("move", (point) => point.source === this || this.draw());
    page.state.on("module", () => this.draw());
    pad.addEventListener("pointermove", (event) => this.point(event));
    pad.addEventListener("pointerleave", () => this.leave());
    pad.addEventListener("blur", () => this.leave());
    pad.addEventListener("click", () => this.pick());
    pad.addEventListener("keydown", (event) => this.hear(event));
  }

  /** @param {PointerEvent} event */
  point({ offsetX, clientX, clientY }) {
    const { boxes, shown } = this.profile;
    if (!boxes.length) return;
    const many = barsIn(shown.length, boxes[0].w);
    const bar = layerAt(boxes[0], many, offsetX);
    if (bar < 0) return this.leave();
    const [from, to] = [startOf(bar, shown.length, many), startOf(bar + 1, shown.length, many)];
    this.moveTo(this.worstIn(from, to), clientX, clientY, to - from);
  }

  /** Of layers that share a bar: the one with the worst gradient, or activation if there are no gradients.
   * @param {number} from @param {number} to */
  worstIn(from, to) {
    const [activations, gradients] = this.profile.bits;
    const bits = gradients?.some((each) => each !== MISSING) ? gradients : activations;
    let found = from;
    for (let place = from; place < to; place += 1) if (worse(bits[found], bits[place]) !== bits[found]) found = place;
    return found;
  }

  /** @param {number} place @param {number} x @param {number} y of the tip, in the window @param {number} [sharing] */
  moveTo(place, x, y, sharing = 1) {
    const { shown, step } = this.profile;
    const layer = shown[place];
    if (!layer) return;
    this.at = place;
    this.page.cursor.move({ module: layer.module, tap: null, step }, this);
    const more = sharing > 1 ? `\nthe worst of ${sharing} layers here` : "";
    showTip(`${layer.label}${layer.type ? ` (${layer.type})` : ""}\n${this.profile.words(place)}${more}`, x, y);
    this.draw();
  }

  leave() {
    if (this.at >= 0) this.page.cursor.move({ module: null, tap: null, step: null }, this);
    this.at = -1;
    hideTip();
    this.draw();
  }

  pick() {
    const layer = this.profile.shown[this.at];
    if (layer) this.profile.options.onPick(layer);
  }

  /** @param {KeyboardEvent} event */
  hear(event) {
    const { boxes, shown, pad } = this.profile;
    const by = MOVES[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey || (event.key !== "Enter" && by === undefined)) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Enter") return this.pick();
    if (!boxes.length || !shown.length) return;
    const place = this.at < 0 ? 0 : Math.min(shown.length - 1, Math.max(0, this.at + by));
    const corner = pad.getBoundingClientRect();
    this.moveTo(place, corner.left + boxes[0].x + (place / shown.length) * boxes[0].w, corner.top + 20);
    this.page.announce(`${shown[place].label}, ${this.profile.words(place)}`);
  }

  /** A frame around the layer that is pointed at, here or in another chart, and around the one that was picked. */
  draw() {
    const { plot, over, boxes, shown } = this.profile;
    const { clientWidth, clientHeight } = plot;
    if (!clientWidth || !boxes.length) return;
    const pen = penOf(over, clientWidth, clientHeight);
    const page = colors();
    const pointed = this.at >= 0 ? this.at : this.placeOf(this.page.cursor.point.module);
    const [top, bottom] = [boxes[0], boxes[boxes.length - 1]];
    for (const [place, color] of /** @type {[number, string][]} */ ([
      [this.placeOf(this.page.state.get("module")), page.accent],
      [pointed, page.ink],
    ])) {
      if (place < 0 || place >= shown.length) continue;
      const each = top.w / shown.length;
      pen.strokeStyle = color;
      pen.lineWidth = 1.5;
      pen.strokeRect(top.x + place * each, top.y - 1, Math.max(2, each), bottom.y + bottom.h - top.y + 2);
    }
  }

  /** @param {string | null | undefined} module */
  placeOf(module) {
    return module !== null && module !== undefined
      ? this.profile.shown.findIndex((layer) => layer.module === module)
      : -1;
  }
}
