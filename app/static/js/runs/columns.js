// @ts-check
/** The columns that the reader chose: in the address, and for the next visit in this browser. */
import { closeOutside } from "../popup.js";
import { AUTO_COLUMNS, NO_COLUMNS } from "../vocabulary.js";

const KEPT = "hookcore-columns";

/** The list of columns after a click on one, in the order in which they were chosen. Words at its end stay there.
 * @param {string[]} shown @param {string} name @param {boolean} on @param {Set<string>} [words] columns of words */
export function chosen(shown, name, on, words = new Set()) {
  const others = shown.filter((each) => each !== name);
  const end = words.has(name) ? others.length : 1 + others.findLastIndex((each) => !words.has(each));
  return (on ? others.toSpliced(end, 0, name) : others).join(",") || NO_COLUMNS;
}

/** The list of columns with one of them moved. @param {string[]} shown @param {string} name @param {number} by
 * places; negative is left */
export function moved(shown, name, by) {
  const place = shown.indexOf(name);
  const to = place + by;
  if (place < 0 || to < 0 || to >= shown.length) return shown;
  return shown.toSpliced(place, 1).toSpliced(to, 0, name);
}

/** @param {import("../page.js").Page} page */
export function rememberColumns(page) {
  const box = /** @type {HTMLDetailsElement | null} */ (document.getElementById("columns"));
  if (!box) return;
  if (!page.state.get("columns")) page.state.set({ columns: kept() });
  box.addEventListener("change", (event) => {
    const { value, checked } = /** @type {HTMLInputElement} */ (event.target);
    const about = /** @type {NodeListOf<HTMLInputElement>} */ (box.querySelectorAll("[data-kind=about]"));
    const words = new Set([...about].map((each) => each.value));
    choose(page, chosen(shownIn(box, page.state.get("columns"), value), value, checked, words));
  });
  box.addEventListener("click", (event) => {
    const button = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("[data-do]"));
    if (button?.dataset.do === "columns-reset") choose(page, AUTO_COLUMNS);
    if (button?.dataset.do === "column-move") move(button, Number(button.dataset.by));
  });
  box.addEventListener("keydown", (event) => {
    const button = /** @type {Element} */ (event.target).closest("[data-do=column-move]");
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!button || !by) return;
    event.preventDefault();
    move(button, by);
  });
  /** The button that moved a column: the list that comes of it may take its focus.
   * @type {{id: string, by: number} | null} */
  let again = null;
  box.closest("[data-part]")?.addEventListener("renewed", () => {
    const item = again && document.getElementById(again.id);
    const isLost = !box.contains(document.activeElement) || document.activeElement?.matches(":disabled");
    const buttons = [`[data-by="${again?.by}"]`, "button"].map((each) => item?.querySelector(`${each}:enabled`));
    if (isLost) /** @type {HTMLElement | null | undefined} */ (buttons.find(Boolean))?.focus();
    again = null;
  });
  /** @param {Element} button of a column @param {number} by places */
  const move = (button, by) => {
    const items = [.../** @type {NodeListOf<HTMLElement>} */ (box.querySelectorAll("[data-column]"))];
    const own = button.closest("li");
    // At the end of the list, its own button can't move it.
    if (own?.querySelector(`[data-by="${by}"]:enabled`) == null) return;
    const shown = items.map((each) => each.dataset.column ?? "");
    again = { id: own.id, by };
    choose(page, moved(shown, own.dataset.column ?? "", by).join());
  };
  box.addEventListener("submit", (event) => event.preventDefault());
  closeOutside(box);
}

/** The shown columns before a click: those of the address, or those that are checked without the reader's choice.
 * @param {Element} box @param {string} asked @param {string} clicked */
function shownIn(box, asked, clicked) {
  if (asked && asked !== AUTO_COLUMNS) return asked.split(",").filter((each) => each !== NO_COLUMNS);
  const ordered = /** @type {NodeListOf<HTMLElement>} */ (box.querySelectorAll("[data-column]"));
  if (ordered.length) return [...ordered].map((each) => each.dataset.column ?? "");
  const boxes = /** @type {NodeListOf<HTMLInputElement>} */ (box.querySelectorAll("input[name=columns]"));
  return [...boxes].filter((each) => each.checked !== (each.value === clicked)).map((each) => each.value);
}

/** @param {import("../page.js").Page} page @param {string} columns */
function choose(page, columns) {
  try {
    localStorage.setItem(KEPT, columns === AUTO_COLUMNS ? "" : columns);
  } catch {
    // A browser that keeps nothing: the choice is in the address.
  }
  page.state.set({ columns }, { push: true });
}

function kept() {
  try {
    return localStorage.getItem(KEPT) ?? "";
  } catch {
    return "";
  }
}
