// @ts-check
/** The modules as a tree: the captured tensors of each, their number of values, and a checkbox. */
import { get } from "../api.js";
import { Card } from "../card.js";
import { byId, h } from "../dom.js";
import { count } from "../format.js";
import { kindWords } from "../kinds.js";
import { visit } from "../timeline/keep.js";
import { toast } from "../toast.js";
import { Tree } from "../tree/index.js";
import { nodesOf } from "../tree/rows.js";
import { ROOT } from "../vocabulary.js";

/**
 * @typedef {{path: string, type: string, parent: string | null, captured: boolean, kinds: string[], reason: string,
 * calls: number,
 *   values: number, hooks: number}} Seen */

/** @param {string} run @param {{from?: number, to?: number}} steps of the values @param {AbortSignal} signal
 * @returns {Promise<Seen[]>} */
export async function load(run, steps, signal) {
  return /** @type {any} */ (await get(`runs/${encodeURIComponent(run)}/module-rows`, steps, signal));
}

/** A column of counts, of which zeros are left out.
 * @param {"calls" | "values" | "hooks"} key @param {string} title @param {number} width @param {string} help
 * @returns {import("../tree/index.js").Column} */
function counts(key, title, width, help) {
  const value = (/** @type {Seen} */ module) => module[key];
  return { key, title, width, number: true, value, words: (many) => (many ? count(many) : ""), rank: value, help };
}

/** @param {import("../page.js").Page} page @param {HTMLElement} figure
 * @param {import("./capture.js").Capture | null} capture */
export function makeTree(page, figure, capture) {
  const place = /** @type {HTMLElement} */ (figure.querySelector("#tree"));
  /** @type {import("../tree/index.js").Column[]} */
  const columns = [
    { key: "type", title: "Type", width: 140, value: ({ type }) => type },
    {
      key: "captured",
      title: "Captured",
      width: 310,
      value: ({ captured, reason }) => (captured ? "yes" : reason || "no"),
      rank: ({ captured }) => Number(!captured),
      words: (words, { captured }) => `${captured ? "\u2713" : "\u2013"} ${words}`,
      help: "If not, the reason. A collapsed group shows the first uncaptured module in it.",
    },
    { key: "kinds", title: "Kinds", width: 230, value: ({ kinds }) => kinds.map(kindWords).join(", ") },
    counts("calls", "Calls", 62, "Calls per step"),
    counts("values", "Values", 84, "Values read in the newest captured step, or in the chosen steps"),
    counts("hooks", "Hooks", 72, "Hooks on the module and its parameters that are not from hookcore"),
  ];
  if (capture)
    columns.unshift({
      key: "watch",
      title: "Watch",
      width: 70,
      value: ({ path }) => capture.watches(path),
      paint: (cell, _module, row) => paintBox(cell, row),
    });

  /** @param {HTMLElement} cell @param {import("../tree/index.js").Row} row */
  function paintBox(cell, row) {
    if (!cell.firstChild) cell.append(h("button", { type: "button", role: "checkbox", class: "box", tabindex: "-1" }));
    const box = /** @type {HTMLElement} */ (cell.firstChild);
    box.setAttribute("aria-checked", stateOf(row));
    box.setAttribute(
      "aria-label",
      `Watch ${row.node.path || ROOT}${row.expanded === false ? " and everything below it" : ""}`,
    );
    box.onclick = () => flip(row);
  }

  /** @param {import("../tree/index.js").Row} row */
  function stateOf({ node, expanded }) {
    const members = (expanded === false ? nodesOf([node]) : [node]).flatMap((each) => each.members);
    const on = members.filter(({ path }) => capture?.watches(path)).length;
    return on === members.length ? "true" : on ? "mixed" : "false";
  }

  /** @param {import("../tree/index.js").Row} row */
  async function flip(row) {
    if (!capture) return;
    await capture.known; // a switch before that would go the wrong way
    const paths = row.node.members.map(({ path }) => path);
    const blocked = await capture.switch({ paths, whole: row.expanded === false, on: stateOf(row) !== "true" });
    if (blocked)
      toast(`${row.node.path || ROOT} is still excluded by ${blocked}. Remove that pattern from Exclude.`, {
        kind: "error",
      });
    else page.announce(byId("dry-run").textContent ?? "");
  }

  const onPick = (/** @type {any} */ { path }) => visit(page, "layer", { module: path });
  const tree = new Tree(page, place, {
    title: "Modules",
    columns,
    onPick,
    onSpace: capture ? flip : undefined,
    alarming: ({ captured }) => !captured,
    alarmingWords: "Expand uncaptured",
  });
  new Card(page, figure, { title: "Modules", table: () => tree.table() });
  return tree;
}
