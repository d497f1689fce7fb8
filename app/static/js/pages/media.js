/** The Media page: the server renders everything except figures of Plotly. */
import { byId } from "../dom.js";
import { Parts } from "../live/parts.js";
import { open } from "../page.js";
import { drawFigures } from "../plot/figures.js";

const page = open();
const parts = new Parts(page, "media");
const items = byId("media");

parts.follow(["items"], { held: true });
page.events.on("news", () => page.follow.paused || parts.soon(["items"]));
items.addEventListener("renewed", () => void drawFigures(items, page.run ?? ""));
void drawFigures(items, page.run ?? "");
