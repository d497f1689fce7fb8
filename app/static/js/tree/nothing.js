// @ts-check
/** What is said in place of modules, as in the template nothing.html. Pure. */

/** @param {{runState: string}} page */
export function noModules({ runState }) {
  return runState === "live"
    ? "No modules yet. They appear with the first step of a training that watches a model."
    : "This run reported no modules.";
}
