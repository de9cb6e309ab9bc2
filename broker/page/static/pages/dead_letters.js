/** Queues that hold dead letters: why they died, where, and what to do with them. */
import { path } from "../shell/api.js";
import { h } from "../shell/elements.js";
import { count, counted, duration } from "../shell/format.js";
import { badge, button } from "../shell/parts.js";
import { link } from "../shell/route.js";
import { actionColumn, listPage } from "./list_page.js";
import { transfer } from "./transfer.js";

export const title = "Dead letters";

/** @param {import("../app.js").Place} place */
export function show(place) {
  const { user, vhost } = place;
  const act = (/** @type {any} */ row, /** @type {import("./transfer.js").Action} */ action) => async () => {
    await transfer(action, [{ vhost: row.vhost, name: row.queue }]);
    await again();
  };
  const age = (/** @type {number | null} */ seconds) => (seconds ? Date.now() / 1000 - seconds : null);
  const again = listPage(place, {
    title: "Dead letters", noun: "queue", id: "dead-letters", path: vhost ? `leveret/dead-letters/${path(vhost)}` : "leveret/dead-letters",
    key: (row) => `${row.vhost}\n${row.queue}`, sort: "messages", descending: true, text: (row) => `${row.queue} ${Object.keys(row.reasons)} ${Object.keys(row.origins)}`,
    seconds: 10, intro: "Messages that were rejected, have expired, or did not fit, and went to another queue. Fix the cause first: a retry puts each one back into the queue in which it died.",
    empty: () => h("div", null, badge("No dead letters", "good")),
    columns: [
      { name: "queue", title: "Queue", head: true, value: (row) => row.queue, show: (row) => h("a", { href: link("queues", [row.vhost, row.queue], { tab: "messages" }) }, row.queue) },
      { name: "messages", title: "Messages", number: true, value: (row) => row.messages, show: (row) => count(row.messages) },
      { name: "reasons", title: "Reason", value: (row) => Object.keys(row.reasons)[0] ?? "", show: (row) => Object.entries(row.reasons).map(([reason, number]) => badge(`${reason} ${number}`, "bad")).concat(row.cycled ? badge(`${count(row.cycled)} dropped in a cycle`, "warn") : []) },
      { name: "origins", title: "Died in", value: (row) => Object.keys(row.origins)[0] ?? "", show: (row) => Object.entries(row.origins).slice(0, 3).map(([origin, number]) => `${origin} (${number})`).join(", ") },
      { name: "newest", title: "Last died", value: (row) => row.newest, show: (row) => (row.newest ? `${duration(age(row.newest))} ago` : "–") },
      { name: "retries", title: "Retries", number: true, value: (row) => row.retries, hint: "The most that one of them has had" },
      { name: "oldest", title: "First died", extra: true, value: (row) => row.oldest, show: (row) => (row.oldest ? `${duration(age(row.oldest))} ago` : "–") },
      { name: "examined", title: "Looked at", extra: true, value: (row) => row.examined, show: (row) => counted(row.examined, "message") },
      ...actionColumn(user.mayChange, (row) => [button("Retry…", act(row, "retry")), button("Move…", act(row, "move")), button("Discard…", act(row, "discard"), "danger")]),
    ],
  });
}
