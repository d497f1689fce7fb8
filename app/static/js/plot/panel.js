// @ts-check
/** The place of a chart in the page: its drawing area, its legend with values, its cursor, its words. No Plotly. */
import { h } from "../dom.js";
import { colors } from "../theme.js";
import { MARGIN } from "./lines.js";
import { colorOf, SIGNS } from "./traces.js";
import { nearest, stepsAt, valueWords } from "./words.js";

const CLICK_PX = 4;
let made = 0;

export class Panel {
  width = 0;
  height = 0;
  words = "";
  /** Called when its size is another. */
  onSize = () => {};
  #gone = new AbortController();

  /**
   * @param {import("../page.js").Page} page
   * @param {HTMLElement} element
   * @param {{title: string, legend?: boolean}} options
   */
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
      "aria-label": options.title,
      "aria-describedby": `summary-${made}`,
    });
    this.line = h("div", { class: "plot-cursor", hidden: true });
    this.empty = h("p", { class: "empty", hidden: true });
    this.legend = h("ul", { class: "plot-legend" });
    this.at = h("li", { class: "quiet" });
    this.place.replaceChildren(
      h("div", { class: "plot-frame" }, this.plot, this.line),
      this.empty,
      this.legend,
      this.summary,
    );
    this.watcher = new ResizeObserver(([entry]) => this.#resize(entry.contentRect));
    this.watcher.observe(this.plot);
    this.#followPointer();
  }

  /** @param {DOMRectReadOnly} size */
  #resize({ width, height }) {
    const [wide, high] = [Math.floor(width), Math.floor(height)];
    if (wide === this.width && high === this.height) return;
    [this.width, this.height] = [wide, high];
    this.onSize();
  }

  /** The pointer is the page's cursor; a click pins it. */
  #followPointer() {
    const { plot, page } = this;
    let downAt = NaN;
    plot.addEventListener("pointermove", (event) => page.cursor.move({ step: this.#stepAt(event.clientX) }, this), {
      capture: true,
    });
    plot.addEventListener("pointerleave", () => page.cursor.move({ step: null }, this));
    plot.addEventListener("pointerdown", (event) => (downAt = event.clientX), { capture: true });
    // Plotly covers the page while it drags: the end of a click may be heard elsewhere.
    addEventListener(
      "pointerup",
      (event) => {
        if (Math.abs(event.clientX - downAt) < CLICK_PX && event.button === 0)
          page.cursor.pin({ step: this.#stepAt(downAt) });
        downAt = NaN;
      },
      { capture: true, signal: this.#gone.signal },
    );
  }

  /** @param {number} clientX */
  #stepAt(clientX) {
    const [from, to] = this.range;
    const share =
      (clientX - this.plot.getBoundingClientRect().left - MARGIN.l) / Math.max(1, this.width - MARGIN.l - MARGIN.r);
    return Math.round(Math.min(to - 0.5, Math.max(from + 0.5, from + share * (to - from))));
  }

  /**
   * The cursor's line, and what each line says there: at the cursor, else at the step that is looked at.
   * @param {import("./lines.js").LineFigure} figure
   */
  point(figure) {
    this.range = figure.range;
    const { step: pointed = null } = this.page.cursor.point;
    const step = pointed ?? this.page.follow.step;
    const [from, to] = figure.range;
    const shown =
      step !== null && step >= from && step <= to && (pointed !== null || this.page.state.get("step") !== "");
    this.line.hidden = !shown;
    if (shown)
      this.line.style.transform = `translateX(${MARGIN.l + ((step - from) / (to - from)) * (this.width - MARGIN.l - MARGIN.r)}px)`;
    this.#tell(figure, step);
  }

  /** @param {import("./lines.js").LineFigure} figure @param {number | null} step */
  #tell(figure, step) {
    const palette = colors();
    const known = figure.drawn.find(({ x }) => x.length);
    const words = known ? stepsAt(known, nearest(known, step)) : "";
    const items = figure.lines.flatMap((line, order) => {
      const points = figure.drawn[order];
      if (!points) return []; // new, and out of view: not drawn yet
      const place = nearest(points, step);
      // Lines may have been captured at different steps, such as those of two runs.
      const own = stepsAt(points, place);
      const sign = h("span", { class: line.mean ? "sign" : "sign wide-sign", "aria-hidden": "true" });
      sign.style.color = colorOf(line, order, palette);
      if (line.dashed) sign.classList.add("dashed");
      const at = own && own !== words ? h("span", { class: "quiet" }, `at ${own}`) : null;
      return h("li", {}, sign, line.name, h("b", { class: "number" }, valueWords(line, points, place)), at);
    });
    this.at.textContent = words;
    this.legend.replaceChildren(this.at, ...items, ...marksOf(figure));
  }

  /** @param {string} summary */
  describe(summary) {
    if (this.summary.textContent !== summary) this.summary.textContent = summary;
  }

  /** Words in the place of the chart. @param {string} words */
  say(words) {
    this.words = words;
    this.empty.textContent = words;
    this.empty.hidden = !words;
    for (const each of [this.plot, this.legend, this.summary]) each.hidden = Boolean(words);
    if (words) this.line.hidden = true;
  }

  remove() {
    this.watcher.disconnect();
    this.#gone.abort();
    this.place.replaceChildren();
  }
}

/** @type {Record<string, string>} */
const MARKS = { nan: "\u2715", inf: "\u25b2", "-inf": "\u25bc" };

/**
 * The legend of what was not finite: the signs at the foot of the axis.
 * @param {import("./lines.js").LineFigure} figure
 */
function marksOf(figure) {
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
