// @ts-check
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
