/** Figures of Plotly that a script or a command has logged, drawn in their places. */
import { get } from "../api.js";
import { CONFIG, plotly } from "./library.js";

const MAX_HEIGHT = 2000;

/** The places of drawn figures. @type {Set<HTMLElement>} */
const drawn = new Set();

/**
 * Draws the figures in an element that aren't drawn yet, and gives back what Plotly holds of those that are gone.
 * @param {Element} inside
 * @param {string} run the run of the figures whose places name none
 */
export async function drawFigures(inside, run = "") {
  for (const place of drawn) {
    if (place.isConnected) continue;
    drawn.delete(place);
    /** @type {any} */ (globalThis).Plotly.purge(place);
  }
  for (const place of /** @type {NodeListOf<HTMLElement>} */ (inside.querySelectorAll("[data-figure]"))) {
    if ("editing" in place.dataset) continue;
    place.dataset.editing = ""; // a figure never changes, so updates leave it, and how it is zoomed, alone
    try {
      const Plotly = await plotly();
      const path = /** @type {const} */ (`media/${place.dataset.figure}`);
      const { data, layout } = /** @type {any} */ (await get(path, { run: place.dataset.run ?? run }));
      if (layout?.height) place.style.height = `${Math.min(layout.height, MAX_HEIGHT)}px`;
      await Plotly.react(place, data, { ...layout, autosize: true }, { ...CONFIG, responsive: true });
      drawn.add(place);
    } catch (error) {
      place.textContent = `This figure can't be drawn: ${/** @type {Error} */ (error).message}`;
      delete place.dataset.editing; // tried again at the next update
    }
  }
}
