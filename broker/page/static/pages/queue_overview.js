/** The first part of the page of a queue: figures, lines over time, states of messages, consumers, settings. */
import { get, path } from "../shell/api.js";
import { isCritical } from "../shell/attention.js";
import { Chart } from "../shell/chart.js";
import { h, refresh, setText } from "../shell/elements.js";
import { count, counted, duration, perSecond, rate, short, size, utc } from "../shell/format.js";
import { live } from "../shell/live.js";
import { badge, facts, figure, listed, panel } from "../shell/parts.js";
import { poll } from "../shell/poll.js";
import { added, history } from "../shell/series.js";
import { keyOf } from "../shell/rows.js";
import { connectionLink } from "./connections.js";

const SECONDS = 600;
const RATES = ["publish", "deliver_get", "ack"];
const HELD = 200;
const UNITS = /** @type {[number, string][]} */ ([[1000, "second"], [60_000, "minute"], [3_600_000, "hour"], [86_400_000, "day"], [2_592_000_000, "30 days"], [31_557_600_000, "year"]]);

/**
 * @param {string} vhost
 * @param {string} name
 * @param {any} first
 * @param {AbortSignal} signal
 */
export function queueOverview(vhost, name, first, signal) {
  const figures = { ready: figure("Ready"), unacked: figure("Unacked"), consumers: figure("Consumers"), incoming: figure("In /s"), outgoing: figure("Out /s"), acked: figure("Ack /s") };
  const moving = new Chart("Messages per second", [{ name: "Published", colour: 1, show: perSecond }, { name: "Delivered", colour: 2, show: perSecond }, { name: "Acknowledged", colour: 3, show: perSecond }]);
  const waiting = new Chart("Messages", [{ name: "Ready", colour: 3, show: short }, { name: "Unacked", colour: 2, show: short }]);
  const advice = h("div", { class: "stack" });
  const states = h("div");
  const consumers = h("div");
  const settings = h("div");
  /** @type {import("../shell/series.js").Sample[]} */
  let rates = [];
  /** @type {import("../shell/series.js").Sample[]} */
  let lengths = [];
  const draw = () => {
    moving.set(rates, SECONDS);
    waiting.set(lengths, SECONDS);
  };
  const update = () => {
    const row = live.queues.byKey.get(keyOf(vhost, name));
    if (!row) return;
    setText(figures.ready.value, short(row.messages_ready));
    setText(figures.unacked.value, short(row.messages_unacknowledged));
    setText(figures.consumers.value, count(row.consumers));
    setText(figures.incoming.value, rate(row.incoming));
    setText(figures.outgoing.value, rate(row.outgoing));
    setText(figures.acked.value, rate(row.acked));
    refresh(advice, row.health.map((each) => h("p", { class: isCritical(each) ? "error" : "note" }, h("b", null, `${each[1]}: `), each[2])));
    if (live.queues.at - (rates.at(-1)?.at ?? 0) < 900) return;
    added(rates, { at: live.queues.at, values: [row.incoming, row.outgoing, row.acked] }, SECONDS);
    added(lengths, { at: live.queues.at, values: [row.messages_ready, row.messages_unacknowledged] }, SECONDS);
    draw();
  };
  const place = h(
    "div", { class: "stack" }, advice, h("div", { class: "figures" }, Object.values(figures).map((each) => each.element)),
    h("div", { class: "grid" }, panel("Messages", waiting.element), panel("Messages per second", moving.element)),
    h("div", { class: "grid" }, panel("Where ready messages are", states), panel("Settings in effect", settings)),
    panel("Consumers", consumers, [], true),
  );
  const show = (/** @type {[any, any, any]} */ [found, explained, dues]) => {
    refresh(states, h("div", { class: "stack" }, stateBar(found), calendar(dues)));
    refresh(consumers, consumerTable(found.consumer_details ?? [], explained?.holders ?? []));
    if (explained) refresh(settings, settingsOf(explained, found));
  };
  const explain = (/** @type {AbortSignal} */ aborted) => get(`leveret/explain/queue/${path(vhost, name)}`, {}, aborted);
  const dues = async (/** @type {any} */ found, /** @type {AbortSignal} */ aborted) => {
    const asked = { state: "held", count: HELD };
    const held = found.messages_delayed ? await get(`leveret/queues/${path(vhost, name)}/messages`, asked, aborted).catch(() => null) : null;
    return (held?.messages ?? []).map((/** @type {any} */ each) => each.due);
  };
  show([first, null, []]);
  live.addEventListener("queues", update, { signal });
  update();
  poll({ read: async (aborted) => {
    const [found, explained] = await Promise.all([get(`queues/${path(vhost, name)}`, {}, aborted), explain(aborted)]);
    return /** @type {[any, any, any]} */ ([found, explained, await dues(found, aborted)]);
  }, show, place, signal });
  begin();
  return place;

  async function begin() {
    const asked = { lengths_age: SECONDS, lengths_incr: 5, msg_rates_age: SECONDS, msg_rates_incr: 5 };
    const past = await get(`queues/${path(vhost, name)}`, asked, signal).catch(() => null);
    if (!past) return;
    rates = history(past.message_stats, RATES, true);
    lengths = history(past, ["messages_ready", "messages_unacknowledged"], false);
    draw();
  }
}

/**
 * The states of ready messages as a bar with its numbers.
 * @param {any} found
 */
function stateBar(found) {
  const status = found.backing_queue_status;
  const parts = /** @type {[string, number, 1 | 2 | 3 | 4, string][]} */ (status
    ? [["alpha", status.q1 + status.q4, 1, "in memory"], ["beta and gamma", status.q2 + status.q3, 2, "position in memory, body on disk"], ["delta", status.delta[2], 3, "on disk"]]
    : [["ready", found.messages_ready, 1, found.type === "stream" ? "of a stream" : "of a quorum queue"]]);
  const total = parts.reduce((sum, [, number]) => sum + number, 0);
  const bar = h("div", { class: "bar", role: "img", "aria-label": parts.map(([state, number]) => `${state}: ${number}`).join(", ") }, parts.filter(([, number]) => number).map(([, number, colour]) => {
    const part = h("span", { class: `c${colour}` });
    part.style.flex = String(number / total);
    return part;
  }));
  return h("div", { class: "stack" }, bar, h("div", { class: "legend" }, parts.map(([state, number, colour, meaning]) => h("span", { class: `key c${colour}` }, h("span", null, h("b", null, short(number)), ` ${state}, ${meaning}`)))),
    facts([...held(found), ...ids(found), ["Bodies and properties", found.messages && !found.message_bytes ? "not counted without a data directory" : size(found.message_bytes)], ["… of ready and of unacknowledged ones", found.message_bytes ? `${size(found.message_bytes_ready)} and ${size(found.message_bytes_unacknowledged)}` : null], ["… of which in memory", found.message_bytes ? size(found.message_bytes_ram) : null], ["Persistent messages", count(found.messages_persistent)], ["Read back from disk, per delivered message", (found.disk_reads_per_delivered ?? 0).toFixed(2)], ["Memory of the queue, about", size(found.memory)]]));
}

/**
 * When the next held messages are due, as a strip of equal parts of the time until the last of them.
 * @param {number[]} dues
 */
function calendar(dues) {
  if (!dues.length) return null;
  const first = Math.min(...dues), last = Math.max(...dues);
  const [step, unit] = UNITS.find(([each]) => last - first < 30 * each) ?? UNITS[UNITS.length - 1];
  const numbers = new Array(Math.min(60, Math.floor(last / step) - Math.floor(first / step) + 1)).fill(0);
  for (const due of dues) numbers[Math.min(numbers.length - 1, Math.floor(due / step) - Math.floor(first / step))] += 1;
  const most = Math.max(...numbers), text = `The next ${count(dues.length)} held messages by the ${unit} in which they are due`;
  return h("div", { class: "stack" }, h("div", { class: "bar", role: "img", "aria-label": text }, numbers.map((number, at) => {
    const part = h("span", { class: "c2", title: `${utc((Math.floor(first / step) + at) * step)}: ${number}` });
    part.style.flex = "1";
    part.style.opacity = String(number && 0.25 + 0.75 * number / most);
    return part;
  })), h("span", { class: "key c2" }, `${text}, from ${utc(first)} to ${utc(last)}`));
}

/**
 * @param {any} found
 * @returns {[string, string][]}
 */
function held({ messages_delayed: number, next_due: due }) {
  return number ? [["Held until their time, or a retry", `${count(number)}${due ? `, the next until ${utc(due)}` : ""}`]] : [];
}

/**
 * @param {any} found
 * @returns {[string, string][]}
 */
function ids({ ids_known: known, messages_repeated: repeated }) {
  return known === undefined ? [] : [["Ids known, to take each message once", `${count(known)}, ${count(repeated)} repeats dropped`]];
}

/**
 * @param {any[]} rows
 * @param {any[]} holders
 */
function consumerTable(rows, holders) {
  const ages = new Map(holders.map((each) => [`${each.channel}\n${each.consumer_tag}`, each.unacked_for]));
  if (!rows.length) return h("div", { class: "empty" }, "No consumer: messages wait.");
  return listed("Consumers", ["Tag", "Client", "User", "Prefetch", "Unacked", "Oldest unacked", "Mode"], rows.map(({ channel_details: channel, ...row }) => [
    row.consumer_tag, connectionLink({ ...channel, name: channel.connection_name }), channel.user, row.prefetch_count || "no limit", count(row.messages_unacknowledged),
    duration(ages.get(`${channel.name}\n${row.consumer_tag}`)), [row.ack_required ? "acks" : "no acks", row.exclusive && "exclusive", !row.active && "waits"].filter(Boolean).join(", "),
  ]));
}

/**
 * @param {any} explained
 * @param {any} found
 */
function settingsOf(explained, found) {
  const rows = explained.settings ?? [];
  const warnings = (explained.warnings ?? []).map((/** @type {unknown} */ each) => h("p", { class: "note" }, typeof each === "string" ? each : JSON.stringify(each)));
  const letters = explained.dead_letters;
  return h("div", { class: "stack" }, warnings, facts([
    ["Policy", explained.policy ? badge(explained.policy.name ?? String(explained.policy)) : "none"],
    .../** @type {[string, any][]} */ ((explained.policies_without_effect ?? []).map((/** @type {any} */ each) => [`${each.operator ? "Operator policy" : "Policy"} ${each.name}`, h("span", { class: "faint" }, `not in effect: ${each.reason}`)])), ["Confirm mode", found.confirm_mode],
    ["Open promises", explained.promises ? promises(explained.promises) : null],
    .../** @type {[string, any][]} */ (rows.map((/** @type {any} */ row) => [row.key, h("span", null, h("code", null, JSON.stringify(row.value)), h("span", { class: "faint small" }, ` from ${row.source}`))])),
    ["Dead letters", letters ? `go to ${letters.exchange ? `the exchange ${letters.exchange}` : "the default exchange"}${letters.exists === false ? ", which does not exist: they are lost" : ""}` : "are dropped"],
  ]));
}

/** @param {{open: number, accepted: number, refused: number}} found */
function promises({ open, accepted, refused }) {
  return h("span", null, `${counted(open, "message")} whose publishers wait for an acknowledgement`, h("span", { class: "faint small" }, ` (${count(accepted)} accepted, ${count(refused)} refused so far)`));
}
