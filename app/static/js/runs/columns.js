// @ts-check
/** The columns that the reader chose: in the address, and for the next visit in this browser. */
import { closeOutside } from "../popup.js";

const KEPT = "hookcore-columns";
const NONE = "-";

/** The list of columns after a click on one, in the order in which they were chosen.
 * @param {string[]} shown @param {string} name @param {boolean} on */
export function chosen(shown, name, on) {
  const others = shown.filter((each) => each !== name);
  return (on ? [...others, name] : others).join(",") || NONE;
}

/** @param {import("../page.js").Page} page */
export function rememberColumns(page) {
  const box = /** @type {HTMLDetailsElement | null} */ (document.getElementById("columns"));
  if (!box) return;
  if (!page.state.get("columns")) page.state.set({ columns: kept() });
  box.addEventListener("change", (event) => {
    const { value, checked } = /** @type {HTMLInputElement} */ (event.target);
    choose(page, chosen(shownIn(box, page.state.get("columns"), value), value, checked));
  });
  box.addEventListener("click", (event) => {
    if (/** @type {Element} */ (event.target).closest("[data-do=columns-reset]")) choose(page, "");
  });
  box.addEventListener("submit", (event) => event.preventDefault());
  closeOutside(box);
}

/** The shown columns before a click: those of the address, or those that are checked without the reader's choice.
 * @param {Element} box @param {string} asked @param {string} clicked */
function shownIn(box, asked, clicked) {
  if (asked) return asked.split(",").filter((each) => each !== NONE);
  const boxes = /** @type {NodeListOf<HTMLInputElement>} */ (box.querySelectorAll("input[name=columns]"));
  return [...boxes].filter((each) => each.checked !== (each.value === clicked)).map((each) => each.value);
}

/** @param {import("../page.js").Page} page @param {string} columns */
function choose(page, columns) {
  try {
    localStorage.setItem(KEPT, columns);
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
