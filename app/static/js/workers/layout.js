/** A web worker that places the boxes of a model, so that the page stays quick meanwhile. */
import { arrange } from "../model/arrange.js";

const worker = /** @type {any} */ (globalThis);
worker.importScripts(new URL("../../vendor/dagre.min.js", location.href).href);

addEventListener("message", ({ data: { id, wanted } }) => {
  try {
    worker.postMessage({ id, arranged: arrange(wanted, worker.dagre) });
  } catch (error) {
    worker.postMessage({ id, problem: String(error) });
  }
});
