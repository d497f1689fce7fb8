/** The page of one problem: the server renders it; the chart shows the values that its incident keeps. */
import { listenToExplain, listenToMute, listenToSeen } from "../alerts/controls.js";
import { OnsetChart } from "../alerts/onset.js";
import { LayerNames } from "../drawer/names.js";
import { Parts } from "../live/parts.js";
import { open } from "../page.js";

const given = document.getElementById("around")?.dataset ?? {};
const page = open({ id: "", stat: given.stat ?? "", y: "" });
const parts = new Parts(page, "incident");
new LayerNames(page);
const chart = given.steps ? new OnsetChart(page, page.state.get("id")) : null;

page.state.on("stat", () => {
  parts.now(["tensors"]);
  chart?.show();
});
// It can spread, and its evidence grows, until enough steps have passed.
parts.follow();
page.events.on("news", () => parts.soon());
page.follow.on("newest", () => chart?.renew());
listenToExplain(page, () => parts.now(["cause"]));
listenToSeen(page, () => parts.now(["about"]));
listenToMute(page, () => parts.now(["about"]));
for (const [key, id, words] of [
  ["n", "next", "next problem"],
  ["p", "previous", "previous problem"],
])
  page.keys.add(key, words, () => document.getElementById(id)?.click());
