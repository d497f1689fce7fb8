import assert from "node:assert/strict";
import { test } from "node:test";
import { MAX_OVERLAID_RUNS } from "../../app/static/js/limits.js";
import { chosen, restore, Selection, stretch, tag, tagsOf, viewOf } from "../../app/static/js/runs/list.js";
import { Emitter } from "../../app/static/js/state.js";

test("a restored run is no longer hidden in the list", async (context) => {
  const asked = [];
  context.mock.method(
    globalThis,
    "fetch",
    async (url, { method }) => (asked.push([method, url]), new Response(null, { status: 204 })),
  );
  const gone = new Set(["one", "two"]);
  let refreshed = false;
  await restore("one", gone, () => (refreshed = true));
  assert.deepEqual([...gone], ["two"]);
  assert.deepEqual(asked, [["POST", "api/v1/removed-runs/one/restore"]]);
  assert.ok(refreshed);
});

test("tags are separated by commas, and each counts once", () => {
  assert.deepEqual(tagsOf(" best, my sweep,,best "), ["best", "my sweep"]);
  assert.deepEqual(tagsOf(" "), []);
});

test("a newly chosen column comes last, and without columns nothing is chosen", () => {
  assert.equal(chosen(["lr", "loss"], "act", true), "lr,loss,act");
  assert.equal(chosen(["lr", "loss"], "lr", false), "loss");
  assert.equal(chosen(["lr"], "lr", false), "-");
});

test("tags are added to those of each run", async (context) => {
  globalThis.document = { getElementById: () => null };
  context.after(() => delete globalThis.document);
  const runs = { one: ["old"], two: ["sweep"] };
  context.mock.method(globalThis, "fetch", async (url, how = {}) => {
    const run = new URL(url, "http://x/").pathname.split("/").at(-1);
    if (how.method === "PATCH") runs[run] = JSON.parse(how.body).tags;
    return Response.json({ tags: runs[run] });
  });
  let refreshed = 0;
  await tag(
    [
      { run: "one", name: "One" },
      { run: "two", name: "Two" },
    ],
    ["sweep", "best"],
    () => (refreshed += 1),
  );
  assert.deepEqual(runs, { one: ["old", "sweep", "best"], two: ["sweep", "best"] });
  assert.equal(refreshed, 1);
});

test("a new column comes after the others, but before words at the end", () => {
  const words = new Set(["tags", "notes"]);
  assert.equal(chosen(["lr", "tags"], "loss", true, words), "lr,loss,tags");
  assert.equal(chosen(["tags", "lr"], "loss", true, words), "tags,lr,loss");
  assert.equal(chosen(["lr", "tags"], "notes", true, words), "lr,tags,notes");
  assert.equal(chosen(["tags"], "tags", false, words), "-");
});

test("a view has its own columns, even if they show the settings that differ", () => {
  assert.equal(viewOf("?f=lr%3E1&sort=loss"), "f=lr%3E1&sort=loss&columns=*");
  assert.equal(viewOf("?columns=lr"), "columns=lr");
});

test("a view leaves out what the page doesn't know, and the held step", () => {
  assert.equal(viewOf("?columns=lr&fbclid=x&step=3&steps=all&y=log"), "columns=lr&steps=all&y=log");
});

function selected(runs) {
  const values = { runs };
  const state = Object.assign(new Emitter(), {
    get: (name) => values[name],
    set: (changes) => {
      Object.assign(values, changes);
      for (const [name, value] of Object.entries(changes)) state.emit(name, value);
    },
  });
  const told = [];
  const selection = new Selection(state, () => told.push(selection.runs.map(({ run }) => run)));
  return { selection, state, told, ids: () => selection.runs.map(({ run }) => run) };
}

test("selected runs are written to the URL, up to the limit of the charts, and read from it", () => {
  const { selection, state, told, ids } = selected("b,a");
  assert.deepEqual(ids(), ["b", "a"]);
  selection.set(["c", "a"], true);
  assert.equal(state.get("runs"), "b,a,c");
  selection.set(["b"], false);
  assert.deepEqual(ids(), ["a", "c"]);
  assert.deepEqual(told, [], "a selection does not announce its own changes to itself");
  state.set({ runs: "c" });
  assert.deepEqual(told, [["c"]]);
  const many = Array.from({ length: MAX_OVERLAID_RUNS + 6 }, (_, place) => `r${place}`);
  selection.set(many, true);
  assert.equal(ids().length, MAX_OVERLAID_RUNS + 7);
  assert.equal(state.get("runs").split(",").length, MAX_OVERLAID_RUNS);
});

test("a selected run that the server no longer has is dropped, and the others get their names", () => {
  const { selection, state, ids } = selected("a,gone");
  selection.know([{ id: "a", name: "first", started_s: 5, state: "live", archived: false }]);
  assert.deepEqual(selection.find("a"), {
    run: "a",
    name: "first",
    group: "",
    started: 5,
    live: true,
    archived: false,
  });
  assert.ok(selection.keep(new Set(["a", "b"])));
  assert.deepEqual(ids(), ["a"]);
  assert.equal(state.get("runs"), "a");
  assert.ok(!selection.keep(new Set(["a", "b"])));
});

test("a range selection goes from the last selected run to this one, in either direction", () => {
  assert.deepEqual(stretch(["a", "b", "c", "d"], "b", "d"), ["b", "c", "d"]);
  assert.deepEqual(stretch(["a", "b", "c", "d"], "c", "a"), ["a", "b", "c"]);
  assert.deepEqual(stretch(["a", "b"], "gone", "b"), ["b"]);
});
