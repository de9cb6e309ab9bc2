/** Virtual hosts, and their limits. */
import { get, path, send, session } from "../shell/api.js";
import { ask } from "../shell/dialog.js";
import { h } from "../shell/elements.js";
import { count } from "../shell/format.js";
import { done } from "../shell/notices.js";
import { badge, button } from "../shell/parts.js";
import { actionColumn, listPage } from "./list_page.js";

export const title = "Virtual hosts";

/** @param {import("../app.js").Place} place */
export function show(place) {
  const { user } = place;
  const changed = () => {
    session.dispatchEvent(new Event("vhosts"));
    again();
  };
  const again = listPage(place, {
    title: "Virtual hosts", noun: "virtual host", id: "vhosts", path: "vhosts", key: (row) => row.name, sort: "name", text: (row) => `${row.name} ${row.description ?? ""}`,
    actions: user.administers ? button("New virtual host", () => create(changed), "primary") : [],
    columns: [
      { name: "name", title: "Name", head: true, value: (row) => row.name }, { name: "description", title: "Description", value: (row) => row.description ?? "", wide: true },
      { name: "ready", title: "Ready", number: true, value: (row) => row.messages_ready ?? 0, show: (row) => count(row.messages_ready ?? 0) },
      { name: "unacked", title: "Unacked", number: true, value: (row) => row.messages_unacknowledged ?? 0, show: (row) => count(row.messages_unacknowledged ?? 0) },
      { name: "type", title: "Default type", value: (row) => (row.default_queue_type === "undefined" ? "classic" : row.default_queue_type) }, { name: "tags", title: "Tags", value: (row) => (row.tags ?? []).join(", "), show: (row) => (row.tags ?? []).map((/** @type {string} */ tag) => badge(tag)) },
      ...actionColumn(user.administers, (row) => [button("Limits", () => limits(row.name)), button(row.protected_from_deletion ? "Unprotect" : "Protect", () => protect(row, changed)), button("Delete", () => remove(row.name, changed), "danger")]),
    ],
  });
}

/** @param {() => void} changed */
function create(changed) {
  return ask({
    title: "New virtual host", action: "Create", fields: [{ name: "name", label: "Name", required: true }, { name: "description", label: "Description" }, { name: "type", label: "Queues are by default", type: "select", options: ["classic", "quorum", "stream"] }],
    submit: async ({ name, description, type }) => {
      await send("PUT", `vhosts/${path(name)}`, { description, default_queue_type: type });
      done(`${name} is there, and you have all permissions in it.`);
      changed();
    },
  });
}

/**
 * Protect a virtual host from being deleted, or no more.
 * @param {any} row
 * @param {() => void} changed
 */
async function protect({ name, protected_from_deletion: isProtected }, changed) {
  await send(isProtected ? "DELETE" : "POST", `vhosts/${path(name)}/deletion/protection`);
  changed();
}

/** @param {string} name */
async function limits(name) {
  const [now] = await get(`vhost-limits/${path(name)}`);
  await ask({
    title: `Limits of ${name}`, action: "Save", fields: ["max-connections", "max-queues"].map((each) => ({ name: each, label: each, type: "number", value: now?.value?.[each] ?? "", hint: "-1 for no limit; empty: as it is" })),
    submit: async (values) => {
      for (const [limit, value] of Object.entries(values)) await send("PUT", `vhost-limits/${path(name, limit)}`, { value });
      done("In effect.");
    },
  });
}

/**
 * @param {string} name
 * @param {() => void} changed
 */
async function remove(name, changed) {
  const found = await get(`queues/${path(name)}`, { columns: "messages_ready" });
  const messages = found.reduce((/** @type {number} */ sum, /** @type {any} */ each) => sum + each.messages_ready, 0);
  await ask({
    title: `Delete the virtual host ${name}`, action: "Delete everything in it", danger: true, typed: name, text: `${count(found.length)} queues with ${count(messages)} ready messages, all exchanges, policies and permissions in it will be deleted, which cannot be undone.`,
    submit: async () => {
      await send("DELETE", `vhosts/${path(name)}`);
      done(`${name} is deleted.`);
      changed();
    },
  });
}
