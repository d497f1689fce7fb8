/** The page Precision: the server computes and renders. A choice is sent at once. */
import { Parts } from "../live/parts.js";
import { open } from "../page.js";

const page = open({ kind: "", format: "e4m3", scale: "max" });
const parts = new Parts(page, "precision", { max: 20_000 });
parts.follow();
const form = /** @type {HTMLFormElement | null} */ (document.getElementById("precision-form"));
form?.addEventListener("change", () => form.requestSubmit());
