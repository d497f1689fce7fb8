/** The scalars of a run: a chart for each, also for those that are logged later. */
import { PinnedChart } from "../board/pinned.js";
import { breakable, byId, h } from "../dom.js";
import { titled } from "../format.js";
import { Parts } from "../live/parts.js";
import { open } from "../page.js";

const page = open({ smooth: "0" });
const place = byId("charts");
const list = byId("scalars");
const parts = new Parts(page, "metrics");
/** @type {Set<string>} */
const drawn = new Set();

function draw() {
  for (const name of /** @type {string[]} */ (JSON.parse(list.dataset.names ?? "[]"))) {
    if (drawn.has(name)) continue;
    drawn.add(name);
    const query = new URLSearchParams({ name }).toString();
    const heading = h("header", {}, h("h2", { title: titled(name) }, ...breakable(titled(name))));
    const data = { "data-name": name, "data-path": "scalars", "data-query": query, "aria-label": titled(name) };
    const figure = h(
      "figure",
      { class: "card chart", id: `chart-${name}`, ...data },
      heading,
      h("div", { class: "plot" }),
    );
    place.append(figure);
    new PinnedChart(page, figure);
  }
}

draw();
list.addEventListener("renewed", draw);
parts.follow(undefined, { held: true });
