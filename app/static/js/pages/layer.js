/** The Layer page: everything about one module, live. */
import { byId } from "../dom.js";
import { Finder } from "../finder.js";
import { Charts } from "../layer/charts.js";
import { addKeys } from "../layer/choice.js";
import { Parts } from "../live/parts.js";
import { open } from "../page.js";
import { load } from "../popup.js";

/** @import { ChannelView } from "../layer/channels.js"
 * @import { Distributions } from "../layer/distributions.js" */

const page = open({
  kind: "",
  index: "",
  call: "",
  phase: "",
  smooth: "0",
  y: "",
  channels: "",
  order: "",
  spread: "rms",
});
const layer = document.getElementById("layer");

if (layer) start(layer.dataset.module ?? "");
else {
  const parts = new Parts(page, "layer");
  parts.follow(["numbers"], { held: true });
  const finder = new Finder(page, () => finder.problem || parts.now());
}

/** @param {string} module its path */
function start(module) {
  /** @type {number | null} */
  let known = null;
  const charts = new Charts(page);
  /** @type {Distributions | null} */
  let distributions = null;
  /** @type {ChannelView | null} */
  let channels = null;
  const parts = new Parts(page, "layer");
  const pickers = byId("pickers");
  const show = () => {
    for (const select of pickers.querySelectorAll("select")) select.value = select.dataset.chosen;
    charts.show(JSON.parse(pickers.dataset.plans));
    const shown = JSON.parse(pickers.dataset.distributions);
    byId("distributions").hidden = !shown.length;
    distributions?.show(shown);
  };
  pickers.addEventListener("renewed", () => {
    show();
    channels?.look();
  });
  pickers.addEventListener("change", (/** @type {any} */ { target }) =>
    page.state.set({ [target.name]: target.value }),
  );
  addKeys(page);
  page.state.on("change", (names) => {
    if (["kind", "index", "call", "phase"].some((name) => names.includes(name))) parts.now(["pickers"]);
    if (names.includes("spread")) parts.now(["ranks"]);
  });
  page.cursor.on("pin", ({ step }) => step !== null && step !== undefined && page.follow.hold(step));
  parts.follow(["values", "ranks"], { held: true });
  page.follow.on("change", () => parts.promptly(["facts", "alerts"]));
  page.events.on("news", () => page.follow.paused || parts.soon(["alerts"]));
  page.events.on("run", (run) => {
    if (known !== null && run.taps !== known) parts.soon();
    known = run.taps;
  });
  show();
  page.schedule.whenSeen(byId("channels")).then(async () => {
    const part = await load(() => import("../layer/channels.js"));
    channels = part && new part.ChannelView(page);
    channels?.look();
  });
  // At once, because what is below them would move.
  load(() => import("../layer/distributions.js")).then((part) => {
    distributions = part && new part.Distributions(page, module);
    show();
  });
}
