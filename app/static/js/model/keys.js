// @ts-check
/** The picture by keyboard. */
import { neighbor } from "./view.js";
import { saidOf } from "./words.js";

export const ZOOM = 1.25;
const FAR = 60; // pixels that Shift with an arrow moves the picture by

/** @type {Record<string, [number, number]>} to the right, and down */
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** @param {import("./picture.js").Picture} picture */
export function addKeys(picture) {
  const { page, pad } = picture;
  pad.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !press(picture, event)) return;
    event.preventDefault();
    event.stopPropagation();
  });
  page.keys.add("a", "play the steps, or stop", () => picture.steps.play());
  page.keys.add("u", "unfold everything", () => picture.unfoldAll());
  page.keys.add("o", "collapse to default", () => page.state.set({ folds: "" }));
  page.keys.add("0", "show the whole model", () => picture.fit(true));
  page.keys.add("+", "zoom in", () => picture.zoom(ZOOM));
  page.keys.add("-", "zoom out", () => picture.zoom(1 / ZOOM));
  page.keys.add("j", "next match of the find box", () => next(picture, 1));
  page.keys.add("k", "previous match of the find box", () => next(picture, -1));
}

/** @param {import("./picture.js").Picture} picture @param {KeyboardEvent} event
 * @returns {boolean} whether it was of use */
function press(picture, event) {
  const [right, down] = ARROWS[event.key] ?? [0, 0];
  if (right || down) {
    if (!event.shiftKey) return walk(picture, right, down);
    picture.view.move(-right * FAR, -down * FAR);
    picture.draw();
    return true;
  }
  const { selected } = picture;
  if (event.key === "Home") return mark(picture, picture.structure.arranged?.rects[0]?.number);
  if (event.key === "Enter" && selected !== null) picture.emit("open", selected);
  else if (event.key === " " && selected !== null) picture.toggle(selected);
  else return false;
  return true;
}

/** @param {import("./picture.js").Picture} picture @param {number} right @param {number} down */
function walk(picture, right, down) {
  const { arranged, open } = picture.structure;
  if (!arranged) return false;
  const from = arranged.rects.find(({ number }) => number === picture.selected);
  if (!from) return mark(picture, arranged.rects[0]?.number);
  // The frame of an open box is reached by its heading, which is as high as a line.
  const places = arranged.rects.map((rect) =>
    open.has(rect.number) ? { ...rect, h: 24, w: Math.min(rect.w, 120) } : rect,
  );
  const found = neighbor(places, /** @type {any} */ (places.find(({ number }) => number === from.number)), right, down);
  return found ? mark(picture, found.number) : true;
}

/** Selects a box without opening the drawer. @param {import("./picture.js").Picture} picture
 * @param {number | undefined} number */
function mark(picture, number) {
  const { tree } = picture.structure;
  if (number === undefined || !tree) return false;
  picture.page.state.set({ box: tree.idOf(number) });
  picture.page.announce(saidOf(picture, number));
  return true;
}

/** @param {import("./picture.js").Picture} picture @param {number} by */
export function next(picture, by) {
  const { matches, selected } = picture;
  if (!matches.length) return;
  const place = selected === null ? -1 : matches.indexOf(selected);
  const from = place < 0 && by < 0 ? 0 : place;
  mark(picture, matches[(from + by + matches.length) % matches.length]);
}
