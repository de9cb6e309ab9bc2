/** Queues that hold messages until their time, or for a retry. */
import { path } from "../shell/api.js";
import { h } from "../shell/elements.js";
import { count } from "../shell/format.js";
import { badge, button, time } from "../shell/parts.js";
import { link } from "../shell/route.js";
import { actionColumn, keyOfRow, listPage, vhostColumn } from "./list_page.js";
import { transfer } from "./transfer.js";

export const title = "Held messages";

/** @param {import("../app.js").Place} place */
export function show(place) {
  const { user, vhost } = place;
  const act = (/** @type {any} */ row, /** @type {import("./transfer.js").Action} */ action) => async () => {
    await transfer(action, [row]);
    await again();
  };
  const again = listPage(place, {
    title, noun: "queue", id: "held", path: vhost ? `queues/${path(vhost)}` : "queues", query: { columns: "name,vhost,messages_delayed,next_due" }, keep: (row) => row.messages_delayed > 0,
    key: keyOfRow, sort: "held", descending: true, text: (row) => row.name, seconds: 10,
    intro: "A queue holds a message until the time in its headers, or until its next retry. An action applies to the messages that are held when it starts.",
    empty: () => h("div", null, badge("No queue holds messages", "good")),
    columns: [
      { name: "queue", title: "Queue", head: true, value: (row) => row.name, show: (row) => h("a", { href: link("queues", [row.vhost, row.name], { tab: "messages" }) }, row.name) },
      vhostColumn(place),
      { name: "held", title: "Held", number: true, value: (row) => row.messages_delayed, show: (row) => count(row.messages_delayed) },
      { name: "next", title: "The next is due", value: (row) => row.next_due ?? 0, show: (row) => time(row.next_due) },
      ...actionColumn(user.mayChange, (row) => [button("Release…", act(row, "release")), button("Reschedule…", act(row, "reschedule")), button("Cancel…", act(row, "cancel"), "danger")]),
    ],
  });
}
