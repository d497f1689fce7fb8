// @ts-check
/** What a page needs only after a click: loaded once everything else is there, or at the click if that is earlier. */
import { toast } from "./toast.js";

const QUIET_MS = 1000; // after the page has loaded

/** Returns a function that resolves to the module, or to null if it can't be loaded, which it tells the reader.
 * @template T @param {() => Promise<T>} load @returns {() => Promise<T | null>} */
export function late(load) {
  /** @type {Promise<T> | null} */
  let loading = null;
  const get = () => {
    loading ??= load().catch((error) => {
      loading = null; // another click tries again
      throw error;
    });
    return loading;
  };
  addEventListener("load", () => setTimeout(() => get().catch(() => {}), QUIET_MS), { once: true });
  return () =>
    get().catch(() => {
      toast("A part of the page could not be loaded. Reload the page.", { kind: "error" });
      return null;
    });
}
