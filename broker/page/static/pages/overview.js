/** The broker at a glance: what moves, what waits, what it has left, and what is wrong. */
import { get } from "../shell/api.js";
import { reasonBadge, urgency } from "../shell/attention.js";
import { Chart } from "../shell/chart.js";
import { h, refresh, setText } from "../shell/elements.js";
import { count, counted, duration, latency, percent, perSecond, short, size } from "../shell/format.js";
import { live } from "../shell/live.js";
import { recall, remember } from "../shell/memory.js";
import { badge, facts, figure, go, heading, panel, queueLink } from "../shell/parts.js";
import { link } from "../shell/route.js";
import { added, history, rates } from "../shell/series.js";
import { alarms } from "./alarms.js";
import { gettingStarted } from "./start.js";

/** @typedef {import("../app.js").Place} Place */

const RATES = ["publish", "deliver_get", "ack", "confirm", "return_unroutable", "drop_unroutable"];
const OCTETS = ["recv_oct", "send_oct"];
/** The values of `RATES` as the lines of the chart: what nobody gets is one. @param {number[]} values */
const lines = ([published, delivered, acked, confirmed, returned, dropped]) => [published, delivered, acked, confirmed, returned + dropped];
const RANGES = /** @type {Record<string, [number, number]>} */ ({ "1 minute": [60, 5], "10 minutes": [600, 5], "1 hour": [3600, 60], "8 hours": [28800, 600], "1 day": [86400, 1800] });
const WORST = 5;
export const title = "Overview";

/** @param {Place} place */
export async function show({ main, user, vhost, signal }) {
  const moving = new Chart("Messages per second", [
    { name: "Published", colour: 1, show: perSecond }, { name: "Delivered", colour: 2, show: perSecond },
    { name: "Acknowledged", colour: 3, show: perSecond }, { name: "Confirmed", colour: 4, show: perSecond }, { name: "Unroutable", colour: 5, show: perSecond },
  ]);
  const waiting = new Chart("Messages in queues", [{ name: "Ready", colour: 3, show: short }, { name: "Unacknowledged", colour: 2, show: short }]);
  const figures = {
    ready: figure("Ready", link("queues")), unacked: figure("Unacked", link("queues")), queues: figure("Queues", link("queues")),
    consumers: figure("Consumers", link("consumers")), connections: figure("Connections", link("connections")),
    channels: figure("Channels", link("channels")), exchanges: figure("Exchanges", link("exchanges")), received: figure("Received /s"), sent: figure("Sent /s"),
  };
  const warnings = h("div", { class: "stack" });
  const worst = h("div");
  const node = h("div", { class: "grid" });
  let range = recall("range", "1 minute");
  if (!RANGES[range]) range = "1 minute";
  const choice = h("select", { "aria-label": "Range" }, Object.keys(RANGES).map((name) => h("option", { value: name, selected: name === range }, name)));
  main.append(
    heading("Overview", { beside: vhost ? badge(`virtual host ${vhost}`) : [], actions: [h("label", { class: "compact" }, "Range ", choice)] }),
    h("div", { class: "stack" }, warnings, h("div", { class: "figures" }, Object.values(figures).map((each) => each.element)),
      h("div", { class: "grid" }, panel("Messages per second", moving.element), panel("Messages in queues", waiting.element)),
      panel("Queues that need attention", worst, go("All queues", link("queues")), true), node),
  );

  /** @type {import("../shell/series.js").Sample[]} */
  let ratesSoFar = [];
  /** @type {import("../shell/series.js").Sample[]} */
  let lengths = [];
  /** @type {any} */
  let before = null;

  const readHistory = async () => {
    const [age, increment] = RANGES[range];
    const asked = { lengths_age: age, lengths_incr: increment, msg_rates_age: age, msg_rates_incr: increment };
    const source = vhost && !user.administers ? null : await get(vhost ? `vhosts/${encodeURIComponent(vhost)}` : "overview", asked, signal);
    ratesSoFar = history(source?.message_stats, RATES, true).map(({ at, values }) => ({ at, values: lines(values) }));
    lengths = history(source?.queue_totals ?? source, ["messages_ready", "messages_unacknowledged"], false);
    draw();
  };
  const draw = () => {
    moving.set(ratesSoFar, RANGES[range][0]);
    waiting.set(lengths, RANGES[range][0]);
  };
  const update = () => {
    const now = live.overview;
    if (!now) return;
    setText(figures.ready.value, short(now.messages_ready));
    setText(figures.unacked.value, short(now.messages_unacknowledged));
    for (const name of /** @type {("queues" | "consumers" | "connections" | "channels" | "exchanges")[]} */ (["queues", "consumers", "connections", "channels", "exchanges"])) {
      setText(figures[name].value, count(now.objects[name]));
    }
    const found = before && rates(before, now, RATES);
    const [received, sent] = (before && rates(before, now, OCTETS)) ?? [0, 0];
    setText(figures.received.value, size(received));
    setText(figures.sent.value, size(sent));
    const seconds = RANGES[range][0];
    if (found && now.at - (ratesSoFar.at(-1)?.at ?? 0) >= RANGES[range][1] * 190) {
      added(ratesSoFar, { at: now.at, values: lines(found) }, seconds);
      added(lengths, { at: now.at, values: [now.messages_ready, now.messages_unacknowledged] }, seconds);
      draw();
    }
    before = now;
    refresh(warnings, alarms(now));
    if (now.node) refresh(node, nodePanels(now));
  };
  const updateWorst = () => {
    const rows = [...live.queues.byKey.values()].filter((row) => row.health.length).sort((one, other) => urgency(other) - urgency(one) || one.name.localeCompare(other.name));
    refresh(worst, live.queues.byKey.size ? attention(rows.slice(0, WORST), rows.length) : h("div", { class: "empty" }, live.queues.at ? gettingStarted(vhost) : "Reading queues…"));
  };
  choice.addEventListener("change", () => {
    range = choice.value;
    remember("range", range);
    readHistory();
  });
  live.addEventListener("overview", update, { signal });
  live.addEventListener("queues", updateWorst, { signal });
  update();
  updateWorst();
  await readHistory();
}

/**
 * @param {import("../shell/rows.js").QueueRow[]} rows
 * @param {number} all
 */
function attention(rows, all) {
  if (!rows.length) return h("div", { class: "empty" }, badge("All queues are well", "good"), h("p", null, "No queue grows, lacks a consumer, or has stuck consumers."));
  return h("div", { class: "scroll" }, h("table", { class: "cards", "aria-label": "Queues that need attention" }, h("tbody", null, rows.map((row) => h(
    "tr", null, h("th", { scope: "row", class: "name" }, queueLink(row.vhost, row.name)), h("td", null, reasonBadge(row.health[0])),
    h("td", { class: "number" }, `${short(row.messages)} ${row.messages === 1 ? "message" : "messages"}`), h("td", { class: "wide faint small" }, row.health[0][2]),
  )), all > rows.length ? h("tr", null, h("td", { colspan: "4" }, h("a", { href: link("queues", [], { only: "attention" }) }, `${count(all - rows.length)} more`))) : null)));
}

/** @param {any} node */
function diskText(node) {
  if (node.disk_free === null) return "no data directory: everything is in memory and ends with the broker";
  return `${size(node.disk_free)} free; publishers are paused below ${size(node.disk_free_limit)}`;
}

/** @param {any} now */
function nodePanels({ node, latencies, churn, counts }) {
  const time = (/** @type {any} */ each) => (each ? `${latency(each.p50)} median, ${latency(each.p99)} p99` : "none in the last second");
  return [
    panel("Resources", h("div", { class: "stack" },
      meter("Memory", node.mem_used, node.mem_limit, `${size(node.mem_used)} of ${size(node.mem_limit)} at which publishers are paused`, node.mem_alarm),
      h("div", null, h("div", { class: "row" }, h("b", null, "Disk"), h("span", { class: "faint small" }, diskText(node)))),
      meter("File descriptors", node.fd_used, node.fd_total, `${count(node.fd_used)} of ${count(node.fd_total)}`, false),
      meter("Connections", node.sockets_used, node.sockets_total, `${count(node.sockets_used)} of ${count(node.sockets_total)}`, false))),
    panel("Latencies and churn", facts([
      ["Confirm", time(latencies.confirm)], ["Commit to disk", time(latencies.commit)], ["Event loop late by", time(latencies.loop_lag)],
      ["Up for", duration(node.uptime / 1000)], ["Connections", `${count(churn.connection_created)} opened, ${count(churn.connection_closed)} closed`],
      ["Channels", `${count(churn.channel_created)} opened, ${count(churn.channel_closed)} closed`],
      ["Unroutable", `${count(counts.return_unroutable)} returned, ${count(counts.drop_unroutable)} dropped`], ["Redelivered", counted(counts.redeliver, "message")],
      ["Queues", `${count(churn.queue_created)} created, ${count(churn.queue_deleted)} deleted`],
    ])),
  ];
}

/**
 * @param {string} name
 * @param {number} used
 * @param {number} limit
 * @param {string} text
 * @param {boolean} alarm
 */
function meter(name, used, limit, text, alarm) {
  const share = limit > 0 ? Math.min(1, used / limit) : 0;
  const bar = h("span");
  bar.style.width = `${(100 * share).toFixed(1)}%`;
  return h("div", null, h("div", { class: "row" }, h("b", null, name), h("span", { class: "faint small" }, `${percent(used, limit)}: ${text}`)),
    h("div", { class: `meter ${alarm ? "bad" : share > 0.8 ? "warn" : ""}` }, bar));
}
