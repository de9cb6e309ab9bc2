/** Shovels: their ends, states and failures. */
import { path, send } from "../shell/api.js";
import { ask } from "../shell/dialog.js";
import { h } from "../shell/elements.js";
import { count, moment } from "../shell/format.js";
import { done } from "../shell/notices.js";
import { badge, button } from "../shell/parts.js";
import { actionColumn, keyOfRow, listPage, vhostColumn } from "./list_page.js";
import { placeFields } from "./place_fields.js";

export const title = "Shovels";
const END = { source: ["src_queue", "src_exchange"], destination: ["dest_queue", "dest_exchange"] };

/** @param {import("../app.js").Place} place */
export function show(place) {
  const { user, vhost } = place;
  const end = (/** @type {any} */ row, /** @type {"source" | "destination"} */ side) => [END[side].map((key) => row[key]).find(Boolean), row[side === "source" ? "src_uri" : "dest_uri"]].filter(Boolean).join(" at ") || "–";
  const again = listPage(place, {
    title, noun: "shovel", id: "shovels", path: vhost ? `shovels/${path(vhost)}` : "shovels", key: keyOfRow, sort: "name",
    text: (row) => `${row.name} ${row.state} ${row.reason ?? ""}`, intro: "A shovel consumes at one broker and publishes at another, or at the same one.",
    empty: () => "There are no shovels. One moves, for instance, the messages of a queue to another broker.",
    actions: user.sets ? button("New shovel", () => create(vhost, () => again()), "primary") : [],
    columns: [
      { name: "name", title: "Name", head: true, value: (row) => row.name }, vhostColumn(place),
      { name: "state", title: "State", value: (row) => row.state, wide: true, show: (row) => [badge(row.state, row.state === "running" ? "good" : row.state === "terminated" ? "bad" : "warn"), row.reason ? h("div", { class: "faint small" }, row.reason) : null] },
      { name: "source", title: "From", value: (row) => end(row, "source"), wide: true }, { name: "destination", title: "To", value: (row) => end(row, "destination"), wide: true },
      { name: "forwarded", title: "Moved", number: true, value: (row) => row.forwarded, show: (row) => count(row.forwarded) }, { name: "pending", title: "Unconfirmed", number: true, value: (row) => row.pending ?? 0, extra: true },
      { name: "since", title: "State since", wide: true, value: (row) => row.state_since, show: (row) => moment(row.state_since) },
      ...actionColumn(user.sets, (row) => [button("Restart", () => restart(row, () => again())), button("Delete", () => remove(row, () => again()), "danger")]),
    ],
  });
}

/**
 * @param {string} vhost
 * @param {() => void} again
 */
async function create(vhost, again) {
  const fields = await placeFields(vhost);
  await ask({
    title: "New shovel", action: "Start",
    fields: [
      ...fields,
      { name: "src-uri", label: "From the broker", required: true, placeholder: "amqp://user:password@host/vhost", hint: "amqp:// for this one" }, { name: "src-queue", label: "From the queue", required: true },
      { name: "dest-uri", label: "To the broker", required: true, placeholder: "amqps://user:password@host/vhost", hint: "amqp:// for this one" }, { name: "dest-queue", label: "To the queue", hint: "Or an exchange" },
      { name: "dest-exchange", label: "… or to the exchange" }, { name: "dest-exchange-key", label: "… with the routing key", hint: "Empty: that of each message" },
      { name: "ack-mode", label: "Acknowledge", type: "select", options: ["on-confirm", "on-publish", "no-ack"], value: "on-confirm", hint: "on-confirm loses nothing" },
      { name: "src-delete-after", label: "End", type: "select", options: ["never", "queue-length"], value: "never", hint: "queue-length: after the messages that are there now" },
    ],
    submit: async ({ name, vhost: place, ...keys }) => {
      const value = Object.fromEntries(Object.entries(keys).filter(([, each]) => each !== ""));
      await send("PUT", `parameters/shovel/${path(place, name)}`, { value: { "src-protocol": "amqp091", "dest-protocol": "amqp091", ...value } });
      done(`The shovel ${name} is started.`);
      again();
    },
  });
}

/**
 * @param {any} row
 * @param {() => void} again
 */
async function restart({ vhost, name }, again) {
  await send("DELETE", `shovels/vhost/${path(vhost, name)}/restart`);
  done(`${name} is restarted.`);
  again();
}

/**
 * @param {any} row
 * @param {() => void} again
 */
function remove({ vhost, name }, again) {
  return ask({
    title: `Delete the shovel ${name}`, action: "Delete", danger: true, text: "It ends when the messages in transit are confirmed. Other messages stay where they are.",
    submit: async () => {
      await send("DELETE", `shovels/vhost/${path(vhost, name)}`);
      done(`${name} is deleted.`);
      again();
    },
  });
}
