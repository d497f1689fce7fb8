// @ts-check
/** The calls that feed a call, and where non-finite values begin. Pure. */

/** @typedef {import("./tree.js").Tree} Tree */

/** The sources of each box. For a box with parts, these are the sources of its outputs. @param {Tree} tree @returns {number[][]} */
export function sourcesOf(tree) {
  return tree.boxes.map((box) => {
    const edges = box.parts.length ? box.edges : tree.edgesOf(box.inside ?? -1);
    const target = box.parts.length ? null : box.number;
    const found = edges.filter((edge) => edge.target === target).flatMap(({ carries }) => carries);
    return [...new Set(found)].filter((source) => source !== box.number);
  });
}

/** The other way round: for each box, those that got its output. @param {number[][]} sources @returns {number[][]} */
export function reversed(sources) {
  const found = /** @type {number[][]} */ (sources.map(() => []));
  for (const [box, given] of sources.entries()) for (const source of given) found[source].push(box);
  return found;
}

/** The bad boxes that got nothing bad. @param {number[][]} sources @param {(box: number) => boolean} isBad
 * @returns {number[]} */
export function originsOf(sources, isBad) {
  return sources.flatMap((given, box) => (isBad(box) && !given.some(isBad) ? [box] : []));
}
