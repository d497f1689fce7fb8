// @ts-check
/** The same question in Python: a call of hookcore.Client. Pure. */

/** Our parameters by the names of the client's. @type {Record<string, string>} */
const NAMES = { from: "first", to: "last", name: "names" };

/** The method for a path, and which parameters come without their name.
 * @type {Record<string, {method: string, answer: string, bare: string[], drop?: string[]}>} */
const CALLS = {
  series: { method: "series", answer: "series", bare: ["tap"] },
  many_series: { method: "many_series", answer: "many", bare: ["match"], drop: ["limit", "after"] },
  heatmap: { method: "heatmap", answer: "heatmap", bare: [], drop: ["counts"] },
  histograms: { method: "histograms", answer: "histograms", bare: ["tap"] },
  many_histograms: { method: "many_histograms", answer: "histograms", bare: ["tap"] },
  latest: { method: "latest", answer: "latest", bare: [] },
  scalars: { method: "scalars", answer: "scalars", bare: ["name"], drop: ["limit", "after"] },
  events: { method: "events", answer: "events", bare: [], drop: ["limit"] },
  taps: { method: "taps", answer: "taps", bare: [], drop: ["limit", "after"] },
};

/** @typedef {{path: string, query: Record<string, any>}} Query of the interface: a path below api/v1 */

/** @param {any} value @returns {string} */
function literal(value) {
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "number") return String(value);
  if (typeof value === "boolean") return value ? "True" : "False";
  return JSON.stringify(String(value));
}

/** @param {Query} asked */
function callOf({ path, query }) {
  const taps = [query.tap ?? []].flat();
  const isMany = (path === "series" && !taps.length) || (path === "histograms" && taps.length > 1);
  const name = isMany ? `many_${path}` : path;
  const { method, answer, bare, drop = [] } = CALLS[name];
  const given = Object.entries(query).filter(
    ([key, value]) => value !== null && value !== undefined && value !== "" && !drop.includes(key),
  );
  /** @type {[string, string[]][]} */
  const lists = name.endsWith("series")
    ? [
        ["tap", taps],
        ["stat", String(query.stat ?? "").split(",")],
      ]
    : [];
  const loops = lists.filter(([, each]) => each.length > 1);
  const value = (/** @type {string} */ key, /** @type {any} */ said) =>
    loops.some(([each]) => each === key) ? key : literal(Array.isArray(said) && said.length === 1 ? said[0] : said);
  const first = given.filter(([key]) => bare.includes(key)).map(([key, said]) => value(key, said));
  const named = given
    .filter(([key]) => !bare.includes(key))
    .map(([key, said]) => `${NAMES[key] ?? key}=${value(key, said)}`);
  const call = `client.${method}(${[...first, ...named].join(", ")})`;
  if (!loops.length) return `${answer} = ${call}`;
  const keys = loops.length > 1 ? "(tap, stat)" : loops[0][0];
  const each = loops.map(([key, values]) => `    for ${key} in ${literal(values)}\n`).join("");
  return `${answer} = {\n    ${keys}: ${call}\n${each}}`;
}

/** Whether there is a call for it. @param {Query[]} asked */
export function hasPython(asked) {
  return asked.length > 0 && asked.every(({ path }) => path in CALLS);
}

/** A script that asks the same. @param {Query[]} asked @param {string} url of the server */
export function pythonOf(asked, url) {
  return `import hookcore\n\nclient = hookcore.Client(${literal(url)})\n${asked.map(callOf).join("\n")}\n`;
}
