// @ts-check
/** What a chart says if its values could not be loaded. Pure. */

/** Whether a request that failed is worth repeating: the server didn't answer, or failed itself.
 * @param {unknown} error */
export function isPassing(error) {
  const { status = 0 } = /** @type {{status?: number}} */ (error ?? {});
  return status === 0 || status >= 500;
}

/** Why a chart is empty, if its `Refresh` retries what is worth retrying. @param {unknown} error */
export function failedWords(error) {
  const { status, message } = /** @type {{status?: number, message: string}} */ (error);
  if (status === 0) return `${message}. Values appear when it is back.`;
  return isPassing(error) ? `${message}. The chart will retry.` : message;
}
