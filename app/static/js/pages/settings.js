import { send } from "../api.js";
import { byId, copyText } from "../dom.js";
import { open } from "../page.js";
import { attempt, toast } from "../popup.js";
import { prefs } from "../prefs.js";
import { setTheme, theme } from "../theme.js";

const form = /** @type {HTMLFormElement} */ (byId("prefs"));
const selects = [.../** @type {NodeListOf<HTMLSelectElement>} */ (form.querySelectorAll("select"))];
const show = () => {
  for (const select of selects) select.value = select.name === "theme" ? theme() : prefs.get(select.name);
};

open();
show();
prefs.on("change", show);
byId("theme").addEventListener("click", show);
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("change", ({ target }) => {
  const { name, value } = /** @type {HTMLSelectElement} */ (target);
  if (name === "theme") setTheme(value);
  else prefs.set(name, value);
});
byId("prefs-reset").addEventListener("click", () => {
  const before = prefs.all;
  prefs.reset();
  toast("Settings reset to their defaults", { undo: () => Object.entries(before).map((each) => prefs.set(...each)) });
});
byId("copy-diagnostics").addEventListener("click", async () => {
  const copied = await copyText(`${byId("diagnostics").textContent}\n${navigator.userAgent}\n`);
  toast(
    copied ? "Copied the diagnostics" : "Your browser blocked copying. Open Diagnostics and copy the text by hand.",
    copied ? {} : { kind: "error" },
  );
});

const test = document.getElementById("notify-test");
if (test instanceof HTMLButtonElement)
  test.addEventListener("click", async () => {
    test.disabled = true;
    await attempt("Sending failed", async () => {
      const { targets } = await send("POST", "notifications/test");
      const failed = targets.filter((/** @type {any} */ each) => !each.works);
      const names = failed.map((/** @type {any} */ each) => each.name).join(", ");
      if (failed.length) toast(`The test message did not reach ${names}`, { kind: "error" });
      else toast("The test message was delivered");
    });
    test.disabled = false;
  });
