/** All channels. */
import { path } from "../shell/api.js";
import { h } from "../shell/elements.js";
import { count, rate } from "../shell/format.js";
import { badge } from "../shell/parts.js";
import { link } from "../shell/route.js";
import { listPage } from "./list_page.js";

export const title = "Channels";

/**
 * The name of a channel: that of its client, if it has given one.
 * @param {any} row
 */
const nameOf = (row) => (row.connection_details.user_provided_name ? `${row.connection_details.user_provided_name} (${row.number})` : row.name);

/**
 * @param {boolean} isOfOne whether they are of one connection
 * @returns {import("../shell/table.js").Column<any>[]}
 */
export function channelColumns(isOfOne) {
  const rateOf = (/** @type {any} */ row, /** @type {string} */ name) => row.message_stats?.[`${name}_details`]?.rate ?? 0;
  return [
    isOfOne
      ? { name: "number", title: "Channel", head: true, value: (row) => row.number }
      : { name: "name", title: "Channel", head: true, value: (row) => row.name, show: (row) => h("a", { href: link("connections", [row.connection_details.name]), title: row.name }, nameOf(row)) },
    { name: "user", title: "User", value: (row) => row.user, extra: isOfOne },
    { name: "state", title: "State", value: (row) => row.state, show: (row) => badge(row.state, row.state === "flow" ? "warn" : "good") },
    { name: "mode", title: "Mode", value: (row) => (row.transactional ? "transactions" : row.confirm ? "confirms" : "") },
    { name: "prefetch", title: "Prefetch", number: true, value: (row) => row.prefetch_count || row.global_prefetch_count },
    { name: "consumers", title: "Consumers", number: true, value: (row) => row.consumer_count },
    { name: "unacked", title: "Unacked", number: true, value: (row) => row.messages_unacknowledged, show: (row) => count(row.messages_unacknowledged) },
    { name: "unconfirmed", title: "Unconfirmed", number: true, value: (row) => row.messages_unconfirmed, show: (row) => count(row.messages_unconfirmed) },
    { name: "publish", title: "Publish /s", number: true, value: (row) => rateOf(row, "publish"), show: (row) => rate(rateOf(row, "publish")) },
    { name: "deliver", title: "Deliver /s", number: true, value: (row) => rateOf(row, "deliver_get"), show: (row) => rate(rateOf(row, "deliver_get")) },
    { name: "ack", title: "Ack /s", number: true, value: (row) => rateOf(row, "ack"), show: (row) => rate(rateOf(row, "ack")) },
  ];
}

/** @param {import("../app.js").Place} place */
export function show(place) {
  return listPage(place, {
    title: "Channels", noun: "channel", id: "channels", path: place.vhost ? `vhosts/${path(place.vhost)}/channels` : "channels",
    key: (row) => row.name, sort: "name", text: (row) => `${row.name} ${nameOf(row)} ${row.user}`, columns: channelColumns(false), empty: () => "No channel is open.",
    query: { columns: "name,number,user,state,transactional,confirm,prefetch_count,global_prefetch_count,consumer_count,messages_unacknowledged,messages_unconfirmed,connection_details.name,connection_details.user_provided_name,message_stats.publish_details.rate,message_stats.deliver_get_details.rate,message_stats.ack_details.rate" },
  });
}
