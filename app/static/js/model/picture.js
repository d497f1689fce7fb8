/** The picture: which boxes it shows, what of it is in the window, and when it is drawn. */
import { CanvasChart, fitCanvas, pixelRatio, reportDrawn } from "../canvas/chart.js";
import { Card } from "../card.js";
import { h } from "../dom.js";
import { Finder } from "../finder.js";
import { hideTip } from "../popup.js";
import { prefs } from "../prefs.js";
import { colors } from "../theme.js";
import { tableOf, tipOf } from "./boxes.js";
import { press } from "./controls.js";
import { drawModel, Ground, Minimap } from "./draw.js";
import { Readings } from "./readings.js";
import { Steps } from "./steps.js";
import { Structure } from "./structure.js";
import { brightOf, HEAD, matchesOf } from "./tree.js";
import { hit, Pan, Place, View } from "./view.js";

/** @import { Rect } from "./arrange.js"
 * @import { Ink } from "./readings.js"
 * @import { Page } from "../page.js" */

const OTHER_PX = 40; // difference in width at which the boxes are rearranged
const CALM_MS = 120;
const FOLD_PX = 26; // of a box's corner: a click there opens or closes it
const LABEL =
  "The model. Arrow keys move between boxes, Enter opens the drawer, Space folds and unfolds, " +
  "plus and minus zoom, 0 shows all.";

/** Emits "ink" when colors have changed, "select" with the box that was selected, "open" with one to look at, and
 * "found" when other boxes match. @extends {CanvasChart<Rect>} */
export class Picture extends CanvasChart {
  view = new View();
  place = new Place(this.view);
  #ground = new Ground();
  /** The boxes that match, in the order of execution. @type {number[]} */
  matches = [];
  /** The boxes that stay bright; null: there is no text in the find box. @type {Set<number> | null} */
  found = null;
  /** Whether something has changed since the last drawing. */
  #isOld = true;
  /** The width for which the boxes are arranged. */
  #width = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  /** @param {Page} page @param {HTMLElement} element the figure */
  constructor(page, element) {
    const plot = /** @type {HTMLElement} */ (element.querySelector(".plot"));
    super(page, plot, { label: LABEL, name: "model-canvas", isLinked: false });
    this.plot = plot;
    const small = /** @type {HTMLCanvasElement} */ (h("canvas", { class: "model-minimap", "aria-hidden": "true" }));
    plot.append(small);
    this.pen = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    this.structure = new Structure(page, () => Math.max(320, this.plot.clientWidth - 30));
    this.readings = new Readings(page, this.structure);
    this.steps = new Steps(page, this.readings);
    this.minimap = new Minimap(small, (x, y) => this.#center(x, y));
    this.finder = new Finder(page, () => this.#match());
    this.card = new Card(page, element, {
      title: "Model",
      table: () => tableOf(this),
      png: () => this.image(),
      query: () => ({ path: "model", query: { step: page.follow.values.to } }),
    });
    this.drag = new Pan(this.canvas, this.view, () => this.moved());
    this.canvas.addEventListener("dblclick", (event) => this.#chooseTwice(event));
    this.#listen();
  }

  #listen() {
    const { page, structure, readings } = this;
    const again = () => this.draw();
    prefs.on("numbers", again);
    structure.on("model", () => {
      this.at = this.place.anchor = null;
      this.#match();
    });
    structure.on("arranged", () => this.#arranged());
    readings.on("data", () => {
      this.steps.renew();
      this.draw();
    });
    this.steps.on("step", again);
    page.follow.on("change", again);
    page.follow.on("newest", again);
    page.state.on("y", again);
    page.state.on("box", () => {
      if (this.selected !== null) this.reveal(this.selected);
      this.draw();
    });
  }

  /** The number of the box in the address. */
  get selected() {
    return this.structure.tree?.numbers.get(this.page.state.get("box")) ?? null;
  }

  /** @override */
  resized() {
    const { clientWidth: width, clientHeight: height } = this.plot;
    this.view.resize(width, height);
    this.draw();
    clearTimeout(this.#timer);
    if (Math.abs(width - this.#width) > OTHER_PX) this.#timer = setTimeout(() => this.structure.rearrange(), CALM_MS);
    this.#width = width;
  }

  /** @override */
  recolored() {
    this.readings.repaint();
  }

  #arranged() {
    const { arranged } = this.structure;
    if (!arranged) return; // the words around the picture say why
    if (!this.#wasArranged) this.place.wanted = this.selected;
    this.#wasArranged = true;
    this.place.take(arranged);
    this.draw();
  }

  #wasArranged = false;

  fit(all = false) {
    if (!this.structure.arranged || this.plot.clientWidth < 10) return;
    this.place.fit(all);
    this.draw();
  }

  /** Draws the picture after the reader has moved it. It isn't fitted by itself from then on. */
  moved() {
    this.place.isMoved = true;
    this.draw();
  }

  /** @param {number} factor */
  zoom(factor) {
    this.view.zoom(factor);
    this.moved();
  }

  /** @param {number} x @param {number} y of the picture */
  #center(x, y) {
    const { view } = this;
    view.move(view.width / 2 - (x * view.scale + view.x), view.height / 2 - (y * view.scale + view.y));
    this.moved();
  }

  /** @param {number} number @returns {Rect | null} */
  rectOf(number) {
    return this.structure.arranged?.rects.find((rect) => rect.number === number) ?? null;
  }

  /** Opens the boxes around a box, and brings it into the window. @param {number} number */
  reveal(number) {
    this.place.wanted = number;
    const rect = this.rectOf(number);
    if (!rect) return this.structure.reveal(number);
    this.view.show(rect);
    this.place.wanted = null;
    this.draw();
  }

  /** Opens all boxes, and fits the whole picture. */
  unfoldAll() {
    if (this.structure.openAll()) this.place.fitSoon();
    else this.fit(true);
  }

  /** @param {number} number */
  toggle(number) {
    const { tree } = this.structure;
    if (!tree?.boxes[number].parts.length) return;
    this.place.anchor = this.rectOf(number);
    const opens = this.structure.toggle(number);
    this.page.announce(`${tree.titleOf(number)} ${opens ? "unfolded" : "folded"}`);
  }

  /** Selects a box. @param {number | null} number */
  select(number) {
    const { tree } = this.structure;
    const { state } = this.page;
    const box = number === null || !tree ? "" : tree.idOf(number);
    state.set({ box }, { push: state.get("box") === "" }); // Back closes the drawer
    this.emit("select", number);
  }

  #match() {
    const { tree } = this.structure;
    const { finder } = this;
    if (!tree || !finder.ready) return;
    this.matches = finder.text ? matchesOf(tree, (module) => finder.fits(module)) : [];
    this.found = finder.text ? brightOf(tree, this.matches) : null;
    this.emit("found");
    this.draw();
  }

  /** Of an open box, only the heading. @override @param {number} x @param {number} y @returns {Rect | null} */
  find(x, y) {
    const { arranged, open } = this.structure;
    const place = this.view.at(x, y);
    const rect = arranged ? hit(arranged.rects, place) : null;
    return rect && open.has(rect.number) && place[1] > rect.y + HEAD ? null : rect;
  }

  /** @override @param {Rect} at */
  wordsOf({ number }) {
    return this.structure.tree ? tipOf(this, number) : "";
  }

  /** @override @param {Rect | null} at @param {number} [x] @param {number} [y] */
  pointAt(at, x, y) {
    const before = this.at?.number;
    super.pointAt(at, x, y);
    this.canvas.classList.toggle("over", at !== null);
    if (at?.number !== before) this.draw();
  }

  /** @override It is drawn with the boxes. */
  mark() {}

  /** @override @param {KeyboardEvent} event */
  press(event) {
    return press(this, event) || super.press(event);
  }

  /** @override @param {Rect | null} at @param {MouseEvent | KeyboardEvent} event */
  choose(at, event) {
    if ("key" in event) return void (this.selected !== null && this.emit("open", this.selected));
    const { tree, open } = this.structure;
    hideTip();
    if (!at || !tree) return this.select(null);
    const { kind, parts } = tree.boxes[at.number];
    const [x, y] = this.view.at(event.offsetX, event.offsetY);
    const corner = open.has(at.number) ? x < at.x + FOLD_PX : x > at.x + at.w - FOLD_PX && y < at.y + FOLD_PX;
    if (parts.length && (corner || kind === "repeat")) this.toggle(at.number);
    else this.select(at.number);
  }

  /** @param {MouseEvent} event */
  #chooseTwice({ offsetX, offsetY }) {
    const rect = this.find(offsetX, offsetY);
    if (rect) this.toggle(rect.number);
  }

  /** @override */
  draw() {
    this.#isOld = true;
    super.draw();
  }

  /** @override */
  paint() {
    const began = performance.now();
    const { structure, steps, readings, view, pen, canvas } = this;
    if (steps.advance(began)) this.#isOld = true;
    if (!this.#isOld) return steps.playing ? super.draw() : undefined; // the next step isn't due
    const { arranged, tree, open } = structure;
    if (!arranged || !tree || !readings.values || !readings.gradients || this.plot.clientWidth < 10) return;
    const ratio = pixelRatio();
    fitCanvas(canvas, view.width, view.height, ratio);
    if ((!steps.playing || !readings.ink) && readings.paint(began)) this.emit("ink");
    const { values, gradients, origins, stroke } = readings;
    const scene = {
      tree,
      arranged,
      open,
      view,
      values,
      ink: /** @type {Ink} */ (readings.ink),
      stroke,
      gradients: gradients.bits,
      forward: ["output", "input"].includes(readings.asked.kind),
      origins: new Set([...origins].map((number) => tree.shownFor(number, open))),
      found: this.found,
      selected: this.selected,
      pointed: this.at?.number ?? null,
      page: colors(),
    };
    drawModel(pen, scene, ratio, this.#ground);
    this.minimap.draw(scene, began, steps.playing);
    this.#isOld = false;
    reportDrawn("model", steps.step, performance.now() - began);
    if (steps.playing) super.draw();
  }
}
