// @ts-check
/** The modules that are picked and pinned, as the address names them. Pure. */
import { ROOT } from "../vocabulary.js";

/** The module of the address if none is picked: "" is the root, and no module has this path. */
export const NONE = ".";

/** The pinned modules. @param {string} text @returns {string[]} */
export function pinsOf(text) {
  return text
    .split(",")
    .filter(Boolean)
    .map((each) => (each === ROOT ? "" : each));
}

/** The pinned modules with another one, or without it. @param {string} text @param {string} module */
export function withPin(text, module) {
  const pins = pinsOf(text);
  const turned = pins.includes(module) ? pins.filter((each) => each !== module) : [...pins, module];
  return turned.map((each) => each || ROOT).join(",");
}
