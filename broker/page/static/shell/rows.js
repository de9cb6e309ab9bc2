/**
 * Rows of a topic with many, as of the last event, and the rates between events. Pure.
 *
 * @typedef {{
 *   vhost: string, name: string, type: string, features: string[], state: string,
 *   policy: string | null, consumers: number, capacity: number, messages_ready: number, messages_unacknowledged: number,
 *   publish: number, deliver_get: number, redeliver: number, ack: number,
 *   confirm_mode: string, health: Reason[], key: string, messages: number, incoming: number, outgoing: number, acked: number, growth: number,
 * }} QueueRow
 * @typedef {[state: "critical" | "warning", reason: string, advice: string]} Reason Something wrong with a queue
 * @typedef {{columns?: string[], rows: any[][], gone?: string[][], at?: number}} RowsEvent
 */

/** Seconds over which rates are smoothed. */
const SMOOTH = 4;
const LEAST = 0.04;

/**
 * The key of a queue: of no other, whatever is in its name.
 * @param {string} vhost
 * @param {string} name
 */
export function keyOf(vhost, name) {
  return `${vhost.length}:${vhost}${name}`;
}

/** All rows, by key. */
export class Rows {
  constructor() {
    /** @type {Map<string, QueueRow>} */
    this.byKey = new Map();
    /** @type {Set<QueueRow>} */
    this.moving = new Set();
    /** @type {Record<string, number>} The place of each column in a row of an event. */
    this.columns = {};
    /** Milliseconds of the last event; 0 before the first. */
    this.at = 0;
    /** @type {any[][]} */
    this.begun = [];
    this.isWhole = false;
  }

  /**
   * Take an event; returns whether the rows are complete now.
   * @param {RowsEvent} event
   * @returns {boolean}
   */
  take(event) {
    if (event.columns) {
      this.columns = Object.fromEntries(event.columns.map((name, at) => [name, at]));
      this.begun = [];
      this.isWhole = true;
    }
    for (const row of event.rows) this.begun.push(row);
    if (event.at === undefined) return false;
    const seconds = this.at ? Math.max(0.2, (event.at - this.at) / 1000) : 0;
    const before = this.byKey;
    if (this.isWhole) this.byKey = new Map();
    /** @type {Set<QueueRow>} */
    const moving = new Set();
    for (const values of this.begun) {
      const row = rowOf(values, this.columns);
      const known = before.get(row.key);
      if (known && seconds) {
        settle(row, known, seconds, row.publish - known.publish, row.deliver_get - known.deliver_get, row.ack - known.ack, row.messages - known.messages);
      }
      this.byKey.set(row.key, row);
      if (row.incoming || row.outgoing || row.acked || row.growth) moving.add(row);
    }
    for (const [vhost, name] of event.gone ?? []) this.byKey.delete(keyOf(vhost, name));
    for (const row of this.moving) {
      if (this.byKey.get(row.key) !== row) continue;
      const still = { ...row };
      settle(still, row, seconds, 0, 0, 0, 0);
      this.byKey.set(still.key, still);
      if (still.incoming || still.outgoing || still.acked || still.growth) moving.add(still);
    }
    this.moving = moving;
    this.at = event.at;
    this.begun = [];
    this.isWhole = false;
    return true;
  }
}

/**
 * A row of an event. All are made here in one way, of which ten thousand take some milliseconds.
 * @param {any[]} values
 * @param {Record<string, number>} at
 * @returns {QueueRow}
 */
function rowOf(values, at) {
  const [vhost, name, ready, unacked] = [values[at.vhost], values[at.name], values[at.messages_ready], values[at.messages_unacknowledged]];
  return {
    vhost, name, type: values[at.type], features: values[at.features],
    state: values[at.state], policy: values[at.policy], consumers: values[at.consumers], capacity: values[at.capacity],
    messages_ready: ready, messages_unacknowledged: unacked, publish: values[at.publish], deliver_get: values[at.deliver_get],
    redeliver: values[at.redeliver], ack: values[at.ack],
    confirm_mode: values[at.confirm_mode], health: values[at.health], key: keyOf(vhost, name), messages: ready + unacked, incoming: 0, outgoing: 0, acked: 0, growth: 0,
  };
}

/**
 * Set the rates of a row from those before and what has come since.
 * @param {QueueRow} row
 * @param {QueueRow} before
 * @param {number} seconds
 * @param {number} published
 * @param {number} delivered
 * @param {number} acked
 * @param {number} grown
 */
function settle(row, before, seconds, published, delivered, acked, grown) {
  row.incoming = smooth(before.incoming, published, seconds);
  row.outgoing = smooth(before.outgoing, delivered, seconds);
  row.acked = smooth(before.acked, acked, seconds);
  row.growth = smooth(before.growth, grown, seconds);
}

/**
 * Return a rate of which new values count more than old ones; a counter that went back began anew.
 * @param {number} before
 * @param {number} change
 * @param {number} seconds
 */
export function smooth(before, change, seconds) {
  const share = 1 - Math.exp(-seconds / SMOOTH);
  const value = before + (change / seconds - before) * share;
  return Math.abs(value) < LEAST ? 0 : value;
}
