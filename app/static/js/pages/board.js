/** The page Pinned: the charts that were pinned, of this run. */
import { pin, unpin } from "../board/pin.js";
import { PinnedChart } from "../board/pinned.js";
import { byId, onClick } from "../dom.js";
import { open } from "../page.js";
import { toast } from "../popup.js";

const page = open({ smooth: "0" });
const place = byId("charts");
// An earlier version stored charts unchecked. One that can't be shown says why, and can only be unpinned.
const isSound = (/** @type {HTMLElement} */ figure) => !("problem" in figure.dataset);
const shown = new Map([...figures()].filter(isSound).map((figure) => [figure, new PinnedChart(page, figure)]));

onClick("[data-unpin]", (button) => remove(button.closest("figure")), place);

/** @param {HTMLElement} figure */
async function remove(figure) {
  const { name = "", path = "", query = "" } = figure.dataset;
  if (!(await unpin(name))) return;
  shown.get(figure)?.remove();
  shown.delete(figure);
  figure.remove();
  /** @type {HTMLElement | null} */ (document.querySelector("[data-unpin]"))?.focus(); // not lost with its button
  byId("board-empty").hidden = figures().length > 0;
  const undo = () => void pin({ name, path, query }).then((done) => done && location.reload());
  toast(`Unpinned ${name}`, isSound(figure) ? { undo } : {});
}

/** @returns {NodeListOf<HTMLElement>} */
function figures() {
  return place.querySelectorAll("figure");
}
