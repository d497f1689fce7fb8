// @ts-check
/** The tooltip at the pointer. */
import { h } from "../dom.js";
import { count, number } from "../format.js";
import { cellValue } from "./export.js";
import { labelOf } from "./rows.js";

const AWAY = 14;

export class Tip {
  element = h("div", { class: "tip", hidden: true });

  constructor() {
    document.body.append(this.element);
  }

  /** Beside a point of the window, inside of it. @param {string} text @param {number} x @param {number} y */
  show(text, x, y) {
    const { element } = this;
    element.textContent = text;
    element.hidden = false;
    const { width, height } = element.getBoundingClientRect();
    element.style.left = `${x + AWAY + width > innerWidth ? Math.max(4, x - AWAY - width) : x + AWAY}px`;
    element.style.top = `${Math.max(4, Math.min(innerHeight - height - 4, y + AWAY))}px`;
  }

  hide() {
    this.element.hidden = true;
  }
}

/** What is at a point of a heatmap: the layer, the step, the value. @param {import("./index.js").Heat} heat @param {import("./pointing.js").Point} point */
export function wordsOf(heat, point) {
  const { columns, rows } = heat;
  const row = rows[point.row];
  const i = columns?.find(point.step) ?? -1;
  const value = columns && i >= 0 ? cellValue(columns, i, point.row) : null;
  const said = value === null ? "not captured" : [heat.options.stat ?? "", number(value)].join(" ").trim();
  const many =
    point.sharing > 1
      ? `\nthe worst of ${point.sharing} layers here`
      : row.group > 1
        ? `\nthe worst of the next ${row.group} layers`
        : "";
  return `${labelOf(row)}${row.type ? ` (${row.type})` : ""}\n${columns && i >= 0 ? stepsOf(columns, i, point.step) : `step ${count(point.step)}`} \u00b7 ${said}${many}`;
}

/** @param {import("../columns.js").Columns} columns @param {number} i @param {number} step */
function stepsOf(columns, i, step) {
  const [first, last] = [columns.first(i), columns.last(i)];
  if (step > last)
    return `step ${count(step)}: not captured; nearest earlier value, from ${first === last ? `step ${count(first)}` : `steps ${count(first)} to ${count(last)}`}`;
  if (last > first) return `steps ${count(first)} to ${count(last)}`;
  return first === step
    ? `step ${count(step)}`
    : `step ${count(step)}: not captured; nearest earlier value, from step ${count(first)}`;
}
