/** All queues: those first that need somebody. */
import { reasonBadge, urgency } from "../shell/attention.js";
import { h, setText } from "../shell/elements.js";
import { count, counted, rate } from "../shell/format.js";
import { live } from "../shell/live.js";
import { recall, remember } from "../shell/memory.js";
import { button, heading, queueLink } from "../shell/parts.js";
import { Table } from "../shell/table.js";
import { showQueue } from "./queue.js";
import { gettingStarted } from "./start.js";
import { newQueue } from "./queue_form.js";

/** @typedef {import("../shell/rows.js").QueueRow} QueueRow */
/** @typedef {import("../app.js").Place} Place */

const PAINT_MS = 900;
export const title = "Queues";

/** @param {Place} place */
export function show(place) {
  const { main, route, user, vhost, signal } = place;
  if (route.names.length > 1) return showQueue(place);
  /** @type {Table<QueueRow>} */
  const table = new Table({
    id: "queues", label: "Queues", virtual: true, key: (row) => row.key, sort: "attention", descending: true,
    columns: [
      { name: "name", title: "Name", head: true, value: (row) => row.name, show: (row) => queueLink(row.vhost, row.name) },
      { name: "vhost", title: "Virtual host", value: (row) => row.vhost, extra: Boolean(vhost) || user.vhosts < 2 },
      { name: "messages_ready", title: "Ready", number: true, value: (row) => row.messages_ready, show: (row) => count(row.messages_ready) },
      {
        name: "attention", title: "Needs attention", number: false, value: urgency,
        show: (row) => row.health.slice(0, 2).map(reasonBadge),
      },
      { name: "unacked", title: "Unacked", number: true, value: (row) => row.messages_unacknowledged, show: (row) => count(row.messages_unacknowledged) },
      { name: "consumers", title: "Consumers", number: true, value: (row) => row.consumers, show: (row) => count(row.consumers) },
      { name: "incoming", title: "In /s", number: true, value: (row) => row.incoming, show: (row) => rate(row.incoming), hint: "Messages published to the queue, a second" },
      { name: "outgoing", title: "Out /s", number: true, value: (row) => row.outgoing, show: (row) => rate(row.outgoing), hint: "Messages delivered to consumers or fetched, a second" },
      { name: "acked", title: "Ack /s", number: true, value: (row) => row.acked, show: (row) => rate(row.acked) },
      { name: "growth", title: "Growth /s", number: true, value: (row) => row.growth, extra: true, show: (row) => (row.growth < 0 ? `−${rate(-row.growth)}` : rate(row.growth)) },
      { name: "type", title: "Type", value: (row) => row.type },
      { name: "policy", title: "Policy", value: (row) => row.policy ?? "", extra: true },
      { name: "features", title: "Features", value: (row) => features(row).join(" "), extra: true },
      { name: "mode", title: "Confirm mode", value: (row) => row.confirm_mode, extra: true },
    ],
    groupText: (name, rows) => `${name}: ${counted(rows.length, "queue")}, ${counted(rows.reduce((sum, row) => sum + row.messages_ready, 0), "ready message")}`,
    empty: () => (live.queues.byKey.size ? "No queue has such a name." : gettingStarted(vhost)),
  });
  const filter = h("input", { type: "search", placeholder: "Filter by name, virtual host or policy", "aria-label": "Filter", "data-filter": "", value: route.query.get("filter") ?? "" });
  const onlyThose = h("input", { type: "checkbox", checked: route.query.get("only") === "attention" });
  const byVhost = h("input", { type: "checkbox", checked: recall("queues.grouped", false) });
  const canGroup = !vhost && user.vhosts > 1;
  const group = () => (table.groupOf = canGroup && byVhost.checked ? (row) => row.vhost : null);
  const total = h("span", { class: "faint small", role: "status" }, "Reading queues…");
  let painted = -PAINT_MS;
  let waiting = 0;

  const paint = () => {
    waiting = 0;
    painted = performance.now();
    const all = [...live.queues.byKey.values()];
    const troubled = all.filter((row) => row.health.length).length;
    const text = filter.value.trim().toLowerCase();
    const rows = all.filter((row) => (!onlyThose.checked || row.health.length) && (!text || matches(row, text)));
    table.set(rows);
    setText(total, `${rows.length === all.length ? counted(all.length, "queue") : `${count(rows.length)} of ${counted(all.length, "queue")}`}${troubled ? `, ${count(troubled)} need attention` : ""}`);
  };
  const soon = () => {
    if (!waiting) waiting = setTimeout(paint, Math.max(0, PAINT_MS - (performance.now() - painted)));
  };
  filter.addEventListener("input", paint);
  onlyThose.addEventListener("change", paint);
  byVhost.addEventListener("change", () => {
    remember("queues.grouped", byVhost.checked);
    group();
    paint();
  });
  group();
  live.addEventListener("queues", soon, { signal });
  signal.addEventListener("abort", () => clearTimeout(waiting));
  main.append(
    heading("Queues", { actions: user.mayChange ? button("New queue", () => newQueue(vhost), "primary") : [] }),
    h("section", { class: "panel" }, h("div", { class: "toolbar" }, filter, h("label", null, onlyThose, "Needs attention"), canGroup ? h("label", null, byVhost, "By virtual host") : null, table.chooser(), total), table.element),
  );
  if (live.queues.at) paint();
}

/**
 * @param {QueueRow} row
 * @param {string} text
 */
function matches(row, text) {
  return row.name.toLowerCase().includes(text) || row.vhost.toLowerCase().includes(text) || (row.policy ?? "").toLowerCase().includes(text);
}

/** @param {QueueRow} row */
function features(row) {
  return [row.durable && "durable", row.auto_delete && "auto-delete", row.exclusive && "exclusive", row.dead_letter_exchange !== null && "dead-letters"].filter(Boolean).map(String);
}
