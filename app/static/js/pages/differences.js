/** The page What changed: the server compares and draws. A choice is sent at once; typed text waits for Enter. */
import { LayerNames } from "../drawer/names.js";
import { Parts } from "../live/parts.js";
import { open } from "../page.js";

const page = open({ kind: "", other: "", beside: "" });
new LayerNames(page);
const parts = new Parts(page, "differences", { max: 20_000 });
const form = /** @type {HTMLFormElement | null} */ (document.getElementById("differences-form"));
form?.addEventListener("change", (event) => {
  if (/** @type {HTMLElement} */ (event.target).tagName === "SELECT") form.requestSubmit();
});
page.follow.on("change", () => void parts.now());
