/** Which queues hold dead letters, so that every page says the same of a queue. */
import { get, path } from "./api.js";
import { keyOf } from "./rows.js";

/**
 * Return the keys of the queues that hold dead letters; none if the user may not know, since pages are of use without.
 * @param {string} vhost one virtual host, or "" for all
 * @param {AbortSignal} signal
 * @returns {Promise<Set<string>>}
 */
export async function holders(vhost, signal) {
  const at = vhost ? `leveret/dead-letters/${path(vhost)}` : "leveret/dead-letters";
  const rows = await get(at, { columns: "vhost,queue,dead_letters" }, signal).catch(() => []);
  return new Set(rows.filter((/** @type {any} */ row) => row.dead_letters).map((/** @type {any} */ row) => keyOf(row.vhost, row.queue)));
}
