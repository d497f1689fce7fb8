/** A tour of five steps over the pages of a run. Its step is in the address, so going back and reloading work. */
import { byId, h, makeButton } from "./dom.js";
import { visit } from "./timeline/links.js";

/** @import { Page } from "./page.js" */

/** A stop of the tour: its page, its target, and its text.
 * @typedef {{place: string, target: string, title: string, text: string}} Stop */

/** @type {readonly Stop[]} */
const STOPS = [
  {
    place: "overview",
    target: "#timeline",
    title: "The whole run is always here",
    text:
      "Click the line to hold all pages at a step, drag to choose a range. Triangles are incidents, flags are notes. " +
      "The step applies to every page and every link.",
  },
  {
    place: "overview",
    target: "#findings",
    title: "What is wrong, and since when",
    text:
      "Rules look at every captured step. A finding names the layer where it began, its usual causes, and what to " +
      "try. Click one to see the steps around it.",
  },
  {
    place: "model",
    target: "#model",
    title: "The model as a picture",
    text:
      "Colors are activations, lines are gradients. Press a to play the steps: a NaN spreads from the box where it " +
      "began. Click a box for its lines, histogram, and tensor.",
  },
  {
    place: "flow",
    target: "#flow",
    title: "Every layer over all steps",
    text:
      "One row for each layer, one column for each step. A vertical line is a bad step, a band that fades is a " +
      "vanishing gradient, a wedge is a NaN that spreads.",
  },
  {
    place: "overview",
    target: "#palette",
    title: "Everything else",
    text: "Ctrl+K finds every action, page, layer, and run by typing. The question mark lists the keys of each page.",
  },
];

/** Which stop an address is at; null: none. Pure. @param {string} text @returns {number | null} */
function stopOf(text) {
  const number = Number(text);
  return Number.isInteger(number) && number >= 1 && number <= STOPS.length ? number - 1 : null;
}

let shown = /** @type {HTMLElement | null} */ (null);

/** Shows the stop that the address is at. @param {Page} page */
export function showTour(page) {
  const hadFocus = shown?.contains(document.activeElement);
  shown?.remove();
  shown = null;
  for (const each of document.querySelectorAll(".tour-target")) each.classList.remove("tour-target");
  const at = stopOf(page.state.get("tour"));
  if (at !== null) shown = draw(page, at);
  else if (hadFocus) byId("main").focus({ preventScroll: true });
}

/** @param {Page} page @param {number} at */
export function goTo(page, at) {
  const { place } = STOPS[at];
  const tour = String(at + 1);
  if (page.name === place) page.state.set({ tour }, { push: true });
  else visit(page, place, { tour });
}

/** @param {Page} page @param {number} at @returns {HTMLElement} */
function draw(page, at) {
  const { target, title, text } = STOPS[at];
  const end = () => page.state.set({ tour: "" });
  const last = at === STOPS.length - 1;
  const next = makeButton(last ? "Done" : "Next", () => (last ? end() : goTo(page, at + 1)), { class: "button main" });
  const back = makeButton("Back", () => goTo(page, at - 1));
  const card = h(
    "section",
    { class: "tour card", role: "dialog", "aria-labelledby": "tour-title", "aria-describedby": "tour-text" },
    h("p", { class: "quiet small" }, `Tour, ${at + 1} of ${STOPS.length}`),
    h("h2", { id: "tour-title" }, title),
    h("p", { id: "tour-text" }, text),
    h("p", { class: "toolbar" }, next, at ? back : null, last ? null : makeButton("End the tour", end)),
  );
  card.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    end();
  });
  document.body.append(card);
  const element = document.querySelector(target);
  element?.classList.add("tour-target");
  element?.scrollIntoView({ block: "nearest" });
  next.focus({ preventScroll: true });
  return card;
}
