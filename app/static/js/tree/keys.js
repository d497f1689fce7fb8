// @ts-check
/** The keys of a treegrid, as the ARIA practices have them; the focus stays on the grid, its active row moves. */
import { ROW_PX } from "./rowView.js";

/** What answers to clicks itself. @param {Element} element */
export function isMarked(element) {
  return element.closest("button, a, input, select, label") !== null;
}

/** @param {import("./index.js").Tree} tree @param {KeyboardEvent} event */
export function onKey(tree, event) {
  if (event.target !== tree.grid || event.ctrlKey || event.metaKey || event.altKey) return;
  const act = ACTIONS[event.key];
  const row = tree.rows[tree.active];
  if (!act || (!row && tree.rows.length === 0)) return;
  event.preventDefault();
  if (row) act(tree, row);
  else tree.activate(0);
}

/** @param {import("./index.js").Tree} tree */
function page(tree) {
  return Math.max(1, Math.floor(tree.grid.clientHeight / ROW_PX) - 2);
}

/** @type {Record<string, (tree: import("./index.js").Tree, row: import("./index.js").Row) => void>} */
const ACTIONS = {
  ArrowDown: (tree) => tree.activate(tree.active + 1),
  ArrowUp: (tree) => tree.activate(tree.active - 1),
  PageDown: (tree) => tree.activate(tree.active + page(tree)),
  PageUp: (tree) => tree.activate(tree.active - page(tree)),
  Home: (tree) => tree.activate(0),
  End: (tree) => tree.activate(tree.rows.length - 1),
  ArrowRight: (tree, row) =>
    row.expanded === false ? tree.toggle(row, true) : row.expanded && tree.activate(tree.active + 1),
  ArrowLeft: (tree, row) => (row.expanded ? tree.toggle(row, false) : toParent(tree, row)),
  Enter: (tree, row) => tree.pick(row),
  " ": (tree, row) => (tree.options.onSpace ?? ((each) => tree.toggle(each)))(row),
};

/** @param {import("./index.js").Tree} tree @param {import("./index.js").Row} row */
function toParent(tree, row) {
  for (let place = tree.active - 1; place >= 0; place -= 1)
    if (tree.rows[place].level < row.level) return tree.activate(place);
}
