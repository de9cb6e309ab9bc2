/** All connections, and one of them with its channels. */
import { get, path, send } from "../shell/api.js";
import { ask } from "../shell/dialog.js";
import { h, refresh } from "../shell/elements.js";
import { count, rate, size } from "../shell/format.js";
import { done } from "../shell/notices.js";
import { badge, button, facts, heading, panel, time } from "../shell/parts.js";
import { poll } from "../shell/poll.js";
import { link } from "../shell/route.js";
import { channelColumns } from "./channels.js";
import { listPage, vhostColumn } from "./list_page.js";
import { firstProgram } from "./start.js";
import { Table } from "../shell/table.js";

/** @typedef {import("../app.js").Place} Place */

export const title = "Connections";

/**
 * A link to a connection, with the name that its client has given, if it has.
 * @param {{name: string, user_provided_name?: string}} connection
 */
export const connectionLink = ({ name, user_provided_name: given }) => h("a", { href: link("connections", [name]), title: name }, given || name);

const COLUMNS = "name,user_provided_name,user,vhost,state,channels,peer_host,connected_at,recv_oct_details.rate,send_oct_details.rate,client_properties.product,client_properties.version";

/** @param {string} state */
export function stateBadge(state) {
  return badge(state, state === "running" || state === "idle" ? "good" : state === "flow" ? "warn" : "bad", state === "flow" ? "The client publishes more than the broker can take at the moment, and is slowed down." : undefined);
}

/** @param {Place} place */
export function show(place) {
  const { route, vhost } = place;
  if (route.names.length) return showConnection(place);
  return listPage(place, {
    title: "Connections", noun: "connection", id: "connections", path: vhost ? `vhosts/${path(vhost)}/connections` : "connections", query: { columns: COLUMNS },
    key: (row) => row.name, sort: "name", text: (row) => `${row.name} ${row.user_provided_name ?? ""} ${row.user} ${row.vhost}`,
    empty: () => [h("p", null, "No program is connected. This one connects, and publishes a message:"), firstProgram(vhost)],
    columns: [
      { name: "name", title: "Name", head: true, value: (row) => row.user_provided_name ?? row.name, show: connectionLink },
      { name: "peer", title: "From", wide: true, value: (row) => row.name.split(" -> ")[0] },
      { name: "user", title: "User", value: (row) => row.user },
      vhostColumn(place),
      { name: "state", title: "State", value: (row) => row.state, show: (row) => stateBadge(row.state) },
      { name: "channels", title: "Channels", number: true, value: (row) => row.channels },
      { name: "in", title: "In /s", number: true, value: (row) => row.recv_oct_details?.rate ?? 0, show: (row) => size(row.recv_oct_details?.rate ?? 0) },
      { name: "out", title: "Out /s", number: true, value: (row) => row.send_oct_details?.rate ?? 0, show: (row) => size(row.send_oct_details?.rate ?? 0) },
      { name: "client", title: "Client", extra: true, value: (row) => [row.client_properties?.product, row.client_properties?.version].filter((each) => typeof each === "string").join(" ") },
      { name: "since", title: "Since", value: (row) => row.connected_at, show: (row) => time(row.connected_at) },
    ],
  });
}

/** @param {Place} place */
async function showConnection({ main, route, user, signal }) {
  const [name] = route.names;
  const { user_provided_name: given } = await get(`connections/${path(name)}`, { columns: "user_provided_name" }, signal);
  const about = h("div");
  const channels = new Table({ id: "connection-channels", label: "Channels", columns: channelColumns(true), key: (row) => row.name, sort: "number" });
  main.append(heading(given || name, { above: [["Connections", link("connections")]], actions: user.mayChange ? button("Close", () => close(name), "danger") : [] }),
    h("div", { class: "stack" }, panel("About", about), panel("Channels", channels.element, [], true)));
  poll({
    read: (aborted) => Promise.all([get(`connections/${path(name)}`, {}, aborted), get(`connections/${path(name)}/channels`, {}, aborted)]),
    place: main, signal,
    show: ([found, rows]) => {
      refresh(about, facts([
        ["Connection", name], ["State", stateBadge(found.state)], ["User", found.user], ["Virtual host", found.vhost],
        ["Since", time(found.connected_at)], ["Heartbeat", found.timeout ? `${found.timeout} s` : "none"], ["Protocol", found.protocol],
        ["Received", `${size(found.recv_oct)}, ${rate(found.recv_oct_details.rate)} B/s`], ["Sent", `${size(found.send_oct)}, ${rate(found.send_oct_details.rate)} B/s`],
        ["Frames up to", size(found.frame_max)], ["Channels", `${count(found.channels)} of ${count(found.channel_max)}`],
        .../** @type {[string, any][]} */ (Object.entries(found.client_properties ?? {}).map(([key, value]) => [`Client: ${key}`, typeof value === "string" ? value : capabilities(value)])),
      ]));
      channels.set(rows);
    },
  });
}

/**
 * What a client can do, in words; anything else as JSON.
 * @param {unknown} value
 */
function capabilities(value) {
  const all = Object.entries(value ?? {});
  return all.length && all.every(([, each]) => typeof each === "boolean") ? all.filter(([, each]) => each).map(([name]) => name).join(", ") : JSON.stringify(value);
}

/** @param {string} name */
function close(name) {
  return ask({
    title: "Close the connection", action: "Close it", danger: true,
    text: `${name}: its unacknowledged messages go back to their queues, and most clients connect again by themselves.`,
    submit: async () => {
      await send("DELETE", `connections/${path(name)}`);
      done("The connection is closed.");
      location.hash = link("connections");
    },
  });
}
