/** The page Model: the model as a picture, played over the steps, with a drawer for one of its boxes. */
import { byId } from "../dom.js";
import { LateDrawer, listenToNames } from "../drawer/names.js";
import { listenToLinks, Parts } from "../live/parts.js";
import { addControls, addKeys } from "../model/controls.js";
import { Picture } from "../model/picture.js";
import { open } from "../page.js";

const page = open({ kind: "", stat: "norm", y: "log", folds: "", box: "", speed: "8", smooth: "0", row: "0" });
const picture = new Picture(page, byId("model"));
const drawer = new LateDrawer(page, () => picture.select(null));
const parts = new Parts(page, "model");

addControls(picture);
addKeys(picture);
listenToLinks(page, () => parts.now(["boxes"]));
page.state.on("f", () => parts.now(["boxes"]));
picture.structure.on("model", () => parts.soon(["boxes"]));
// Why all boxes are gray.
page.state.on("kind", () => void parts.now(["why"]));
page.follow.on("change", () => parts.promptly(["why"]));
for (const name of ["rows", "blank"]) picture.readings.on(name, () => picture.steps.playing || parts.soon(["why"]));
page.events.on("news", () => parts.soon(["onset"]));

/** @param {number | null} number */
function show(number) {
  const { tree } = picture.structure;
  if (number === null || !tree) return drawer.close();
  const { module, call, phase, kind } = tree.boxes[number];
  if (kind !== "repeat") drawer.open({ module, call, phase, kind: picture.readings.asked.kind });
}

/** A name in the table selects its box. @param {string} module */
function pick(module) {
  const [number] = picture.structure.tree?.byModule.get(module) ?? [];
  if (number === undefined) return false;
  picture.select(number);
  drawer.focus();
  return true;
}

listenToNames(page, ({ module }) => pick(module));
picture.on("select", show);
picture.on("open", show);
// A link to a box opens with its drawer.
picture.structure.on("model", () => picture.selected !== null && drawer.closed && show(picture.selected));
for (const name of ["kind", "box"]) page.state.on(name, () => drawer.closed || show(picture.selected));
