/** The Ranks page: the server renders its parts, also when something has changed; the heatmap is drawn here. */
import { send } from "../api.js";
import { onClick } from "../dom.js";
import { LayerNames } from "../drawer/names.js";
import { listenToLinks, Parts } from "../live/parts.js";
import { open } from "../page.js";
import { attempt } from "../popup.js";
import { RankMap } from "../ranks/map.js";

const figure = document.getElementById("rank-map");
const { kind = "" } = document.getElementById("layers")?.dataset ?? {};
const page = open({ value: figure?.dataset.value ?? "", stat: "rms", kind, sort: "apart", row: "0" });
if (figure) {
  new LayerNames(page);
  const parts = new Parts(page, "ranks", { max: 10_000 });
  parts.follow(undefined, { held: true });
  page.events.on("news", () => parts.soon(["summary"]));
  page.state.on("value", () => parts.now(["newest", "table"]));
  page.state.on("stat", () => parts.now(["newest", "table", "layers"]));
  for (const name of ["kind", "sort", "row", "f"]) page.state.on(name, () => parts.now(["layers"]));
  onClick("[data-sum-again]", async (button) => {
    button.disabled = true;
    await attempt("The ranks can't be added up again", () => send("POST", "ranks", undefined, { run: page.run }));
    await parts.now();
  });
  new RankMap(page, figure);
  listenToLinks(page, (name) => name === "value" && figure.scrollIntoView({ block: "nearest" }));
}
