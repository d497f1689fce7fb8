import { send } from "../api.js";
import { byId, copyText, h, reveal } from "../dom.js";
import { open } from "../page.js";
import { toast } from "../popup.js";
import { PREFERENCES, prefs } from "../prefs.js";
import { setTheme, theme } from "../theme.js";
import { THEMES } from "../vocabulary.js";

/** The words of a preference, of what it does, and of its values. @type {Record<string, [string, string, string[]]>} */
const WORDS = {
  theme: ["Theme", "Light, dark, or the same as your system.", ["system", "light", "dark"]],
  density: ["Density", "Row height of tables.", ["comfortable", "compact"]],
  numbers: [
    "Numbers",
    "Number format on all pages.",
    ["0.01235, and 1.235e-5 when small", "short: 0.012, 1.2e-5", "always 1.235e-2", "eight digits"],
  ],
  colors: [
    "Color map",
    "For heatmaps and histograms. NaN, infinities, and steps that were not captured have their own colors.",
    ["viridis", "cividis (safe for all types of color vision)"],
  ],
  rate: [
    "Updates",
    "How often live pages refresh. Slower updates use less CPU.",
    ["10 a second", "20 a second", "4 a second", "1 a second"],
  ],
  window: [
    "Steps shown",
    "Steps shown when you open a run that is still training. A finished run is shown from its first step.",
    ["500 steps", "200 steps", "1,000 steps", "2,000 steps"],
  ],
  by: [
    "Axis of charts",
    "Captured steps stand side by side, with a mark where steps were left out; by step, those stay empty.",
    ["captured steps", "all steps", "time", "samples"],
  ],
  smooth: [
    "Smoothing",
    "Half-life in steps. The raw line stays visible behind the smoothed one.",
    ["off", "5 steps", "20 steps", "100 steps"],
  ],
  keys: ["Single-letter shortcuts", "Turn off if they clash with voice control or a screen reader.", ["on", "off"]],
};

function startPreferences() {
  const form = byId("prefs");
  const changeTheme = (/** @type {string} */ value) => setTheme(value);
  const fields = [field("theme", [...THEMES], theme(), changeTheme)];
  for (const [name, values] of Object.entries(PREFERENCES))
    fields.push(field(name, values, prefs.get(name), (value) => prefs.set(name, value)));
  form.replaceChildren(...fields);
  form.addEventListener("submit", (/** @type {Event} */ event) => event.preventDefault());
  prefs.on("change", (name) => (byId(`pref-${name}`).value = prefs.get(name)));
  byId("theme").addEventListener("click", () => (byId("pref-theme").value = theme()));
  byId("prefs-deeds").hidden = false;
  byId("prefs-reset").addEventListener("click", reset);
  byId("prefs-export").addEventListener("click", save);
  byId("prefs-file").addEventListener("change", take);
}

/** @param {string} name @param {string[]} values @param {string} chosen @param {(value: string) => void} change */
function field(name, values, chosen, change) {
  const [title, help, words] = WORDS[name];
  const options = values.map((value, place) => h("option", { value, selected: value === chosen }, words[place]));
  const id = `pref-${name}`;
  const select = h(
    "select",
    { id, "aria-describedby": `${id}-help`, onchange: (/** @type {any} */ event) => change(event.target.value) },
    ...options,
  );
  return h(
    "div",
    { class: "field" },
    h("label", { for: id }, title),
    select,
    h("p", { class: "quiet small", id: `${id}-help` }, help),
  );
}

function reset() {
  const before = prefs.text;
  prefs.reset();
  toast("Settings reset to their defaults", { undo: () => prefs.take(before) });
}

function save() {
  const url = URL.createObjectURL(new Blob([prefs.text], { type: "application/json" }));
  h("a", { href: url, download: "hookcore-settings.json" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** @param {any} event */
async function take(event) {
  const [file] = event.target.files;
  event.target.value = "";
  if (!file) return;
  const before = prefs.text;
  try {
    const taken = prefs.take(await file.text());
    toast(`Imported ${taken} ${taken === 1 ? "setting" : "settings"}`, { undo: () => prefs.take(before) });
  } catch (error) {
    toast(`${file.name}: ${/** @type {Error} */ (error).message}`, { kind: "error" });
  }
}

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
