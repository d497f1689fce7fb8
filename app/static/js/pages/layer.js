/** The Layer page: everything about one module, live. */
import { get, only } from "../api.js";
import { byId } from "../dom.js";
import { Charts } from "../layer/charts.js";
import { addKeys, startChoice, startPickers } from "../layer/choice.js";
import { distributionsOf, plansOf } from "../layer/plan.js";
import { MAX_PAGE } from "../limits.js";
import { Parts } from "../live/parts.js";
import { Refresh } from "../live/refresh.js";
import { open } from "../page.js";
import { load } from "../popup.js";

/** @import { ChannelView } from "../layer/channels.js"
 * @import { Distributions } from "../layer/distributions.js"
 * @import { Tap } from "../layer/plan.js" */

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
  startChoice(page);
  const parts = new Parts(page, "layer");
  parts.follow(["numbers"], { held: true });
  page.state.on("f", () => parts.soon(["numbers"]));
}

/** @param {string} module its path */
function start(module) {
  /** @type {Tap[]} */
  let taps = [];
  /** @type {number | null} */
  let known = null;
  const charts = new Charts(page);
  /** @type {Distributions | null} */
  let distributions = null;
  /** @type {ChannelView | null} */
  let channels = null;
  const parts = new Parts(page, "layer");
  const showPickers = startPickers(page, () => taps);
  const show = () => {
    const { kind, index, call, phase } = page.state.values;
    showPickers();
    charts.show(plansOf(taps, { kind, index, call, phase }));
    const shown = distributionsOf(taps, { kind, index, call, phase });
    byId("distributions").hidden = !shown.length;
    distributions?.show(shown);
  };
  // Loaded once the charts above them have their places.
  let isBegun = false;
  const begin = () => {
    if (isBegun) return;
    isBegun = true;
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
  };
  const ask = async (/** @type {AbortSignal} */ signal) => {
    taps = await tapsOf(module, signal);
    show();
    channels?.look();
    begin();
  };
  const look = new Refresh(ask, { failed: (error) => charts.fail(error) });
  addKeys(page);
  page.state.on("change", (names) => {
    if (["kind", "index", "call", "phase"].some((name) => names.includes(name))) show();
    if (names.includes("spread")) parts.now(["ranks"]);
  });
  page.cursor.on("pin", ({ step }) => step !== null && step !== undefined && page.follow.hold(step));
  parts.follow(["values", "ranks"], { held: true });
  page.follow.on("change", () => parts.promptly(["facts", "alerts"]));
  page.events.on("news", () => page.follow.paused || parts.soon(["alerts"]));
  page.events.on("run", (run) => {
    if (known !== null && run.taps !== known) {
      look.soon();
      parts.soon();
    }
    known = run.taps;
  });
  void look.now();
}

/** @param {string} module @param {AbortSignal} signal */
async function tapsOf(module, signal) {
  return (await get("taps", { run: page.run, ...only(module), limit: MAX_PAGE }, signal)).taps;
}
