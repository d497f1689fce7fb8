// @ts-check
/** The keys that lead from page to page and from step to step, and the find box. */
import { count } from "../format.js";
import { keepSteps } from "../timeline/keep.js";

const FAR = 10;

/** @param {import("../page.js").Page} page */
export function addNavigation(page) {
  for (const link of /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll("nav.side a[data-key]"))) {
    page.keys.add(`g ${link.dataset.key}`, link.dataset.title ?? "", () => link.click(), { group: "Go to" });
  }
  // On a phone, the entries are in a scrolling row: scroll to the entry of this page.
  const nav = /** @type {HTMLElement | null} */ (document.querySelector("nav.side"));
  const current = /** @type {HTMLElement | null} */ (nav?.querySelector("[aria-current]"));
  if (nav && current)
    nav.scrollLeft = current.offsetLeft - nav.offsetLeft - (nav.clientWidth - current.offsetWidth) / 2;
  keepSteps(page);
  startFind(page);
}

/** @param {import("../page.js").Page} page */
function startFind(page) {
  const find = /** @type {HTMLInputElement | null} */ (
    document.getElementById("find") ?? document.querySelector("main input[type=search]")
  );
  const clear = () => {
    if (find && document.activeElement === find) {
      if (find.value) {
        find.value = "";
        find.dispatchEvent(new Event("input", { bubbles: true }));
      } else find.blur();
      return;
    }
    page.cursor.clear();
  };
  page.keys.add("Escape", "clear the selection or the find box", clear, { group: "Everywhere" });
  if (!find) return;
  page.keys.add(
    "/",
    "find",
    () => {
      find.focus();
      find.select();
    },
    { group: "Everywhere" },
  );
}

/** @param {import("../page.js").Page} page */
export function addStepping(page) {
  const { follow, keys } = page;
  /** Keys that are held down wait for each other. */
  let moving = Promise.resolve();
  /** @param {number} by */
  const move = (by) => {
    moving = moving.then(async () => {
      if (follow.step === null) return;
      follow.hold(await page.captured.further(follow.step, by));
      page.announce(`Step ${count(follow.step)}`);
    });
  };
  /** @param {number} factor */
  const zoom = (factor) => {
    const span = follow.span;
    if (!span || follow.newest === null) return;
    const length = Math.max(2, Math.round((span[1] - span[0] + 1) * factor));
    if (page.runState === "live" && !follow.paused)
      return page.state.set({ steps: length > follow.newest - follow.first ? "all" : `live:${length}` });
    const middle = follow.held ?? (span[0] + span[1]) / 2;
    const from = Math.max(0, Math.round(middle - length / 2));
    follow.zoom(from, Math.min(follow.newest, from + length - 1));
  };
  const group = { group: "Steps" };
  keys.add("ArrowLeft", "one captured step back", () => move(-1), group);
  keys.add("ArrowRight", "one captured step forward", () => move(1), group);
  keys.add("Shift+ArrowLeft", "ten captured steps back", () => move(-FAR), group);
  keys.add("Shift+ArrowRight", "ten captured steps forward", () => move(FAR), group);
  keys.add("[", "more steps (zoom out)", () => zoom(2), group);
  keys.add("]", "fewer steps (zoom in)", () => zoom(0.5), group);
}
