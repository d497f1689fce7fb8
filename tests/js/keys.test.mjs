import assert from "node:assert/strict";
import { test } from "node:test";
import { Keys, keyOf } from "../../app/static/js/keys.js";
import { prefs } from "../../app/static/js/prefs.js";

/** A key press on an element inside of elements with these selectors. */
function press(key, { within = [], timeStamp = 0, ...modifiers } = {}) {
  const target = {
    closest: (what) => (within.some((each) => what.split(", ").includes(each) || what.startsWith(each)) ? {} : null),
  };
  return {
    key,
    target,
    timeStamp,
    prevented: false,
    preventDefault() {
      this.prevented = true;
    },
    ...modifiers,
  };
}

function make() {
  const heard = [];
  const keys = new Keys(null);
  for (const key of ["g f", "f", "/", "Ctrl+k", "Space", "Shift+ArrowLeft", "Escape", "?"])
    keys.add(key, `does ${key}`, () => heard.push(key), { group: key === "g f" ? "Go to" : "Everywhere" });
  return { keys, heard };
}

test("a key has one name, whatever modifiers are pressed", () => {
  assert.equal(keyOf({ key: " " }), "Space");
  assert.equal(keyOf({ key: "?", shiftKey: true }), "?");
  assert.equal(keyOf({ key: "ArrowLeft", shiftKey: true }), "Shift+ArrowLeft");
  assert.equal(keyOf({ key: "K", ctrlKey: true }), "Ctrl+k");
  assert.equal(keyOf({ key: "k", metaKey: true }), "Ctrl+k");
});

test("two keys in quick succession are one command", () => {
  const { keys, heard } = make();
  keys.hear(press("g", { timeStamp: 100 }));
  keys.hear(press("f", { timeStamp: 900 }));
  keys.hear(press("g", { timeStamp: 1000 }));
  keys.hear(press("f", { timeStamp: 9000 }));
  assert.deepEqual(heard, ["g f", "f"]);
});

test("keys are ignored while the user types, except Escape and Ctrl+K", () => {
  const { keys, heard } = make();
  const typing = { within: ["textarea"] };
  for (const key of ["f", "/", "?", "Escape"]) keys.hear(press(key, typing));
  keys.hear(press("k", { ...typing, ctrlKey: true }));
  assert.deepEqual(heard, ["Escape", "Ctrl+k"]);
});

test("the space bar presses the focused button, and arrow keys go to controls that use them", () => {
  const { keys, heard } = make();
  keys.hear(press(" ", { within: ["button"] }));
  keys.hear(press("ArrowLeft", { shiftKey: true, within: ["[role=application]"] }));
  assert.deepEqual(heard, []);
  keys.hear(press(" "));
  keys.hear(press("ArrowLeft", { shiftKey: true }));
  assert.deepEqual(heard, ["Space", "Shift+ArrowLeft"]);
});

test("handled events and unused keys are left to the browser", () => {
  const { keys, heard } = make();
  keys.hear({ ...press("f"), defaultPrevented: true });
  const other = press("x");
  keys.hear(other);
  assert.deepEqual(heard, []);
  assert.equal(other.prevented, false);
});

test("single-letter keys can be turned off", () => {
  const { keys, heard } = make();
  prefs.set("keys", "off");
  keys.hear(press("f"));
  keys.hear(press("k", { ctrlKey: true }));
  prefs.reset();
  assert.deepEqual(heard, ["Ctrl+k"]);
});

test("the list has every key in its group, and keys with the same action in one line", () => {
  const { keys } = make();
  keys.add("j, ArrowDown", "next", () => {});
  keys.add("f", "something else", () => {});
  assert.deepEqual(keys.groups.get("This page"), [
    { keys: ["j", "ArrowDown"], words: "next" },
    { keys: ["f"], words: "something else" },
  ]);
  assert.deepEqual(keys.groups.get("Go to"), [{ keys: ["g f"], words: "does g f" }]);
});
