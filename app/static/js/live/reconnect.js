// @ts-check
/** How the page reaches its server: the socket's address, how long to wait, and why a handshake failed. */

const FIRST_WAIT_MS = 500;
const MAX_WAIT_MS = 8000;
const SPREAD = 0.25; // so that the tabs of a server that comes back do not come all at once

/** How long to wait before the next attempt. Pure.
 * @param {number} failed attempts so far @param {number} chance 0 to 1 */
export function waitMs(failed, chance) {
  return Math.min(MAX_WAIT_MS, FIRST_WAIT_MS * 2 ** failed) * (1 + SPREAD * (2 * chance - 1));
}

export function openSocket() {
  const address = new URL("api/v1/socket", document.baseURI);
  address.protocol = address.protocol.replace("http", "ws");
  return new WebSocket(address);
}

/** The status of a plain request: 401 if the server wants a token, 0 if it doesn't answer. */
export async function askStatus() {
  try {
    return (await fetch("api/v1/runs?limit=1", { headers: { Accept: "application/json" } })).status;
  } catch {
    return 0;
  }
}
