// @ts-check
/** The actions on runs in the list: edit, archive, delete. */
import { get, send } from "../api.js";
import { h, makeButton } from "../dom.js";
import { attempt, toast } from "../toast.js";

/** @typedef {{run: string, name: string}} Chosen a run and its name */

/** Replaces the name by a form. @param {HTMLElement} row @param {() => void} refresh */
export async function edit(row, refresh) {
  const cell = /** @type {HTMLElement} */ (row.querySelector(".name"));
  if ("editing" in row.dataset) return;
  row.dataset.editing = "";
  const path = /** @type {const} */ (`runs/${row.dataset.run}`);
  const name = field("input", "Name", { maxlength: 1000, required: true });
  const tags = field("input", "Tags", { maxlength: 1000, placeholder: "Tags, separated by commas" });
  const group = field("input", "Group", { maxlength: 200, placeholder: "Group" });
  const notes = field("textarea", "Notes", { rows: 2, maxlength: 20000, placeholder: "Notes" });
  const before = [...cell.childNodes];
  // A late answer must not overwrite typed text.
  const typed = new Set();
  for (const each of [tags, group, notes]) each.addEventListener("input", () => typed.add(each));
  const end = () => {
    delete row.dataset.editing;
    cell.replaceChildren(...before);
    /** @type {HTMLElement | null} */ (row.querySelector("[data-do=edit]"))?.focus();
    refresh();
  };
  const save = async (/** @type {Event} */ asked) => {
    asked.preventDefault();
    const changes = {
      name: name.value.trim(),
      ...(typed.has(tags) ? { tags: tagsOf(tags.value) } : {}),
      ...(typed.has(group) ? { group: group.value.trim() } : {}),
      ...(typed.has(notes) ? { notes: notes.value } : {}),
    };
    if (await attempt("Saving failed", () => send("PATCH", path, changes))) end();
  };
  const buttons = h("div", {}, h("button", { class: "button main" }, "Save"), makeButton("Cancel", end));
  const form = h("form", { class: "edit", onsubmit: save }, name, tags, group, notes, buttons);
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") end();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save(event);
  });
  name.value = row.dataset.name ?? "";
  cell.replaceChildren(form);
  name.select();
  name.focus();
  try {
    const run = await get(path);
    if (!typed.has(tags)) tags.value = run.tags.join(", ");
    if (!typed.has(group)) group.value = run.group;
    if (!typed.has(notes)) notes.value = run.notes;
  } catch (error) {
    toast(`${/** @type {Error} */ (error).message}`, { kind: "error" });
    end();
  }
}

/** @param {string} tag @param {string} label @param {Record<string, any>} attributes @returns {HTMLInputElement} */
function field(tag, label, attributes) {
  return /** @type {HTMLInputElement} */ (h(tag, { "aria-label": label, ...attributes }));
}

/** The tags in a text, each once. @param {string} text */
export function tagsOf(text) {
  return [...new Set(text.split(",").map((each) => each.trim()))].filter(Boolean);
}

/** "first", or "3 runs". @param {Chosen[]} runs */
function named(runs) {
  return runs.length === 1 ? runs[0].name : `${runs.length} runs`;
}

/** Asks the same for each of some runs, and says which ones failed.
 * @param {Chosen[]} runs @param {string} what @param {(run: Chosen) => Promise<unknown>} ask
 * @returns the failed ones */
async function forEach(runs, what, ask) {
  const done = await Promise.allSettled(runs.map(ask));
  const failed = runs.filter((_, place) => done[place].status === "rejected");
  const why = /** @type {PromiseRejectedResult | undefined} */ (done.find(({ status }) => status === "rejected"));
  if (why) toast(`${what} ${named(failed)} failed: ${why.reason.message}`, { kind: "error" });
  return failed;
}

/** Removes runs from the list at once, and from the server unless the reader undoes it.
 * @param {Chosen[]} runs @param {Set<string>} gone @param {() => void} show @param {() => void} refresh */
export function remove(runs, gone, show, refresh) {
  const back = (/** @type {Chosen[]} */ some) => {
    for (const { run } of some) gone.delete(run);
    show();
  };
  for (const { run } of runs) gone.add(run);
  show();
  const forGood = async () => {
    back(await forEach(runs, "Deleting", ({ run }) => send("DELETE", `runs/${run}`)));
    refresh();
  };
  toast(`Deleted ${named(runs)}.`, { undo: () => back(runs), done: forGood });
}

/** Takes runs off the list, or puts them back. @param {Chosen[]} runs @param {boolean} archived
 * @param {() => void} refresh */
export async function archive(runs, archived, refresh) {
  const ask = (/** @type {boolean} */ yes) =>
    forEach(runs, yes ? "Archiving" : "Restoring", ({ run }) => send("PATCH", `runs/${run}`, { archived: yes }));
  const undo = async () => {
    await ask(!archived);
    refresh();
  };
  const failed = await ask(archived);
  if (failed.length < runs.length) toast(`${archived ? "Archived" : "Restored"} ${named(runs)}.`, { undo });
  refresh();
}

/** Adds tags to runs. @param {Chosen[]} runs @param {string[]} tags
 * @param {() => void} refresh */
export async function tag(runs, tags, refresh) {
  /** The tags that are new, by run. @type {Map<string, string[]>} */
  const added = new Map();
  const change = async (/** @type {string} */ run, /** @type {(before: string[]) => string[]} */ after) => {
    const path = /** @type {const} */ (`runs/${run}`);
    await send("PATCH", path, { tags: after([...(await get(path)).tags]) });
  };
  await forEach([...runs], "Tagging", ({ run }) =>
    change(run, (before) => {
      const own = tags.filter((each) => !before.includes(each));
      added.set(run, own);
      return [...before, ...own];
    }),
  );
  const changed = runs.filter(({ run }) => added.get(run)?.length);
  const undo = async () => {
    await forEach(changed, "Restoring", ({ run }) =>
      change(run, (before) => before.filter((each) => !added.get(run)?.includes(each))),
    );
    refresh();
  };
  if (changed.length) toast(`Tagged ${named(changed)} with ${tags.join(", ")}.`, { undo });
  else if (added.size) toast("These runs have these tags already.");
  refresh();
}

/** Brings a removed run back. @param {string} run @param {Set<string>} gone @param {() => void} refresh */
export async function restore(run, gone, refresh) {
  gone.delete(run);
  await attempt("Restoring failed", () => send("POST", `removed-runs/${run}/restore`));
  refresh();
}
