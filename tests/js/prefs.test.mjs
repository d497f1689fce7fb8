import assert from "node:assert/strict";
import { test } from "node:test";
import { PREFERENCES, prefs, readPrefs } from "../../app/static/js/prefs.js";

test("each preference has its first option until another is chosen, and after a reset", () => {
  const told = [];
  const end = prefs.on("change", (name) => told.push(name));
  assert.equal(prefs.get("colors"), "viridis");
  assert.equal(prefs.chosen("colors"), undefined);
  prefs.set("colors", "cividis");
  assert.equal(prefs.get("colors"), "cividis");
  prefs.set("colors", "cividis");
  prefs.reset();
  end();
  assert.equal(prefs.get("colors"), PREFERENCES.colors[0]);
  assert.deepEqual(told, ["colors", "colors"]);
});

test("invalid values are left out", () => {
  assert.deepEqual(readPrefs({ rate: "1000", colors: "cividis", other: "x" }), { colors: "cividis" });
  assert.deepEqual(readPrefs(null), {});
});
