/** All consumers. */
import { path } from "../shell/api.js";
import { h } from "../shell/elements.js";
import { count } from "../shell/format.js";
import { queueLink } from "../shell/parts.js";
import { connectionLink } from "./connections.js";
import { listPage } from "./list_page.js";

export const title = "Consumers";

/** @param {import("../app.js").Place} place */
export function show(place) {
  return listPage(place, {
    title: "Consumers", noun: "consumer", id: "consumers", path: place.vhost ? `consumers/${path(place.vhost)}` : "consumers",
    key: (row) => `${row.channel_details.name}\n${row.consumer_tag}`, sort: "queue", text: (row) => `${row.queue.name} ${row.consumer_tag} ${row.channel_details.user} ${row.channel_details.user_provided_name ?? ""}`,
    empty: () => [h("p", null, "Nobody consumes: messages wait in their queues. With pika a program takes them by"), h("pre", null, 'channel.basic_consume("hello", lambda channel, method, properties, body: channel.basic_ack(method.delivery_tag))\nchannel.start_consuming()')],
    columns: [
      { name: "queue", title: "Queue", head: true, value: (row) => row.queue.name, show: (row) => queueLink(row.queue.vhost, row.queue.name) },
      { name: "tag", title: "Tag", value: (row) => row.consumer_tag },
      { name: "client", title: "Client", value: ({ channel_details: each }) => each.user_provided_name ?? each.connection_name, show: ({ channel_details: each }) => connectionLink({ ...each, name: each.connection_name }) },
      { name: "channel", title: "Channel", number: true, value: (row) => row.channel_details.number },
      { name: "user", title: "User", value: (row) => row.channel_details.user },
      { name: "prefetch", title: "Prefetch", number: true, value: (row) => row.prefetch_count, show: (row) => row.prefetch_count || "no limit" },
      { name: "unacked", title: "Unacked", number: true, value: (row) => row.messages_unacknowledged, show: (row) => count(row.messages_unacknowledged) },
      { name: "mode", title: "Mode", value: (row) => [row.ack_required ? "acks" : "no acks", row.exclusive && "exclusive", !row.active && "waits"].filter(Boolean).join(", ") },
    ],
  });
}
