// @ts-check
/** The place of a chart in the page: its drawing area, its legend with values, its cursor, its words. */
import { Brush } from "../canvas/brush.js";
import { breakable, h, write } from "../dom.js";
import { count } from "../format.js";
import { colors } from "../theme.js";
import { heldWords } from "./held.js";
import { MARGIN } from "./lines.js";
import { colorOf, SIGNS } from "./traces.js";
import { nearest, stepsAt, valueWords } from "./words.js";

const DOUBLE_MS = 300; // between two clicks
let made = 0;

export class Panel {
  width = 0;
  height = 0;
  words = "";
  /** What was drawn last. @type {import("./lines.js").LineFigure | null} */
  figure = null;
  /** Called when its size is another. */
  onSize = () => {};
  /** Called with the steps and the shares of the upright axis that a pointer drew a box around.
   * @type {(steps: [number, number] | null, shares: [number, number] | null) => void} */
  onZoom = () => {};
  /** Called at a double click. */
  onWhole = () => {};

  /** @param {import("../page.js").Page} page @param {HTMLElement} element
   * @param {{title: string, legend?: boolean}} options */
  constructor(page, element, options) {
    made += 1;
    this.page = page;
    this.element = element;
    /** @type {[number, number]} */
    this.range = [0, 1];
    const found = element.querySelector(":scope > .plot");
    this.place = /** @type {HTMLElement} */ (found ?? h("div", { class: "plot" }));
    if (!found) element.append(this.place);
    this.summary = h("p", { class: "quiet-label", id: `summary-${made}` });
    this.plot = h("div", {
      class: "plot-area",
      role: "img",
      tabindex: "0",
      "aria-keyshortcuts": "+ - ArrowUp ArrowDown",
      "aria-label": options.title,
      "aria-describedby": `summary-${made}`,
    });
    this.line = h("div", { class: "plot-cursor", hidden: true });
    this.notes = h("div", { class: "plot-notes", "aria-hidden": "true" });
    this.box = h("div", { class: "plot-box", hidden: true });
    this.empty = h("p", { class: "empty", hidden: true });
    this.legend = h("ul", { class: "plot-legend" });
    this.at = h("li", { class: "quiet" });
    this.place.replaceChildren(
      h("div", { class: "plot-frame" }, this.plot, this.notes, this.line, this.box),
      this.empty,
      this.legend,
      this.summary,
    );
    this.reset = h("button", { class: "button small", type: "button", hidden: true }, "Reset zoom");
    this.watcher = new ResizeObserver(([entry]) => this.#resize(entry.contentRect));
    this.watcher.observe(this.plot);
    this.#followPointer();
  }

  /** Its size before the observer's first word, which comes a frame late. */
  measure() {
    if (!this.width) [this.width, this.height] = [this.plot.clientWidth, this.plot.clientHeight];
  }

  /** @param {DOMRectReadOnly} size */
  #resize({ width, height }) {
    const [wide, high] = [Math.floor(width), Math.floor(height)];
    if (wide === this.width && high === this.height) return;
    [this.width, this.height] = [wide, high];
    this.onSize();
  }

  /** The pointer is the page's cursor; a click holds the page of a run at its step, and a box zooms. */
  #followPointer() {
    const { plot, page } = this;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let later;
    this.brush = new Brush(plot, {
      draw: () => this.#showBox(),
      take: ({ left, right, top, bottom }, wide, high) => {
        const steps = [left, right].map((x) => this.#stepAt(x));
        const shares = [bottom, top].map((y) => within(1 - (y - MARGIN.t) / (this.height - MARGIN.t - MARGIN.b), 0, 1));
        this.onZoom(wide ? [steps[0], steps[1]] : null, high ? [shares[0], shares[1]] : null);
      },
    });
    plot.addEventListener("pointermove", (event) => page.cursor.move({ step: this.#nearestTo(event) }, this));
    plot.addEventListener("pointerleave", () => page.cursor.move({ step: null }, this));
    plot.addEventListener("click", (event) => {
      clearTimeout(later); // the second click of two, which show the whole again
      const step = this.#captured(this.#nearestTo(event));
      if (event.detail < 2) later = setTimeout(() => this.#hold(step), DOUBLE_MS);
    });
    plot.addEventListener("dblclick", () => this.onWhole());
  }

  #showBox() {
    const box = this.brush?.box;
    this.box.hidden = !box;
    if (!box) return;
    const [left, right] = [box.left, box.right].map((x) => within(x, MARGIN.l, this.width - MARGIN.r));
    const [top, bottom] = [box.top, box.bottom].map((y) => within(y, MARGIN.t, this.height - MARGIN.b));
    const [width, height] = [`${right - left}px`, `${bottom - top}px`];
    Object.assign(this.box.style, { left: `${left}px`, top: `${top}px`, width, height });
  }

  /** @param {number} step */
  #hold(step) {
    this.page.cursor.pin({ step });
    if (this.page.run !== null) this.page.follow.hold(step);
  }

  /** The step that is drawn nearest to another one. @param {number} step */
  #captured(step) {
    const found = this.figure?.drawn.flatMap((points) => points.last[nearest(points, step)] ?? []) ?? [];
    return found.reduce(
      (best, each) => (Math.abs(each - step) < Math.abs(best - step) ? each : best),
      found[0] ?? step,
    );
  }

  /** The step at a distance from the left edge, or a place between two. @param {number} x pixels */
  #stepAt(x) {
    const { clock } = this.page;
    const [left, right] = this.range.map((each) => clock.place(each));
    const share = (x - MARGIN.l) / Math.max(1, this.width - MARGIN.l - MARGIN.r);
    return clock.step(left + within(share, 0, 1) * (right - left));
  }

  /** The step under the pointer. @param {MouseEvent} event */
  #nearestTo({ clientX }) {
    const [from, to] = this.range;
    const step = this.#stepAt(clientX - this.plot.getBoundingClientRect().left);
    return Math.round(within(step, from + 0.5, to - 0.5));
  }

  /** The cursor's line, and what each line says there: at the cursor, else at the step that is looked at.
   * @param {import("./lines.js").LineFigure} figure */
  point(figure) {
    this.range = figure.range;
    this.figure = figure;
    const { step: pointed = null } = this.page.cursor.point;
    const step = pointed ?? (areMoved(figure) ? null : this.page.follow.step);
    const [from, to] = figure.range;
    const shown =
      step !== null && step >= from && step <= to && (pointed !== null || this.page.state.get("step") !== "");
    this.line.hidden = !shown;
    if (shown) this.line.style.transform = `translateX(${this.#alongOf(step)}px)`;
    this.#tell(figure, step, pointed === null ? this.page.follow.held : null);
  }

  /** Pixels from the left edge to a step. @param {number} step */
  #alongOf(step) {
    const { clock } = this.page;
    const [left, right] = this.range.map((each) => clock.place(each));
    return MARGIN.l + ((clock.place(step) - left) / (right - left || 1)) * (this.width - MARGIN.l - MARGIN.r);
  }

  /** A line at each annotated step. @param {import("./lines.js").LineFigure} figure */
  showNotes(figure) {
    this.range = figure.range;
    const [from, to] = this.range;
    const shown = this.page.notes.all.filter(({ step }) => step >= from && step <= to);
    const lines = shown.map(({ step, text }) => {
      const line = h("div", { title: `Step ${count(step)}: ${text}` });
      line.style.transform = `translateX(${this.#alongOf(step)}px)`;
      return line;
    });
    if (lines.length || this.notes.children.length) this.notes.replaceChildren(...lines);
  }

  /** @param {import("./lines.js").LineFigure} figure @param {number | null} step
   * @param {number | null} held then the values of this step only */
  #tell(figure, step, held) {
    const palette = colors();
    const known = figure.drawn.find(({ x }) => x.length);
    const alone = held === null && known && !areMoved(figure) ? stepsAt(known, nearest(known, step)) : "";
    const words = held === null ? alone : `step ${count(held)}`;
    const beside = step === null ? "" : this.page.clock.beside(step);
    const note = step === null ? "" : this.page.notes.at(step);
    const items = figure.lines.flatMap((line, order) => {
      const points = figure.drawn[order];
      if (!points) return []; // new, and out of view: not drawn yet
      const place = nearest(points, step);
      // Lines may have been captured at different steps, such as those of two runs.
      const own = stepsAt(points, place);
      const [value, steps] =
        held === null
          ? [valueWords(line, points, place), own && own !== words ? `at ${own}` : ""]
          : heldWords(line, points, held, figure.exact?.step === held ? figure.exact.lines : undefined);
      const sign = h("span", { class: line.mean ? "sign" : "sign wide-sign", "aria-hidden": "true" });
      sign.style.color = colorOf(line, order, palette);
      if (line.dashed) sign.classList.add("dashed");
      const at = steps ? h("span", { class: "quiet" }, steps) : null;
      return h(
        "li",
        {},
        sign,
        h("span", { class: "name" }, ...breakable(line.name)),
        h("b", { class: "number" }, value),
        at,
      );
    });
    this.at.textContent = [words, beside, note].filter(Boolean).join(" \u00b7 ");
    this.legend.replaceChildren(this.at, ...items, ...marksOf(figure));
  }

  /** @param {string} summary */
  describe(summary) {
    write(this.summary, summary);
  }

  /** Words in the place of the chart. @param {string} words */
  say(words) {
    this.words = words;
    this.empty.replaceChildren(...breakable(words));
    this.empty.hidden = !words;
    for (const each of [this.plot, this.legend, this.summary]) each.hidden = Boolean(words);
    if (words) this.line.hidden = true;
  }

  remove() {
    this.watcher.disconnect();
    this.place.replaceChildren();
  }
}

/** Whether each line has steps of its own on the axis. @param {import("./lines.js").LineFigure} figure */
function areMoved({ lines }) {
  return lines.some(({ steps }) => steps);
}

/** @param {number} value @param {number} low @param {number} high */
function within(value, low, high) {
  return Math.min(high, Math.max(low, value));
}

/** The legend of non-finite values: the signs at the foot of the axis.
 * @param {import("./lines.js").LineFigure} figure */
function marksOf(figure) {
  const there = new Set(figure.drawn.flatMap(({ marks }) => marks.map(({ sign }) => sign)));
  return [...there].map((sign) =>
    h(
      "li",
      { class: SIGNS[sign][1] },
      h("span", { "aria-hidden": "true" }, SIGNS[sign][0]),
      `${SIGNS[sign][2]} in this span`,
    ),
  );
}
