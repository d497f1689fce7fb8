// @ts-check
import { copyText } from "../copy.js";
import { byId, reveal } from "../dom.js";
import { open } from "../page.js";
import { startCapture } from "../settings/capture.js";
import { startPreferences } from "../settings/preferences.js";
import { toast } from "../toast.js";

const page = open();
reveal(document);
startPreferences();
startCapture(page);
byId("copy-diagnostics").addEventListener("click", async () => {
  const copied = await copyText(`${byId("diagnostics").textContent}\n${navigator.userAgent}\n`);
  toast(
    copied ? "Copied the diagnostics" : "Your browser blocked copying. Open Diagnostics and copy the text by hand.",
    copied ? {} : { kind: "error" },
  );
});
