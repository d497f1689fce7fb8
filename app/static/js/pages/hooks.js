// @ts-check
import { send } from "../api.js";
import { byId, reveal } from "../dom.js";
import { Capture } from "../hooks/capture.js";
import { startFiles } from "../hooks/files.js";
import { load, makeTree } from "../hooks/modules.js";
import { Refresh } from "../hooks/refresh.js";
import { startStock } from "../hooks/stock.js";
import { open } from "../page.js";
import { toast } from "../toast.js";

const page = open({ sort: "", fold: "0" });
const run = /** @type {string} */ (page.run);
const form = /** @type {HTMLFormElement | null} */ (document.getElementById("capture"));
const refresh = new Refresh(
  page,
  ["figures", "reasons", "lists"],
  ["hook-figures", "hook-reasons", "hook-lists"],
  () => void show(),
);

const capture = form && new Capture(page, form, { drafted: () => tree.draw(), obeyed: () => void settle() });
const tree = makeTree(page, byId("modules"), capture);

async function show() {
  try {
    const modules = await load(run);
    tree.show(modules);
    capture?.look();
    byId("modules-said").textContent = "";
  } catch (error) {
    toast(/** @type {Error} */ (error).message, { kind: "error" });
  }
}

/** What is captured now the trainer tells from time to time, and when it is asked to look. */
async function settle() {
  await send("POST", "hooks", undefined, { run }).catch(() => null);
  await refresh.soon();
}

reveal(document);
startStock(page, () => refresh.now());
startFiles(page);
void show();
