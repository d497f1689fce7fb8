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

test("exported preferences can be imported", () => {
  prefs.set("rate", "1");
  prefs.set("density", "compact");
  const { text } = prefs;
  prefs.reset();
  assert.equal(prefs.take(text), 2);
  assert.deepEqual([prefs.get("rate"), prefs.get("density")], ["1", "compact"]);
  prefs.reset();
});

test("invalid values are left out, and a foreign file is refused and changes nothing", () => {
  assert.deepEqual(readPrefs({ rate: "1000", colors: "cividis", other: "x" }), { colors: "cividis" });
  assert.deepEqual(readPrefs(null), {});
  prefs.set("rate", "4");
  assert.throws(() => prefs.take("{"), /not a JSON file/);
  assert.throws(() => prefs.take('{"rate": "1"}'), /no hookcore settings/);
  assert.throws(() => prefs.take("null"), /no hookcore settings/);
  assert.equal(prefs.get("rate"), "4");
  prefs.reset();
});
