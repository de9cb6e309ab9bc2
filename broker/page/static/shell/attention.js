/**
 * Which queues need attention first. What is wrong with a queue is judged by the broker. Pure.
 *
 * @typedef {import("./rows.js").QueueRow} QueueRow
 */
import { badge } from "./parts.js";

/**
 * A number by which queues are sorted: higher needs attention sooner.
 * @param {QueueRow} row
 */
export function urgency({ health, messages, incoming, outgoing }) {
  const level = !health.length ? 0 : isCritical(health[0]) ? 2 : 1;
  return level * 1e15 + messages * 1e3 + incoming + outgoing;
}

/** @param {import("./rows.js").Reason} reason */
export const isCritical = ([state]) => state === "critical";

/** @param {import("./rows.js").Reason} reason */
export const reasonBadge = (reason) => badge(reason[1], isCritical(reason) ? "bad" : "warn", reason[2]);
