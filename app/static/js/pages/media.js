/** The Media page: the server renders everything except figures of Plotly. */
import { get } from "../api.js";
import { byId } from "../dom.js";
import { Parts } from "../live/parts.js";
import { open } from "../page.js";
import { CONFIG, plotly } from "../plot/library.js";

const page = open();
const parts = new Parts(page, "media");
const items = byId("media");
/** The figures that Plotly has drawn. @type {Set<HTMLElement>} */
const drawn = new Set();

parts.follow(["items"], { held: true });
page.events.on("news", () => page.follow.paused || parts.soon(["items"]));
items.addEventListener("renewed", () => void draw());
void draw();

/** Draws the figures that aren't drawn yet, and gives back what Plotly holds of those that are gone. */
async function draw() {
  for (const place of drawn) {
    if (place.isConnected) continue;
    drawn.delete(place);
    /** @type {any} */ (globalThis).Plotly.purge(place);
  }
  for (const place of /** @type {NodeListOf<HTMLElement>} */ (items.querySelectorAll("[data-figure]"))) {
    if ("editing" in place.dataset) continue;
    place.dataset.editing = ""; // a figure never changes, so updates leave it, and how it is zoomed, alone
    try {
      const Plotly = await plotly();
      const path = /** @type {const} */ (`media/${place.dataset.figure}`);
      const { data, layout } = /** @type {any} */ (await get(path, { run: page.run }));
      await Plotly.react(place, data, { ...layout, autosize: true }, { ...CONFIG, responsive: true });
      drawn.add(place);
    } catch (error) {
      place.textContent = `This figure can't be drawn: ${/** @type {Error} */ (error).message}`;
      delete place.dataset.editing; // tried again at the next update
    }
  }
}
