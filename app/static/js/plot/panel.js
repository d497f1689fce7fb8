/** The place of a chart in the page: its drawing area, its legend with values, its cursor, its words. No Plotly. */
import { breakable, coded, h, write } from "../dom.js";
import { count } from "../format.js";
import { colors } from "../theme.js";
import { colorOf, MARGIN, SIGNS } from "./lines.js";
import { heldWords, nearest, stepsAt, valueWords } from "./words.js";

/** @import { Page } from "../page.js"
 * @import { LineFigure } from "./lines.js" */

const CLICK_PX = 4;
const DOUBLE_MS = 300; // between two clicks
let made = 0;

export class Panel {
  width = 0;
  height = 0;
  words = "";
  /** What was drawn last. @type {LineFigure | null} */
  figure = null;
  /** Called when its size is another. */
  onSize = () => {};
  #gone = new AbortController();

  /** @param {Page} page @param {HTMLElement} element @param {{title: string, legend?: boolean}} options */
  constructor(page, element, options) {
    made += 1;
    this.page = page;
    this.element = element;
    const place = element.querySelector(":scope > .plot");
    this.place = /** @type {HTMLElement} */ (place ?? h("div", { class: "plot" }));
    if (!place) element.append(this.place);
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
    this.empty = h("p", { class: "empty", hidden: true });
    this.legend = h("ul", { class: "plot-legend" });
    this.at = h("li", { class: "quiet" });
    this.left = h("li", { class: "quiet", hidden: true });
    this.place.replaceChildren(
      h("div", { class: "plot-frame" }, this.plot, this.notes, this.line),
      this.empty,
      this.legend,
      this.summary,
    );
    this.reset = h("button", { class: "button small", type: "button", hidden: true }, "Reset zoom");
    this.watcher = new ResizeObserver(([entry]) => this.#resize(entry.contentRect));
    this.watcher.observe(this.plot);
    this.#followPointer();
  }

  /** Reads the size before the observer reports it, which is a frame late. */
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

  /** Moves the page's cursor with the pointer, and holds the page at the step of a click. */
  #followPointer() {
    const { plot, page } = this;
    let [downAt, downY, clickAt] = [NaN, NaN, -Infinity];
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let later;
    plot.addEventListener("pointermove", (event) => page.cursor.move({ step: this.#stepAt(event.clientX) }, this), {
      capture: true,
    });
    plot.addEventListener("pointerleave", () => page.cursor.move({ step: null }, this));
    plot.addEventListener(
      "pointerdown",
      (event) => {
        [downAt, downY] = [event.clientX, event.clientY];
        clearTimeout(later); // the second click of two, which show the whole again
      },
      { capture: true },
    );
    // Plotly covers the page while it drags: the end of a click may be heard elsewhere.
    addEventListener(
      "pointerup",
      (event) => {
        const moved = Math.max(Math.abs(event.clientX - downAt), Math.abs(event.clientY - downY));
        if (moved < CLICK_PX && event.button === 0) {
          const step = this.#captured(this.#stepAt(downAt));
          if (performance.now() - clickAt > DOUBLE_MS) later = setTimeout(() => this.#hold(step), DOUBLE_MS);
          clickAt = performance.now();
        }
        [downAt, downY] = [NaN, NaN];
      },
      { capture: true, signal: this.#gone.signal },
    );
  }

  /** @param {number} step */
  #hold(step) {
    this.page.cursor.pin({ step });
    if (this.page.run !== null) this.page.follow.hold(step);
  }

  /** Returns the drawn step that is nearest to another one. @param {number} step */
  #captured(step) {
    const steps = this.figure?.drawn.flatMap((points) => points.last[nearest(points, step)] ?? []) ?? [];
    return steps.reduce(
      (best, other) => (Math.abs(other - step) < Math.abs(best - step) ? other : best),
      steps[0] ?? step,
    );
  }

  /** @param {number} clientX */
  #stepAt(clientX) {
    const share =
      (clientX - this.plot.getBoundingClientRect().left - MARGIN.l) / Math.max(1, this.width - MARGIN.l - MARGIN.r);
    return this.figure?.along.stepAt(share) ?? 0;
  }

  /** The cursor's line, and what each line says there: at the cursor, else at the step that is looked at.
   * @param {LineFigure} figure */
  point(figure) {
    this.figure = figure;
    const { step: pointed = null } = this.page.cursor.point;
    const step = pointed ?? (areMoved(figure) ? null : this.page.follow.step);
    const [from, to] = figure.along.span;
    const shown =
      step !== null && step >= from && step <= to && (pointed !== null || this.page.state.get("step") !== "");
    this.line.hidden = !shown;
    if (shown) this.line.style.transform = `translateX(${this.#alongOf(step)}px)`;
    this.#tell(figure, step, pointed === null ? this.page.follow.held : null);
  }

  /** Pixels from the left edge to a step. @param {number} step */
  #alongOf(step) {
    return MARGIN.l + (this.figure?.along.share(step) ?? 0) * (this.width - MARGIN.l - MARGIN.r);
  }

  /** Draws a line at each annotated step. @param {LineFigure} figure */
  showNotes(figure) {
    this.figure = figure;
    const [from, to] = figure.along.span;
    const shown = this.page.notes.all.filter(({ step }) => step >= from && step <= to);
    const lines = shown.map(({ step, text }) => {
      const line = h("div", { title: `Step ${count(step)}: ${text}` });
      line.style.transform = `translateX(${this.#alongOf(step)}px)`;
      return line;
    });
    if (lines.length || this.notes.children.length) this.notes.replaceChildren(...lines);
  }

  /** @param {LineFigure} figure @param {number | null} step
   * @param {number | null} held then the values of this step only */
  #tell(figure, step, held) {
    const palette = colors();
    const first = figure.drawn.find(({ x }) => x.length);
    const alone = held === null && first && !areMoved(figure) ? stepsAt(first, nearest(first, step)) : "";
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
    this.left.textContent = figure.along.words;
    this.left.hidden = !figure.along.words;
    this.legend.replaceChildren(this.at, ...items, ...marksOf(figure), this.left);
  }

  /** @param {string} summary */
  describe(summary) {
    write(this.summary, summary);
  }

  /** Shows words in place of the chart. @param {string} words */
  say(words) {
    this.words = words;
    this.empty.replaceChildren(...coded(words));
    this.empty.hidden = !words;
    for (const element of [this.plot, this.legend, this.summary]) element.hidden = Boolean(words);
    if (words) this.line.hidden = true;
  }

  remove() {
    this.watcher.disconnect();
    this.#gone.abort();
    this.place.replaceChildren();
  }
}

/** Whether each line has steps of its own on the axis. @param {LineFigure} figure */
function areMoved({ lines }) {
  return lines.some(({ steps }) => steps);
}

/** @type {Record<string, string>} */
const MARKS = { nan: "\u2715", inf: "\u25b2", "-inf": "\u25bc" };

/** The legend of non-finite values: the signs at the foot of the axis. @param {LineFigure} figure */
function marksOf(figure) {
  if (figure.exits.length) return []; // the rail names them
  const there = new Set(figure.drawn.flatMap(({ marks }) => marks.map(({ sign }) => sign)));
  return [...there].map((sign) =>
    h(
      "li",
      { class: SIGNS[sign][1] },
      h("span", { "aria-hidden": "true" }, MARKS[sign]),
      `${SIGNS[sign][2]} in this span`,
    ),
  );
}
