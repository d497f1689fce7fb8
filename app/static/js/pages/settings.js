import { send } from "../api.js";
import { byId, copyText, h, reveal } from "../dom.js";
import { open } from "../page.js";
import { toast } from "../popup.js";
import { PREFERENCES, prefs } from "../prefs.js";
import { setTheme, theme } from "../theme.js";

const THEME = {
  words: "Theme",
  help: "Light, dark, or the same as your system.",
  choices: [
    ["system", "system"],
    ["light", "light"],
    ["dark", "dark"],
  ],
};

function startPreferences() {
  const form = byId("prefs");
  const changeTheme = (/** @type {string} */ value) => setTheme(value);
  const fields = [field("theme", THEME, theme(), changeTheme)];
  for (const [name, preference] of Object.entries(PREFERENCES))
    fields.push(field(name, preference, prefs.get(name), (value) => prefs.set(name, value)));
  form.replaceChildren(...fields);
  form.addEventListener("submit", (/** @type {Event} */ event) => event.preventDefault());
  prefs.on("change", (name) => (byId(`pref-${name}`).value = prefs.get(name)));
  byId("theme").addEventListener("click", () => (byId("pref-theme").value = theme()));
  byId("prefs-deeds").hidden = false;
  byId("prefs-reset").addEventListener("click", reset);
  byId("prefs-export").addEventListener("click", save);
  byId("prefs-file").addEventListener("change", take);
}

/** @param {string} name @param {{words: string, help: string, choices: string[][]}} about @param {string} chosen
 * @param {(value: string) => void} change */
function field(name, about, chosen, change) {
  const options = about.choices.map(([value, words]) => h("option", { value, selected: value === chosen }, words));
  const id = `pref-${name}`;
  const select = h(
    "select",
    { id, "aria-describedby": `${id}-help`, onchange: (/** @type {any} */ event) => change(event.target.value) },
    ...options,
  );
  return h(
    "div",
    { class: "field" },
    h("label", { for: id }, about.words),
    select,
    h("p", { class: "quiet small", id: `${id}-help` }, about.help),
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
