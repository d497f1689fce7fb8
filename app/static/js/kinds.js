// @ts-check
/** The words for kinds of tensors. In the run of several ranks, some gradients are those of each rank alone. */
import { KIND_WORDS, ROOT } from "./vocabulary.js";

/** Whether values of a kind are of each rank's own loss, before the all-reduce. @param {string} kind */
export function isLocal(kind) {
  const local = globalThis.document?.body?.dataset.local ?? "";
  return local.split(" ").includes(kind) && kind !== "";
}

/** Whether a kind is about the parameters of a module, whichever of its calls. @param {string} kind */
export function ofParameters(kind) {
  return kind.startsWith("param") || kind === "update";
}

/** What a tensor is within its module, as `stream` in templates.
 * @param {{module: string, kind: string, label: string}} tap */
export function streamWords({ module, kind, label }) {
  return kindWords(kind) + label.slice(`${module || ROOT} ${kind}`.length);
}

/** The same with its module, as `Tap.words` of the server.
 * @param {{module: string, kind: string, label: string}} tap */
export function tapWords(tap) {
  return `${tap.module || ROOT} ${streamWords(tap)}`;
}

/** @param {string} kind */
export function kindWords(kind) {
  return `${KIND_WORDS[kind] ?? kind}${isLocal(kind) ? " (local)" : ""}`;
}
