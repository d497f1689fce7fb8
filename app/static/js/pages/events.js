/** The page Problems: the server renders its list, also when something has changed; scripts request it and move through
 * it. */
import { listenToExplain, listenToMute, listenToSeen, Walk } from "../alerts/controls.js";
import { reach } from "../api.js";
import { byId, copyText } from "../dom.js";
import { LayerNames } from "../drawer/names.js";
import { Finder } from "../finder.js";
import { listenToLinks, Parts } from "../live/parts.js";
import { open } from "../page.js";
import { toast } from "../popup.js";

const FILTERS = ["severity", "name", "text", "hide"];

const page = open({ severity: "", name: "", text: "", hide: "0", event: "", row: "0" });
const parts = new Parts(page, "events");
const walk = new Walk(page);
new LayerNames(page);

const filter = () => (page.state.get("row") === "0" ? parts.now() : page.state.set({ row: "0" }));
const finder = new Finder(page, () => finder.problem || filter());
for (const name of FILTERS) page.state.on(name, filter);
page.state.on("row", () => parts.now());
page.state.on("event", () => {
  walk.show();
  parts.now(["detail"]);
});
byId("list").addEventListener("renewed", () => {
  walk.show();
  // Without a choice, the worst line is shown, which may have changed.
  const key = document.querySelector("#list tr[aria-current]")?.getAttribute("data-key") ?? "";
  if (key && key !== byId("detail").dataset.key) parts.now(["detail"]);
});
// Findings change with the steps; events, acknowledgements, and mutes don't need one.
parts.follow(["mutes", "list"], { held: true });
page.follow.on("change", () => parts.promptly(["detail"])); // as it was known at the step that is shown
page.events.on("news", () => parts.soon());
listenToExplain(page, () => parts.now(["detail"]));
listenToSeen(page, () => parts.now());
listenToMute(page, () => parts.now());

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

// On a phone, the details are below the list.
listenToLinks(page, (name) => name === "event" && byId("detail").scrollIntoView({ block: "nearest" }));
