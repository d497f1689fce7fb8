/** Gradient flow: one step from input to output, and every layer over the steps. */
import { byId, write } from "../dom.js";
import { LayerNames, layerOf } from "../drawer/names.js";
import { Finder } from "../finder.js";
import { Profile } from "../flow/profile.js";
import { count, counted, moduleName } from "../format.js";
import { listenToLinks, Parts } from "../live/parts.js";
import { open } from "../page.js";
import { load } from "../popup.js";

/** @import { Maps } from "../flow/overtime.js" */

const page = open({
  kind: "output_grad",
  stat: "norm",
  act: "rms",
  grad: "norm",
  type: "",
  sort: "auto",
  rows: "fit",
  y: "log",
  relative: "0",
  row: "0",
});
const { state } = page;

const finder = new Finder(page, () => filter());

/** @param {{type?: string}} layer */
const fits = ({ type = "" }) => ["", type].includes(state.get("type"));

const names = new LayerNames(page);
/** @type {Maps | null} */
let maps = null;

const profile = new Profile(page, byId("profile"), {
  fits: (layer) => finder.fits(layer.module) && fits(layer),
  onPick: (row) => names.open(layerOf(row)),
  onLayers: () => sayCount(),
});

page.schedule.whenSeen(byId("flow")).then(async () => {
  const part = await load(() => import("../flow/overtime.js"));
  if (part) maps = new part.Maps(page, names, finder, fits);
});

function sayCount() {
  // What the server found stays until it is known here as well.
  if (!finder.ready || !profile.values.every(({ known }) => known)) return;
  const { shown, layers } = profile;
  const words =
    shown.length === layers.length
      ? counted(layers.length, "layer")
      : `${count(shown.length)} of ${counted(layers.length, "layer")}`;
  const element = byId("flow-count");
  write(element, words);
  const empty = byId("profile-empty");
  const [limited = ""] = profile.values.filter(({ rows }) => rows.length).map(({ why }) => why);
  empty.hidden = layers.length > 0 && !limited;
  empty.textContent = layers.length
    ? limited
    : page.follow.newest === null
      ? profile.values[0].why
      : "Neither activations nor their gradients are captured. The Capture page shows which kinds are.";
  profile.plot.hidden = !layers.length;
  byId("profile-step").textContent = profile.about;
}

/** Other layers are found. */
function filter() {
  profile.filter();
  maps?.choose();
}

state.on("type", filter);
const parts = new Parts(page, "flow");
parts.follow(undefined, { held: true });
for (const name of ["f", "type", "act", "grad", "row"]) state.on(name, () => parts.now());
listenToLinks(page);
filter();

/** The next layer, in the order that is seen. @param {number} by */
function walk(by) {
  const modules = [...new Set(maps?.modules ?? profile.layers.map(({ module }) => module))];
  if (!modules.length) return;
  const place = modules.indexOf(names.module ?? ".");
  const module = modules[place < 0 ? 0 : Math.min(modules.length - 1, Math.max(0, place + by))];
  names.open(layerOf({ module, kind: state.get("kind") }));
  page.announce(moduleName(module));
}

/** Turns a choice to its next value. @param {string} name @param {Record<string, string>} words of its values */
const turn = (name, words) => () => {
  const values = Object.keys(words);
  state.set({ [name]: values[(values.indexOf(state.get(name)) + 1) % values.length] });
  page.announce(words[state.get(name)] ?? "");
};

page.keys.add("j", "next layer", () => walk(1));
page.keys.add("k", "previous layer", () => walk(-1));
page.keys.add(
  "l",
  "log, linear, symmetric log",
  turn("y", { log: "Scale: log", linear: "Scale: linear", symlog: "Scale: symmetric log" }),
);
page.keys.add("f", "fit all rows, or readable rows", turn("rows", { fit: "All rows", read: "Readable rows" }));
page.keys.add(
  "r",
  "relative to each row's median",
  turn("relative", { 0: "Values as captured", 1: "Values relative to each row's median" }),
);
