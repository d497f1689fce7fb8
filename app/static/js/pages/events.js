// @ts-check
/** The page Events: the server renders its list, also when something is new; here it is followed, filtered and walked. */
import { Walk } from "../alerts/walk.js";
import { copyText } from "../copy.js";
import { byId } from "../dom.js";
import { Finder } from "../finder.js";
import { listenToSeen } from "../overview/acknowledge.js";
import { dress, Parts } from "../overview/parts.js";
import { open } from "../page.js";
import { prefs } from "../prefs.js";
import { toast } from "../toast.js";

const FILTERS = ["severity", "name", "text", "in", "hide"];

const page = open({ severity: "", name: "", text: "", in: "", hide: "0", event: "", row: "0" });
const parts = new Parts(page, "events");
const walk = new Walk(page);

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
  // Where nothing was chosen the worst is shown, and that may be another one now.
  const key = document.querySelector("#list tr[aria-current]")?.getAttribute("data-key") ?? "";
  if (key && key !== byId("detail").dataset.key) parts.now(["detail"]);
});
// Findings change with the steps, events by themselves.
page.stream.subscribe(
  { view: "events", columns: 1, hz: 2 },
  { json: (said) => (said.type === "events" && said.snapshot) || parts.soon() },
);
let edits = -1;
page.events.on("run", (run) => {
  if (edits >= 0 && run.edits !== edits) parts.soon(); // somebody acknowledged a line elsewhere
  edits = run.edits;
});
parts.follow(["timeline", "list"]);
prefs.on("numbers", () => dress(document));
listenToSeen(page, () => parts.now());

byId("copy").addEventListener("click", async (/** @type {MouseEvent} */ event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const query = new URLSearchParams(location.search);
  query.set("format", "markdown");
  const answer = await fetch(`${page.address("events")}?${query}`);
  const copied = answer.ok && (await copyText(await answer.text()));
  toast(
    copied ? "Copied the list as a Markdown table" : "Copying failed. Open the button's link in a new tab instead",
    copied ? {} : { kind: "error" },
  );
});

document.addEventListener("click", (event) => {
  const link = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("[data-set]"));
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const [name, ...value] = (link.dataset.set ?? "").split("=");
  page.state.set({ [name]: value.join("=") }, { push: name !== "event" });
  // Where the details are below the list, as on a phone, they come into sight.
  if (name === "event") byId("detail").scrollIntoView({ block: "nearest" });
});
