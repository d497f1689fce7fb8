// @ts-check
import { send } from "../api.js";
import { copyText } from "../copy.js";
import { byId, reveal } from "../dom.js";
import { open } from "../page.js";
import { startPreferences } from "../settings/preferences.js";
import { toast } from "../toast.js";

open();
reveal(document);
startPreferences();
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
    try {
      const { targets } = await send("POST", "notifications/test");
      const failed = targets.filter((/** @type {any} */ each) => !each.works);
      const names = failed.map((/** @type {any} */ each) => each.name).join(", ");
      if (failed.length) toast(`The test message did not reach ${names}`, { kind: "error" });
      else toast("The test message was delivered");
    } catch (error) {
      toast(error instanceof Error ? error.message : String(error), { kind: "error" });
    } finally {
      test.disabled = false;
    }
  });
