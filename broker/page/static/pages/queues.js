/** All queues: those first that need somebody; several can be chosen, and changed together. */
import { reasonBadge, urgency } from "../shell/attention.js";
import { fill, h, setText } from "../shell/elements.js";
import { count, counted, rate } from "../shell/format.js";
import { live } from "../shell/live.js";
import { recall, remember } from "../shell/memory.js";
import { button, chips, heading, queueLink } from "../shell/parts.js";
import { Table } from "../shell/table.js";
import { matcher, prefixes } from "../shell/table_rows.js";
import { vhostColumn } from "./list_page.js";
import { newPolicy } from "./policies.js";
import { purgeQueues, removeQueues, showQueue } from "./queue.js";
import { newQueue } from "./queue_form.js";
import { gettingStarted } from "./start.js";
import { transfer } from "./transfer.js";

/** @typedef {import("../shell/rows.js").QueueRow} QueueRow */
/** @typedef {import("../app.js").Place} Place */

const PAINT_MS = 900;
export const title = "Queues";

/** @param {Place} place */
export function show(place) {
  const { main, route, user, vhost, signal } = place;
  if (route.names.length > 1) return showQueue(place);
  /** @type {Set<string>} The keys of the queues that are chosen. */
  const chosen = new Set();
  const choose = (/** @type {string[]} */ keys, /** @type {boolean} */ is) => {
    for (const key of keys) is ? chosen.add(key) : chosen.delete(key);
    paint();
  };
  const box = (/** @type {string} */ label, /** @type {boolean} */ checked, /** @type {() => string[]} */ keys) => h("input", { type: "checkbox", "aria-label": label, checked, change: (/** @type {any} */ event) => choose(keys(), event.target.checked) });
  /** @type {Table<QueueRow>} */
  const table = new Table({
    id: "queues", label: "Queues", virtual: true, key: (row) => row.key, sort: "attention", descending: true,
    columns: [
      ...(user.mayChange ? [{ name: "chosen", title: "", unsorted: true, value: () => "", above: () => box("Choose all", false, () => table.rows.map((row) => row.key)), show: (/** @type {QueueRow} */ row) => box(`Choose ${row.name}`, chosen.has(row.key), () => [row.key]) }] : []),
      { name: "name", title: "Name", head: true, value: (row) => row.name, show: (row) => queueLink(row.vhost, row.name) },
      { ...vhostColumn(place), extra: Boolean(vhost) || user.vhosts < 2 },
      { name: "attention", title: "Needs attention", value: urgency, show: (row) => row.health.slice(0, 2).map(reasonBadge) },
      { name: "messages_ready", title: "Ready", number: true, value: (row) => row.messages_ready, show: (row) => count(row.messages_ready) },
      { name: "unacked", title: "Unacked", number: true, value: (row) => row.messages_unacknowledged, show: (row) => count(row.messages_unacknowledged) },
      { name: "total", title: "Total", number: true, extra: true, value: (row) => row.messages, show: (row) => count(row.messages) },
      { name: "consumers", title: "Consumers", number: true, value: (row) => row.consumers, show: (row) => count(row.consumers) },
      { name: "incoming", title: "In /s", number: true, value: (row) => row.incoming, show: (row) => rate(row.incoming), hint: "Messages published to the queue, a second" },
      { name: "outgoing", title: "Out /s", number: true, value: (row) => row.outgoing, show: (row) => rate(row.outgoing), hint: "Messages delivered to consumers or fetched, a second" },
      { name: "acked", title: "Ack /s", number: true, extra: true, value: (row) => row.acked, show: (row) => rate(row.acked) },
      { name: "growth", title: "Growth /s", number: true, value: (row) => row.growth, extra: true, show: (row) => (row.growth < 0 ? `−${rate(-row.growth)}` : rate(row.growth)) },
      { name: "type", title: "Type", value: (row) => row.type },
      { name: "features", title: "Features", value: (row) => row.features.join(" "), show: (row) => chips(row, 3) },
      { name: "policy", title: "Policy", value: (row) => row.policy ?? "", extra: true },
    ],
    groupText: (name, rows) => {
      const troubled = rows.filter((row) => row.health.length).length;
      return `${name}: ${counted(rows.length, "queue")}${troubled ? `, ${count(troubled)} need attention` : ""}, ${counted(rows.reduce((sum, row) => sum + row.messages_ready, 0), "ready message")}`;
    },
    empty: () => (live.queues.byKey.size ? "No queue has such a name." : gettingStarted(vhost)),
  });
  const filter = h("input", { type: "search", placeholder: "Name, virtual host, policy or /regex/", "aria-label": "Filter", "data-filter": "", value: route.query.get("filter") ?? "" });
  const onlyThose = h("input", { type: "checkbox", checked: route.query.get("only") === "attention" });
  const groups = h("select", { "aria-label": "Groups" }, ["no groups", "by prefix", ...(!vhost && user.vhosts > 1 ? ["by virtual host"] : [])].map((each) => h("option", { value: each, selected: each === recall("queues.groups", "") }, each)));
  const total = h("span", { class: "faint small", role: "status" }, "Reading queues…");
  const actions = h("div", { class: "toolbar", hidden: true });
  let painted = -PAINT_MS;
  let waiting = 0;
  let grouping = "no groups";

  const paint = () => {
    waiting = 0;
    painted = performance.now();
    const all = [...live.queues.byKey.values()];
    const troubled = all.filter((row) => row.health.length).length;
    const isWanted = matcher(filter);
    const rows = all.filter((row) => (!onlyThose.checked || row.health.length) && [row.name, row.vhost, row.policy ?? ""].some(isWanted));
    group(all);
    table.set(rows);
    setText(total, `${rows.length === all.length ? counted(all.length, "queue") : `${count(rows.length)} of ${counted(all.length, "queue")}`}${troubled ? `, ${count(troubled)} need attention` : ""}`);
    const found = all.filter((row) => chosen.has(row.key));
    actions.hidden = !found.length;
    if (found.length) fill(actions, h("b", null, `${counted(found.length, "queue")} chosen`), changes(place, found, () => choose([...chosen], false)));
  };
  const group = (/** @type {QueueRow[]} */ all) => {
    const groupOf = groups.value === "by prefix" ? prefixes(all) : groups.value === "by virtual host" ? (/** @type {QueueRow} */ row) => row.vhost : null;
    if (groups.value !== grouping) table.folded = new Set(groups.value === "by prefix" && groupOf ? all.map(groupOf) : []);
    grouping = groups.value;
    table.groupOf = groupOf;
  };
  const soon = () => {
    if (!waiting) waiting = setTimeout(paint, Math.max(0, PAINT_MS - (performance.now() - painted)));
  };
  filter.addEventListener("input", paint);
  onlyThose.addEventListener("change", paint);
  groups.addEventListener("change", () => {
    remember("queues.groups", groups.value);
    paint();
  });
  live.addEventListener("queues", soon, { signal });
  signal.addEventListener("abort", () => clearTimeout(waiting));
  main.append(
    heading("Queues", { beside: total, actions: user.mayChange ? button("New queue", () => newQueue(vhost), "primary") : [] }),
    h("section", { class: "panel" }, h("div", { class: "toolbar" }, filter, h("label", null, onlyThose, "Needs attention"), groups, table.chooser()), actions, table.element),
  );
  if (live.queues.at) paint();
}

/**
 * The buttons that change several queues.
 * @param {Place} place
 * @param {QueueRow[]} queues
 * @param {() => void} over
 */
function changes(place, queues, over) {
  const [{ vhost }] = queues;
  const pattern = `^(${queues.map(({ name }) => name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})$`;
  const isOne = queues.every((each) => each.vhost === vhost); // a policy belongs to a virtual host
  return [
    button("Move messages…", () => transfer("move", queues).then((is) => is && over())), place.user.sets && isOne ? button("New policy…", () => newPolicy(place, { vhost, pattern })) : null,
    button("Purge…", () => purgeQueues(queues).then((is) => is && over()), "danger"), button("Delete…", () => removeQueues(queues).then((is) => is && over()), "danger"), button("Choose none", over, "quiet"),
  ];
}
