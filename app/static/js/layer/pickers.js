// @ts-check
/** Which tensor of the module is looked at: the choices there are. A choice of one is not shown. */
import { byId, h } from "../dom.js";
import { tensorOf } from "./plan.js";

/** @typedef {import("./plan.js").Tap} Tap */

/** @type {Record<string, (tap: Tap) => string>} */
const VALUES = { index: (tap) => tap.index, call: (tap) => String(tap.call), phase: (tap) => tap.phase };
/** @type {Record<string, (value: string) => string>} */
export const WORDS = {
  index: (value) => value || "single tensor",
  call: (value) => value,
  phase: (value) => ({ train: "training", eval: "evaluation" })[value] ?? value,
};

/** @param {import("../page.js").Page} page @param {() => Tap[]} taps @returns {() => void} shows what there is now */
export function startPickers(page, taps) {
  for (const name of Object.keys(VALUES))
    select(name).addEventListener("change", () => page.state.set({ [name]: select(name).value }));
  return () => {
    const { kind, index, call, phase } = page.state.values;
    const choice = { kind, index, call, phase };
    const some = kind ? taps().filter((tap) => tap.kind === kind) : taps().filter((tap) => tap.kind === "output");
    const now = kind ? tensorOf(taps(), choice) : null;
    for (const name of Object.keys(VALUES))
      fill(name, some, now ? VALUES[name](now) : page.state.get(name), !kind && name === "index");
  };
}

/** @param {string} name @returns {HTMLSelectElement} */
function select(name) {
  return byId("layer-tools").elements[name];
}

/** @param {string} name @param {Tap[]} taps @param {string} value @param {boolean} never */
function fill(name, taps, value, never) {
  const values = [...new Set(taps.map(VALUES[name]))];
  const picker = select(name);
  if ([...picker.options].map((option) => option.value).join("\n") !== values.join("\n"))
    picker.replaceChildren(...values.map((each) => h("option", { value: each }, WORDS[name](each))));
  picker.value = values.includes(value) ? value : (values[0] ?? "");
  byId(`${name}-label`).hidden = never || values.length < 2;
}
