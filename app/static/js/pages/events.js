/** The page Problems: the server renders its list, also when something has changed; scripts request it. */
import { listenToMute, listenToSeen } from "../alerts/controls.js";
import { reach, send } from "../api.js";
import { byId, copyText } from "../dom.js";
import { LayerNames } from "../drawer/names.js";
import { Finder } from "../finder.js";
import { listenToLinks, Parts } from "../live/parts.js";
import { open } from "../page.js";
import { attempt, toast } from "../popup.js";

const FILTERS = ["severity", "name", "text", "hide"];

const page = open({ severity: "", name: "", text: "", hide: "0", row: "0" });
const parts = new Parts(page, "events");
new LayerNames(page);

const filter = () => (page.state.get("row") === "0" ? parts.now() : page.state.set({ row: "0" }));
const finder = new Finder(page, () => finder.problem || filter());
for (const name of FILTERS) page.state.on(name, filter);
page.state.on("row", () => parts.now());
// Findings change with the steps; events, acknowledgements, and mutes don't need one.
parts.follow(["mutes", "list"], { held: true });
page.events.on("news", () => parts.soon());
listenToSeen(page, () => parts.now());
listenToMute(page, () => parts.now());
listenToLinks(page);

document.getElementById("save-step")?.addEventListener("click", async () => {
  if (await attempt("No step can be saved", () => send("POST", "capsules", undefined, { run: page.run })))
    toast("The next captured step will be saved. An event will show the file\u2019s path.");
});

byId("copy").addEventListener("click", async (/** @type {MouseEvent} */ event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const query = new URLSearchParams(location.search);
  query.set("format", "markdown");
  try {
    const answer = await reach(`${page.address("events")}?${query}`);
    const copied = answer.ok && (await copyText(await answer.text()));
    toast(
      copied ? "Copied the list as a Markdown table" : "Copying failed. Open the button's link in a new tab instead",
      copied ? {} : { kind: "error" },
    );
  } catch (error) {
    toast(`Copying failed: ${/** @type {Error} */ (error).message}.`, { kind: "error" });
  }
});
