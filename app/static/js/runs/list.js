/** The list of runs: the selected ones, the chosen columns, saved views, and actions. The address holds the choices. */
import { get, send } from "../api.js";
import { byId, h, makeButton, onClick } from "../dom.js";
import { MAX_OVERLAID_RUNS } from "../limits.js";
import { attempt, closeOutside, toast } from "../popup.js";
import { AUTO_COLUMNS, NO_COLUMNS, VIEW_NAMES } from "../vocabulary.js";
/** @import { Run } from "../answers.js"
 * @import { Page } from "../page.js"
 * @import { State } from "../state.js" */

/** @typedef {{run: string, name: string}} Chosen a run and its name */

/** Replaces a run's name by a form. @param {HTMLElement} row @param {() => void} refresh */
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
  const end = () => {
    delete row.dataset.editing;
    cell.replaceChildren(...before);
    /** @type {HTMLElement | null} */ (row.querySelector(".row-menu summary"))?.focus();
    refresh();
  };
  const save = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const about = { tags: tagsOf(tags.value), group: group.value.trim(), notes: notes.value };
    const changes = { name: name.value.trim(), ...about };
    if (await attempt("Saving failed", () => send("PATCH", path, changes))) end();
  };
  const isThere = await attempt("Editing failed", async () => {
    const run = await get(path);
    [name.value, tags.value, group.value, notes.value] = [
      run.name || run.id,
      run.tags.join(", "),
      run.group,
      run.notes,
    ];
  });
  if (!isThere) return end();
  const buttons = h("div", {}, h("button", { class: "button main" }, "Save"), makeButton("Cancel", end));
  const form = h("form", { class: "edit", onsubmit: save }, name, tags, group, notes, buttons);
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") end();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save(event);
  });
  cell.replaceChildren(form);
  name.select();
  name.focus();
}

/** @param {string} tag @param {string} label @param {Record<string, any>} attributes @returns {HTMLInputElement} */
function field(tag, label, attributes) {
  return /** @type {HTMLInputElement} */ (h(tag, { "aria-label": label, ...attributes }));
}

/** The tags in a text, each once. @param {string} text */
export function tagsOf(text) {
  return [...new Set(text.split(",").map((tag) => tag.trim()))].filter(Boolean);
}

/** "first", or "3 runs". @param {Chosen[]} runs */
function named(runs) {
  return runs.length === 1 ? runs[0].name : `${runs.length} runs`;
}

/** Asks the same for each of some runs, and says which ones failed. @param {Chosen[]} runs @param {string} what @param
 * {(run: Chosen) => Promise<unknown>} ask @returns the failed ones */
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

/** Adds tags to runs. @param {Chosen[]} runs @param {string[]} tags @param {() => void} refresh */
export async function tag(runs, tags, refresh) {
  /** The tags that are new, by run. @type {Map<string, string[]>} */
  const added = new Map();
  const change = async (/** @type {string} */ run, /** @type {(before: string[]) => string[]} */ after) => {
    const path = /** @type {const} */ (`runs/${run}`);
    await send("PATCH", path, { tags: after([...(await get(path)).tags]) });
  };
  await forEach([...runs], "Tagging", ({ run }) =>
    change(run, (before) => {
      const own = tags.filter((tag) => !before.includes(tag));
      added.set(run, own);
      return [...before, ...own];
    }),
  );
  const changed = runs.filter(({ run }) => added.get(run)?.length);
  const undo = async () => {
    await forEach(changed, "Restoring", ({ run }) =>
      change(run, (before) => before.filter((tag) => !added.get(run)?.includes(tag))),
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

const KEPT = "hookcore-columns";

/** The list of columns after a click on one, in the order in which they were chosen. Words at its end stay there.
 * @param {string[]} shown @param {string} name @param {boolean} on @param {Set<string>} [words] columns of words */
export function chosen(shown, name, on, words = new Set()) {
  const others = shown.filter((column) => column !== name);
  const end = words.has(name) ? others.length : 1 + others.findLastIndex((column) => !words.has(column));
  return (on ? others.toSpliced(end, 0, name) : others).join(",") || NO_COLUMNS;
}

/** @param {Page} page */
export function rememberColumns(page) {
  const box = /** @type {HTMLDetailsElement | null} */ (document.getElementById("columns"));
  if (!box) return;
  if (!page.state.get("columns")) page.state.set({ columns: kept() });
  box.addEventListener("change", (event) => {
    const { value, checked } = /** @type {HTMLInputElement} */ (event.target);
    const about = /** @type {NodeListOf<HTMLInputElement>} */ (box.querySelectorAll("[data-kind=about]"));
    const words = new Set([...about].map((box) => box.value));
    const columns = chosen(shownIn(box, page.state.get("columns"), value), value, checked, words);
    page.state.set({ columns }, { push: true });
  });
  page.state.on("columns", keep);
  box.addEventListener("submit", (event) => event.preventDefault());
  closeOutside(box);
}

/** The shown columns before a click: those of the address, or those that are checked without the reader's choice.
 * @param {Element} box @param {string} columns @param {string} clicked */
function shownIn(box, columns, clicked) {
  if (columns && columns !== AUTO_COLUMNS) return columns.split(",").filter((column) => column !== NO_COLUMNS);
  const ordered = /** @type {NodeListOf<HTMLElement>} */ (box.querySelectorAll("[data-column]"));
  if (ordered.length) return [...ordered].map((item) => item.dataset.column ?? "");
  const boxes = /** @type {NodeListOf<HTMLInputElement>} */ (box.querySelectorAll("input[name=columns]"));
  return [...boxes].filter((box) => box.checked !== (box.value === clicked)).map((box) => box.value);
}

/** @param {string} columns */
function keep(columns) {
  try {
    localStorage.setItem(KEPT, columns === AUTO_COLUMNS ? "" : columns);
  } catch {
    // A browser that keeps nothing: the choice is in the address.
  }
}

function kept() {
  try {
    return localStorage.getItem(KEPT) ?? "";
  } catch {
    return "";
  }
}

/** @typedef {{run: string, name: string, group: string, started: number, live: boolean, archived: boolean}} Ticked */

export class Selection {
  /** @type {Ticked[]} */
  runs = [];

  /** @param {State} state @param {() => void} changed called when the address has others */
  constructor(state, changed) {
    this.state = state;
    this.#read();
    state.on("runs", (/** @type {string} */ text) => {
      if (text === this.#text) return;
      this.#read();
      changed();
    });
  }

  #read() {
    const ids = new Set(this.state.get("runs").split(",").filter(Boolean));
    const before = new Map(this.runs.map((run) => [run.run, run]));
    this.runs = [...ids].map((run) => before.get(run) ?? blank(run));
  }

  get #text() {
    return this.runs
      .slice(0, MAX_OVERLAID_RUNS)
      .map(({ run }) => run)
      .join();
  }

  /** @param {string} run */
  find(run) {
    return this.runs.find((other) => other.run === run);
  }

  /** Selects runs, or no longer. @param {string[]} runs @param {boolean} on */
  set(runs, on) {
    const some = new Set(runs);
    const others = this.runs.filter((other) => !some.has(other.run));
    this.runs = on ? [...this.runs, ...runs.filter((run) => !this.find(run)).map(blank)] : others;
    this.state.set({ runs: this.#text });
  }

  /** Unselects runs that no longer exist, and returns whether there were any. @param {Set<string>} there all runs */
  keep(there) {
    const gone = this.runs.filter(({ run }) => !there.has(run)).map(({ run }) => run);
    if (gone.length) this.set(gone, false);
    return gone.length > 0;
  }

  /** Takes what the server says about runs that no row of the list is of. @param {readonly Run[]} runs */
  know(runs) {
    for (const { id, name, started_s: started, state, archived } of runs) {
      const its = this.find(id);
      if (its) Object.assign(its, { name: name || id, started: Number(started), live: state === "live", archived });
    }
  }
}

/** @param {string} run @returns {Ticked} */
function blank(run) {
  return { run, name: run, group: "", started: 0, live: false, archived: false };
}

/** The runs from one to another in the order of the list, both included. @param {string[]} listed @param {string} from
 * @param {string} to */
export function stretch(listed, from, to) {
  const [one, other] = [listed.indexOf(from), listed.indexOf(to)];
  return one < 0 ? [to] : listed.slice(Math.min(one, other), Math.max(one, other) + 1);
}

/** What a view of this address is, without what a chat added to a link. Its columns are its own, even if they are those
 * that differ: else a browser that remembers others would show these. @param {string} search of the address */
export function viewOf(search) {
  const query = new URLSearchParams(
    [...new URLSearchParams(search)].filter(([name]) => VIEW_NAMES.split(" ").includes(name)),
  );
  if (!query.get("columns")) query.set("columns", AUTO_COLUMNS);
  return query.toString();
}

/** The address of a saved view; null if there is none of this name. @param {Element} box @param {string} name */
function queryOf(box, name) {
  const links = /** @type {NodeListOf<HTMLElement>} */ (box.querySelectorAll("[data-view]"));
  const link = [...links].find((other) => other.title === name);
  return link?.getAttribute("href")?.replace(/^.*?\?/, "") ?? null;
}

/** @param {() => void} refresh */
export function startViews(refresh) {
  const box = /** @type {HTMLDetailsElement} */ (byId("views"));
  /** @param {string} what @param {() => Promise<unknown>} ask @param {() => void} [done] called if the server did it */
  const change = async (what, ask, done = () => {}) => {
    if (!(await attempt(`${what} the view failed`, ask))) return;
    done();
    refresh();
  };
  box.addEventListener("submit", (event) => {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.target);
    const field = /** @type {HTMLInputElement} */ (form.elements.namedItem("name"));
    const name = field.value.trim();
    if (!name) return;
    const before = queryOf(box, name);
    const undo = () => change("Restoring", () => send("PUT", "views", { name, query: before }));
    void change(
      "Saving",
      () => send("PUT", "views", { name, query: viewOf(location.search) }),
      () => {
        if (field.value.trim() === name) field.value = "";
        if (before === null) toast(`Saved this view as ${name}.`);
        else toast(`Replaced the view ${name}.`, { undo });
      },
    );
  });
  const forget = (/** @type {string} */ name) => {
    const query = queryOf(box, name); // null if it can't be shown, so that it couldn't be saved again
    const undo = () => change("Restoring", () => send("PUT", "views", { name, query }));
    void change(
      "Deleting",
      () => send("DELETE", "views", undefined, { name }),
      () => toast(`Deleted the view ${name}.`, query === null ? {} : { undo }),
    );
  };
  onClick("[data-do=view-delete]", ({ dataset: { name } }) => forget(name), box);
  closeOutside(box);
}
