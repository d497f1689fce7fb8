// @ts-check
/** The dialog with all keys, as they are at this moment on this page. */
import { h, makeButton } from "../dom.js";
import { openDialog } from "../popup.js";

/** @type {Record<string, string>} */
const SIGNS = { ArrowLeft: "\u2190", ArrowRight: "\u2192", ArrowUp: "\u2191", ArrowDown: "\u2193", Escape: "Esc" };

/** @param {string} key @returns {Node[]} */
export function keyCaps(key) {
  const parts = key.split(" ").map((press) =>
    press
      .split("+")
      .filter(Boolean)
      .map((part) =>
        h("kbd", {}, SIGNS[part] ?? (part.length === 1 && press.startsWith("Ctrl+") ? part.toUpperCase() : part)),
      ),
  );
  return parts.flatMap((press, place) => [...(place ? [document.createTextNode(" then ")] : []), ...press]);
}

/** @param {import("../keys.js").Keys} keys */
export function showKeys(keys) {
  const open = document.querySelector("dialog.keylist");
  if (open) return /** @type {HTMLDialogElement} */ (open).close();
  const groups = [...keys.groups].map(([group, lines]) =>
    h(
      "section",
      {},
      h("h3", {}, group),
      h(
        "dl",
        {},
        ...lines.flatMap(({ keys: each, words }) => [
          h("dt", {}, ...each.flatMap((key, place) => [...(place ? [" or "] : []), ...keyCaps(key)])),
          h("dd", {}, words),
        ]),
      ),
    ),
  );
  const close = makeButton("Close", () => dialog.close());
  const help = h("a", { href: "help#keys-list" }, "More help");
  const dialog = openDialog(
    { class: "keylist", "aria-labelledby": "keylist-title" },
    h("h2", { id: "keylist-title" }, "Keyboard shortcuts"),
    h("div", { class: "columns" }, ...groups),
    h("p", { class: "toolbar" }, close, help),
  );
}
