/** The timeline under the header. The server draws its line and marks; here are its handles. */
import { byId, h, onClick, tell } from "../dom.js";
import { count, stepWords } from "../format.js";
import { Parts } from "../live/parts.js";
import { hideTip, loadOpened, showTip } from "../popup.js";
import { movedBy, nextMark, readStep, Strip } from "./captured.js";

/** @import { Page } from "../page.js" */

/** @typedef {"from" | "to" | "step"} Which */

const DRAG_PX = 5; // less is a click

class Drag {
  /** @type {{id: number, x: number, from: number, which: Which | null, moved: boolean} | null} */
  #drag = null;

  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    const track = /** @type {HTMLElement} */ (timeline.track);
    track.addEventListener("pointerdown", (event) => this.#press(event));
    track.addEventListener("pointermove", (event) => this.#move(event));
    track.addEventListener("pointerup", (event) => this.#release(event));
    track.addEventListener("pointercancel", () => this.#cancel());
    track.addEventListener("pointerleave", () => this.#leave());
    track.addEventListener("keydown", (event) => event.key === "Escape" && this.#drag && this.#cancel(), true);
  }

  /** @param {PointerEvent} event */
  #press(event) {
    const target = /** @type {Element} */ (event.target);
    if (event.button !== 0 || target.closest("a")) return;
    const which = /** @type {Which | undefined} */ (
      /** @type {HTMLElement | null} */ (target.closest("[data-handle]"))?.dataset.handle
    );
    const from = this.timeline.stepAt(event.clientX);
    this.#drag = { id: event.pointerId, x: event.clientX, from, which: which ?? null, moved: false };
    this.timeline.track.setPointerCapture(event.pointerId);
    if (!which) event.preventDefault(); // no text is selected
  }

  /** @param {PointerEvent} event */
  #move(event) {
    const { timeline } = this;
    const step = timeline.stepAt(event.clientX);
    const drag = this.#drag;
    if (drag === null || drag.id !== event.pointerId) return this.#point(event, step);
    drag.moved ||= Math.abs(event.clientX - drag.x) > DRAG_PX;
    if (!drag.moved) return;
    // The page follows when the pointer is released: each step between would be asked for in vain.
    const range = drag.which === "step" ? undefined : this.#rangeOf(drag.which, drag.from, step);
    timeline.draft = range ? { range } : { step };
    timeline.show();
    if (!range) timeline.page.cursor.move({ step }, timeline);
    showTip(range ? stepWords(...range) : `step ${count(step)}`, event.clientX, this.#below);
  }

  /** @param {Which | null} which @param {number} from @param {number} step @returns {[number, number]} */
  #rangeOf(which, from, step) {
    const other = which === "from" ? this.timeline.page.follow.span?.[1] : this.timeline.page.follow.span?.[0];
    const start = which ? (other ?? from) : from;
    return [Math.min(start, step), Math.max(start, step)];
  }

  /** @param {PointerEvent} event @param {number} step */
  #point(event, step) {
    if (event.pointerType === "touch") return;
    this.timeline.page.cursor.move({ step }, this.timeline);
    const mark = /** @type {Element} */ (event.target).closest("a");
    const words = mark?.getAttribute("aria-label");
    showTip(words ?? `step ${count(step)}`, event.clientX, this.#below);
  }

  get #below() {
    return this.timeline.track.getBoundingClientRect().bottom;
  }

  /** @param {PointerEvent} event */
  #release(event) {
    const { timeline } = this;
    const drag = this.#drag;
    this.#drag = null;
    hideTip();
    if (drag === null) return;
    const { range, step } = timeline.draft ?? {};
    timeline.draft = null;
    if (range && range[1] > range[0]) timeline.page.follow.zoom(...range);
    else if (step !== undefined) timeline.page.follow.hold(step);
    else if (!drag.moved && drag.which === null) timeline.page.follow.hold(timeline.stepAt(event.clientX));
    timeline.show();
  }

  #cancel() {
    this.#drag = null;
    this.timeline.draft = null;
    hideTip();
    this.timeline.show();
  }

  #leave() {
    if (this.#drag) return;
    hideTip();
    this.timeline.page.cursor.move({ step: null }, this.timeline);
  }
}

const RENEWED = { min: 1500, max: 15_000, share: 20 };
const SNAP_PX = 6;

const LABELS = { from: "From step", to: "To step", step: "At step" };

export class Timeline {
  /** What a drag would choose. @type {{range?: [number, number], step?: number} | null} */
  draft = null;
  /** What this wrote to the step box; anything else was typed. */
  written = /** @type {HTMLInputElement} */ (byId("step-box")).defaultValue;

  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    this.element = /** @type {HTMLElement} */ (byId("timeline"));
    this.track = /** @type {HTMLElement} */ (byId("track"));
    this.line = /** @type {HTMLElement} */ (byId("timeline-line"));
    this.handles = /** @type {Record<Which, HTMLElement>} */ ({
      from: this.#handle("from"),
      to: this.#handle("to"),
      step: this.#handle("step"),
    });
    this.cursor = /** @type {SVGElement} */ (/** @type {unknown} */ (byId("timeline-cursor")));
    this.parts = new Parts(page, "timeline", { root: this.element, query: () => this.#query, ...RENEWED });
    this.#listen();
    this.show();
  }

  get #query() {
    const { state } = this.page;
    return new URLSearchParams({ steps: state.get("steps"), step: state.get("step") }).toString();
  }

  #listen() {
    const { page, line } = this;
    line.addEventListener("renewed", () => {
      page.notes.read();
      this.show();
    });
    page.events.on("run", () => this.parts.soon(["line"]));
    page.follow.on("newest", () => this.show());
    page.follow.on("change", () => {
      this.show();
      void this.parts.now(["note"]);
    });
    page.clock.on("change", () => tell(byId("axis-why"), page.clock.why)); // why charts have another axis
    page.cursor.on("move", ({ step }) => this.#point(step ?? null));
    new Drag(this);
    this.track.addEventListener("pointerenter", () => void page.captured.load());
    byId("range-clear").addEventListener("click", () => this.#leaveTo(() => page.follow.whole()));
    byId("step-clear").addEventListener("click", () => this.#leaveTo(() => page.follow.release()));
    byId("step-back").addEventListener("click", () => this.move("step", { steps: -1 }));
    byId("step-on").addEventListener("click", () => this.move("step", { steps: 1 }));
    this.#listenToBox();
    document.getElementById("annotate")?.addEventListener("click", () => this.#annotate());
    const hold = (/** @type {HTMLElement} */ link, /** @type {MouseEvent} */ event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      page.follow.hold(Number(link.dataset.hold));
    };
    onClick("[data-hold]", hold, this.element);
    this.#addKeys();
  }

  /** A button that disappears hands its focus on. @param {() => void} change */
  #leaveTo(change) {
    change();
    if (
      document.activeElement === document.body ||
      !(/** @type {HTMLElement} */ (document.activeElement)?.offsetParent)
    )
      byId("step-box").focus({ preventScroll: true });
  }

  #addKeys() {
    const { keys } = this.page;
    const group = { group: "Steps" };
    keys.add("w", "go to the timeline; Escape leaves it", () => this.#reach(), group);
    keys.add("#", "type the number of a step", () => byId("step-box").select(), group);
    keys.add("n", "next problem or note", () => this.#toMark(1), group);
    keys.add("p", "previous problem or note", () => this.#toMark(-1), group);
    if (this.page.mayChange) keys.add("m", "annotate this step", () => this.#annotate(), group);
  }

  async #annotate() {
    const { step } = this.page.follow;
    if (step === null) return;
    const part = await loadOpened(() => import("./writing.js"));
    part?.writeNote(this.page, step, () => this.parts.now(["line"]));
  }

  #reach() {
    const { step } = this.handles;
    (step.offsetParent ? step : byId("step-box")).focus({ preventScroll: true });
  }

  /** @param {number} by */
  #toMark(by) {
    const { follow } = this.page;
    const marks = [...this.line.querySelectorAll("a.mark")];
    const steps = marks.map((mark) => Number(/** @type {SVGElement} */ (mark).dataset.step)).sort((a, b) => a - b);
    const step = nextMark(steps, follow.step ?? 0, by);
    if (step === null) return this.page.announce(by > 0 ? "Nothing later" : "Nothing earlier");
    follow.hold(step);
    const words = marks.find((mark) => Number(/** @type {SVGElement} */ (mark).dataset.step) === step);
    this.page.announce(words?.getAttribute("aria-label") ?? "");
  }

  #listenToBox() {
    const { follow } = this.page;
    const box = /** @type {HTMLInputElement} */ (byId("step-box"));
    const take = () => {
      const step = readStep(box.value);
      const isWrong = step === null && box.value.trim() !== "";
      box.setAttribute("aria-invalid", String(isWrong));
      box.title = isWrong ? `Enter a step from ${count(follow.first)} to ${count(follow.newest ?? 0)}` : "";
      if (isWrong) return this.page.announce(box.title);
      if (step === null) follow.release();
      else follow.hold(step);
      this.written = box.value;
      this.show();
    };
    box.addEventListener("change", take);
    byId("when").noValidate = true; // else Firefox submits no wrong text, and says less about it
    byId("when").addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      take();
      if (box.getAttribute("aria-invalid") !== "true") byId("main").focus({ preventScroll: true }); // for other keys
    });
  }

  /** @param {Which} which */
  #handle(which) {
    const handle = h("div", { class: `handle ${which}`, role: "slider", tabindex: "0", "aria-label": LABELS[which] });
    handle.addEventListener("keydown", (event) => this.#hear(which, event));
    handle.dataset.handle = which;
    this.track.append(handle);
    return handle;
  }

  /** @param {Which} which @param {KeyboardEvent} event */
  #hear(which, event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const how = movedBy(event.key, event.shiftKey);
    if (event.key === "Escape") byId("main").focus({ preventScroll: true });
    else if ((event.key === "Delete" || event.key === "Backspace") && which === "step") this.page.follow.release();
    else if (how) void this.move(which, how);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  get strip() {
    const { first = "0", last = "0" } = this.line.dataset;
    return new Strip(Number(first), Math.max(Number(last), this.page.follow.held ?? 0));
  }

  /** The value of a handle. @param {Which} which */
  valueOf(which) {
    const { follow } = this.page;
    if (which === "step") return this.draft?.step ?? follow.step ?? this.strip.last;
    const span = this.draft?.range ?? follow.span ?? [this.strip.first, this.strip.last];
    return span[which === "from" ? 0 : 1];
  }

  /** Moves a handle by key or button. @param {Which} which @param {NonNullable<ReturnType<typeof movedBy>>} how */
  async move(which, how) {
    const { strip } = this;
    const now = this.valueOf(which);
    const next =
      "steps" in how
        ? await this.page.captured.further(now, how.steps)
        : "end" in how
          ? how.end
            ? strip.last
            : strip.first
          : Math.min(strip.last, Math.max(strip.first, Math.round(now + how.share * strip.length)));
    this.set(which, next);
    this.page.announce(`${LABELS[which]} ${count(next)}`);
  }

  /** Takes a new value of a handle. @param {Which} which @param {number} value */
  set(which, value) {
    const { follow } = this.page;
    if (which === "step") return follow.hold(value);
    const other = this.valueOf(which === "from" ? "to" : "from");
    follow.zoom(Math.min(value, other), Math.max(value, other));
  }

  /** The step that a pointer means. @param {number} clientX */
  stepAt(clientX) {
    const { left, width } = this.track.getBoundingClientRect();
    const { strip } = this;
    const step = strip.step((clientX - left) / Math.max(1, width));
    return this.page.captured.snap(step, Math.ceil((SNAP_PX / Math.max(1, width)) * strip.length));
  }

  /** The cursor of the charts. @param {number | null} step */
  #point(step) {
    const { strip } = this;
    const isHere = step !== null && step >= strip.first && step <= strip.last;
    this.cursor.setAttribute("visibility", isHere ? "visible" : "hidden");
    if (!isHere) return;
    for (const name of ["x1", "x2"]) this.cursor.setAttribute(name, percent(strip.place(step)));
  }

  /** Shows the choice, or the choice that a drag would make. */
  show() {
    const { strip, page } = this;
    const { follow } = page;
    const span = this.draft?.range ?? follow.span ?? [strip.first, strip.last];
    const [begin, width] = strip.band(span);
    const range = byId("timeline-range");
    range.setAttribute("x", percent(begin));
    range.setAttribute("width", percent(width));
    this.element.classList.toggle("has-range", this.draft?.range !== undefined || width < 0.999);
    const held = this.draft?.step ?? follow.held;
    const line = byId("timeline-step");
    line.setAttribute("visibility", held === null ? "hidden" : "visible");
    for (const name of ["x1", "x2"]) line.setAttribute(name, percent(strip.place(held ?? 0)));
    const places = { from: begin, to: begin + width, step: strip.place(this.valueOf("step")) };
    for (const [name, handle] of Object.entries(this.handles)) {
      const which = /** @type {Which} */ (name);
      const value = Math.min(strip.last, Math.max(strip.first, this.valueOf(which)));
      handle.style.left = percent(places[which]);
      handle.setAttribute("aria-valuemin", String(strip.first));
      handle.setAttribute("aria-valuemax", String(strip.last));
      handle.setAttribute("aria-valuenow", String(value));
      handle.setAttribute("aria-valuetext", this.#wordsOf(which, value));
    }
    this.handles.step.classList.toggle("is-held", held !== null);
    this.#showChips(span);
  }

  /** @param {Which} which @param {number} value */
  #wordsOf(which, value) {
    const newest =
      which === "step" && this.page.follow.held === null && this.draft?.step === undefined ? ", not held" : "";
    return `step ${count(value)}${newest}`;
  }

  /** @param {[number, number]} span */
  #showChips([from, to]) {
    const { follow, state, runState } = this.page;
    const isUsual = state.get("steps") === state.defaults.steps;
    const window = follow.window;
    const words =
      "live" in window && Number.isFinite(window.live) && follow.held === null
        ? window.live === 1
          ? "newest step"
          : `newest ${count(window.live)} steps`
        : from === to
          ? `step ${count(to)}`
          : `steps ${count(from)}\u2013${count(to)}`;
    byId("range-chip").hidden = isUsual && !(runState === "live" && "live" in window && Number.isFinite(window.live));
    byId("range-chip").classList.toggle("usual", isUsual);
    const [word, ...rest] = words.split(/ (?=\d)/);
    byId("range-words").replaceChildren(h("span", { class: "word" }, `${word} `), rest.join(" "));
    byId("range-clear").hidden = isUsual;
    const differs = document.getElementById("differs");
    if (differs) differs.hidden = follow.held === null && follow.range === null;
    const box = /** @type {HTMLInputElement} */ (byId("step-box"));
    const isTyping = document.activeElement === box && box.value !== this.written;
    if (!isTyping) box.value = this.written = follow.held === null ? "" : String(follow.held);
    box.placeholder = follow.range ? count(follow.range[1]) : "newest";
    byId("step-clear").hidden = follow.held === null;
  }
}

/** @param {number} share */
function percent(share) {
  return `${(100 * share).toFixed(3)}%`;
}
