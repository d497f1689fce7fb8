/** What stands around the picture: the steps and how fast they play, the legend, and the keys. */
import { paintBar } from "../canvas/colors.js";
import { byId, tell } from "../dom.js";
import { noModules } from "../finder.js";
import { count, counted } from "../format.js";
import { quantityOf, saidOf, short } from "./boxes.js";
import { placeOf, speedAt, speedOf, speedWords } from "./steps.js";
import { neighbor } from "./view.js";

/** @import { Picture } from "./picture.js"
 * @import { Readings } from "./readings.js" */

const ZOOM = 1.25;
const FAR = 60; // pixels that Shift with an arrow moves the picture by

/** @type {Record<string, [number, number]>} to the right, and down */
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** @param {Picture} picture */
export function addKeys(picture) {
  const { page } = picture;
  page.keys.add("a", "play the steps, or stop", () => picture.steps.play());
  page.keys.add("u", "unfold everything", () => picture.unfoldAll());
  page.keys.add("o", "collapse to default", () => page.state.set({ folds: "" }));
  page.keys.add("0", "show the whole model", () => picture.fit(true));
  page.keys.add("+", "zoom in", () => picture.zoom(ZOOM));
  page.keys.add("-", "zoom out", () => picture.zoom(1 / ZOOM));
  page.keys.add("j", "next match of the find box", () => next(picture, 1));
  page.keys.add("k", "previous match of the find box", () => next(picture, -1));
}

/** Returns whether a key on the picture means anything. @param {Picture} picture @param {KeyboardEvent} event */
export function press(picture, event) {
  const [right, down] = ARROWS[event.key] ?? [0, 0];
  if (right || down) {
    if (!event.shiftKey) return walk(picture, right, down);
    picture.view.move(-right * FAR, -down * FAR);
    picture.draw();
    return true;
  }
  const { selected } = picture;
  if (event.key === "Home") return mark(picture, picture.structure.arranged?.rects[0]?.number);
  if (event.key !== " " || selected === null) return false;
  picture.toggle(selected);
  return true;
}

/** @param {Picture} picture @param {number} right @param {number} down */
function walk(picture, right, down) {
  const { arranged, open } = picture.structure;
  if (!arranged) return false;
  const from = arranged.rects.find(({ number }) => number === picture.selected);
  if (!from) return mark(picture, arranged.rects[0]?.number);
  // The frame of an open box is reached by its heading, which is as high as a line.
  const places = arranged.rects.map((rect) =>
    open.has(rect.number) ? { ...rect, h: 24, w: Math.min(rect.w, 120) } : rect,
  );
  const nearest = neighbor(
    places,
    /** @type {any} */ (places.find(({ number }) => number === from.number)),
    right,
    down,
  );
  return nearest ? mark(picture, nearest.number) : true;
}

/** Selects a box without opening the drawer. @param {Picture} picture @param {number | undefined} number */
function mark(picture, number) {
  const { tree } = picture.structure;
  if (number === undefined || !tree) return false;
  picture.page.state.set({ box: tree.idOf(number) });
  picture.page.announce(saidOf(picture, number));
  return true;
}

/** @param {Picture} picture @param {number} by */
function next(picture, by) {
  const { matches, selected } = picture;
  if (!matches.length) return;
  const place = selected === null ? -1 : matches.indexOf(selected);
  const from = place < 0 && by < 0 ? 0 : place;
  mark(picture, matches[(from + by + matches.length) % matches.length]);
}

/** @param {Picture} picture */
export function addControls(picture) {
  const { page } = picture;
  const on = (/** @type {string} */ id, /** @type {() => void} */ act) => byId(id).addEventListener("click", act);
  on("zoom-in", () => picture.zoom(ZOOM));
  on("zoom-out", () => picture.zoom(1 / ZOOM));
  on("zoom-fit", () => picture.fit(true));
  on("unfold", () => picture.unfoldAll());
  on("fold", () => page.state.set({ folds: "" }));
  on("found-next", () => next(picture, 1));
  on("found-before", () => next(picture, -1));
  startSteps(picture);
  startLegend(picture);
  startWords(picture);
}

/** @param {Picture} picture */
function startSteps({ page, readings, steps }) {
  const slider = /** @type {HTMLInputElement} */ (byId("model-step"));
  const speed = /** @type {HTMLInputElement} */ (byId("model-speed"));
  const button = byId("play");
  button.addEventListener("click", () => steps.play());
  slider.addEventListener("input", () => steps.go(Number(slider.value)));
  speed.addEventListener("input", () => page.state.set({ speed: String(speedAt(Number(speed.value))) }));
  const showSpeed = () => {
    const now = speedOf(page);
    if (document.activeElement !== speed) speed.value = String(placeOf(now));
    speed.setAttribute("aria-valuetext", speedWords(now));
    byId("speed-words").textContent = speedWords(now);
  };
  page.state.on("speed", showSpeed);
  showSpeed();
  const show = () => {
    button.dataset.does = steps.playing ? "pause" : "play";
    button.setAttribute("aria-label", steps.playing ? "Stop playing" : "Play the steps");
    slider.max = String(Math.max(0, readings.captured - 1));
    slider.disabled = readings.captured < 2;
    slider.value = String(Math.max(0, readings.placeOf(steps.step)));
    const text = stepWords(steps.step, readings);
    slider.setAttribute("aria-valuetext", text);
    byId("step-words").textContent = text;
  };
  steps.on("step", show);
  readings.on("data", () => requestAnimationFrame(show));
}

/** @param {number | null} step @param {Readings} readings */
function stepWords(step, { steps, captured }) {
  if (step === null) return "no step";
  if (steps !== null && steps.first !== steps.last)
    return `steps ${count(steps.first)} to ${count(steps.last)}: worst values`;
  return `step ${count(step)}${captured && steps === null ? ", not captured" : ""}`;
}

/** @param {Picture} picture */
function startLegend(picture) {
  const { readings, structure } = picture;
  const [words, low, high, lines] = ["words", "low", "high", "lines"].map((name) => byId(`legend-${name}`));
  const show = () => {
    const { ink } = readings;
    if (!ink) return;
    const { scale } = ink.painter;
    const signed = scale.low < 0 && scale.kind !== "log";
    paintBar(byId("legend-bar"), signed);
    words.textContent = `Color: ${quantityOf(picture)}, ${scale.kind} scale`;
    low.textContent = short(scale.low);
    high.textContent = short(scale.high);
    byId("legend-scale").hidden = !readings.color.rows.length;
    lines.hidden = structure.tree?.model.step === null;
    lines.textContent =
      readings.gradient.rows.length && readings.lines
        ? `Line width: gradient norm, ${short(readings.lines.low)} to ${short(readings.lines.high)}`
        : "Lines: no gradients captured";
  };
  picture.on("ink", show);
}

/** @param {Picture} picture */
function startWords(picture) {
  const { structure, readings } = picture;
  const empty = byId("model-empty");
  const say = () => {
    const { tree, arranged } = structure;
    const why =
      tree && !tree.boxes.length
        ? noModules(picture.page)
        : structure.problem
          ? `The boxes can\u2019t be placed: ${structure.problem}`
          : "";
    tell(empty, why);
    for (const part of [picture.plot, byId("model-legend"), byId("model-play")]) part.hidden = Boolean(why);
    if (!tree) return;
    const { step, why: unknown, absent } = tree.model;
    const modules = new Set(tree.boxes.filter(({ kind }) => kind !== "repeat").map(({ module }) => module)).size;
    const shown = arranged ? `, ${counted(arranged.rects.length, "box", "boxes")} shown` : "";
    byId("model-count").textContent = `${counted(modules, "module")}${shown}`;
    byId("model-how").textContent = !tree.boxes.length
      ? ""
      : step === null
        ? `The module tree, without the data flow. ${unknown}`
        : `Structure learned in step ${count(step)}`;
    byId("model-absent").textContent = absent.length ? `${counted(absent.length, "module")} didn\u2019t run in it` : "";
    byId("model-absent").title = absent.slice(0, 40).join("\n");
  };
  const found = () => {
    const { found: some, matches } = picture;
    byId("model-found").hidden = some === null;
    byId("found-words").textContent = counted(matches.length, "match", "matches");
    for (const id of ["found-next", "found-before"]) byId(id).disabled = !matches.length;
  };
  structure.on("arranged", say);
  readings.on("rows", say);
  picture.on("found", found);
}
