// @ts-check
/** What the find box matches among the boxes. Pure. */

/** The boxes of modules that match, in the order of execution. @param {import("./tree.js").Tree} tree
 * @param {(module: string) => boolean} fits @returns {number[]} */
export function matchesOf(tree, fits) {
  return tree.fromInside.filter((number) => tree.boxes[number].kind !== "repeat" && fits(tree.boxes[number].module));
}

/** The boxes that stay bright: matching boxes, and the boxes around them. @param {import("./tree.js").Tree} tree
 * @param {readonly number[]} matches */
export function brightOf(tree, matches) {
  return new Set(matches.flatMap((number) => [number, ...tree.around(number)]));
}
