/**
 * Which queues need somebody's attention, and why. Pure.
 *
 * @typedef {import("./rows.js").QueueRow} QueueRow
 * @typedef {{level: 1 | 2, text: string, advice: string}} Reason
 */

/** Messages per second from which a queue counts as growing. */
const GROWTH = 0.5;
/** Share of the incoming rate from which it does. */
const SHARE = 0.05;

/**
 * Return the reasons why a queue needs attention, the most serious first; [] if there is none.
 * @param {QueueRow} row
 * @param {boolean} [holdsDeadLetters]
 * @returns {Reason[]}
 */
export function reasons(row, holdsDeadLetters = false) {
  /** @type {Reason[]} */
  const found = [];
  const isGrowing = row.growth > GROWTH && row.growth > SHARE * row.incoming;
  if (holdsDeadLetters) {
    found.push({
      level: 2, text: "dead letters", advice: "Look at why they died under Dead letters, mend the cause, then retry them.",
    });
  } else if (!row.consumers && row.messages_ready) {
    found.push({
      level: 2,
      text: isGrowing ? "growing, no consumer" : "no consumer",
      advice: "Nobody takes these messages: is the worker running, and does it consume from this queue?",
    });
  } else if (isGrowing) {
    found.push({
      level: 1,
      text: "consumers not keeping up",
      advice: "More comes in than is acknowledged: add consumers, or see what they wait for.",
    });
  }
  if (row.consumers && row.messages_unacknowledged && row.messages_ready && !row.outgoing && !row.acked) {
    found.push({
      level: 2,
      text: "consumers stuck",
      advice: "Consumers hold unacknowledged messages and take no more: they have crashed in the middle, or never acknowledge.",
    });
  }
  if (row.state === "flow") {
    found.push({ level: 1, text: "publishers slowed down", advice: "The queue cannot take more at this rate." });
  }
  return found.sort((one, other) => other.level - one.level);
}

/**
 * A number by which queues are sorted: higher needs attention sooner.
 * @param {QueueRow} row
 * @param {Reason[]} found
 */
export function urgency(row, found) {
  const level = found.length ? found[0].level : 0;
  return level * 1e15 + row.messages * 1e3 + row.incoming + row.outgoing;
}
