/** Users, and their permissions in virtual hosts as a matrix. */
import { get, path, send } from "../shell/api.js";
import { ask } from "../shell/dialog.js";
import { h, refresh } from "../shell/elements.js";
import { done } from "../shell/notices.js";
import { badge, button, heading, listed, panel } from "../shell/parts.js";
import { poll } from "../shell/poll.js";
import { keyOf } from "../shell/rows.js";

export const title = "Users and permissions";
const RIGHTS = ["configure", "write", "read"];
const TAGS = "administrator, monitoring, policymaker, management; empty for a program that only sends and receives";

/** @param {import("../app.js").Place} place */
export function show({ main, user, signal }) {
  const table = h("div");
  const matrix = h("div");
  const topics = h("div");
  main.append(heading("Users and permissions", { actions: button("New user", () => edit(null, again), "primary") }), h("div", { class: "stack" },
    panel("Users", table, [], true), panel("Permissions", matrix, h("span", { class: "faint small" }, "In each virtual host: patterns of the names of queues and exchanges."), true),
    panel("Topic permissions", topics, button("New topic permission", () => permitTopic(null, again)), true)));
  const again = poll({
    read: (aborted) => Promise.all([get("users", {}, aborted), get("vhosts", { columns: "name" }, aborted), get("permissions", {}, aborted), get("user-limits", {}, aborted), get("topic-permissions", {}, aborted)]), place: main, signal, seconds: 15,
    show: ([users, vhosts, permissions, limits, restrictions]) => {
      refresh(table, userTable(users, limits, user.name, again));
      refresh(matrix, matrixOf(users, vhosts, permissions, again));
      refresh(topics, topicTable(restrictions, again));
    },
  });
}

/**
 * @param {any[]} users
 * @param {any[]} limits
 * @param {string} self
 * @param {() => void} again
 */
function userTable(users, limits, self, again) {
  const limit = (/** @type {string} */ name) => Object.entries(limits.find((each) => each.user === name)?.value ?? {}).map(([key, value]) => `${key} ${value}`).join(", ");
  return listed("Users", ["Name", "Tags", "Limits", "Password", "Actions"], users.map((each) => [
    each.name, each.tags.map((/** @type {string} */ tag) => badge(tag)), limit(each.name) || "none", each.password_hash ? badge("set", "good") : badge("none: no login", "warn"),
    h("span", { class: "row" }, button("Edit", async () => edit(await get(`users/${path(each.name)}`), again)), button("Limits", () => limitsOf(each.name, again)), each.name === self ? null : button("Delete", () => remove(each.name, again), "danger")),
  ]));
}

/**
 * @param {any[]} users
 * @param {any[]} vhosts
 * @param {any[]} permissions
 * @param {() => void} again
 */
function matrixOf(users, vhosts, permissions, again) {
  const found = new Map(permissions.map((each) => [keyOf(each.vhost, each.user), each]));
  const cell = (/** @type {any} */ user, /** @type {any} */ vhost) => {
    const given = found.get(keyOf(vhost.name, user.name));
    const text = given ? RIGHTS.map((right) => given[right] || "nothing").join(" · ") : "no access";
    return h("td", null, h("button", { type: "button", class: "rights mono", "aria-label": `${user.name} in ${vhost.name}: ${text}`, click: () => permit(user.name, vhost.name, given, again) }, given ? RIGHTS.map((right) => h("span", null, h("span", { class: "faint" }, `${right} `), given[right] || "nothing")) : text));
  };
  return h("div", { class: "scroll" }, h(
    "table", { "aria-label": "Permissions" }, h("thead", null, h("tr", null, h("th", { scope: "col" }, "User"), vhosts.map((each) => h("th", { scope: "col" }, each.name)))),
    h("tbody", null, users.map((user) => h("tr", null, h("th", { scope: "row" }, user.name), vhosts.map((vhost) => cell(user, vhost))))),
  ));
}

/**
 * @param {any[]} rows
 * @param {() => void} again
 */
function topicTable(rows, again) {
  if (!rows.length) return h("div", { class: "empty" }, "No user is restricted to routing keys of a topic exchange.");
  return listed("Topic permissions", ["User", "Virtual host", "Exchange", "May publish with", "May bind with", "Actions"], rows.map((row) => [
    row.user, row.vhost, row.exchange, h("code", null, row.write), h("code", null, row.read),
    h("span", { class: "row" }, button("Edit", () => permitTopic(row, again)), button("Remove", async () => {
      await send("DELETE", `topic-permissions/${path(row.vhost, row.user, row.exchange)}`);
      done("The user may use all routing keys there.");
      again();
    }, "danger")),
  ]));
}

/**
 * @param {any} row null for a new one
 * @param {() => void} again
 */
async function permitTopic(row, again) {
  const [users, vhosts] = row ? [[], []] : await Promise.all(["users", "vhosts"].map((each) => get(each, { columns: "name" })));
  const names = (/** @type {any[]} */ all) => all.map(({ name }) => name);
  await ask({
    title: row ? `${row.user} at ${row.exchange} in ${row.vhost}` : "New topic permission", action: "Save", text: h("p", { class: "faint small" }, "Regular expressions of routing keys, beside the permissions above: .* for all, ^eu\\. for those that begin with eu."),
    fields: [
      ...(row ? [] : [{ name: "user", label: "User", type: "select", options: names(users) }, { name: "vhost", label: "Virtual host", type: "select", options: names(vhosts) }, { name: "exchange", label: "Topic exchange", required: true, value: "amq.topic" }]),
      { name: "write", label: "May publish with", value: row?.write ?? ".*" }, { name: "read", label: "May bind with", value: row?.read ?? ".*" },
    ],
    submit: async ({ write, read, ...place }) => {
      const { user, vhost, exchange } = row ?? place;
      await send("PUT", `topic-permissions/${path(vhost, user)}`, { exchange, write, read });
      again();
    },
  });
}

/**
 * @param {any} user
 * @param {() => void} again
 */
function edit(user, again) {
  return ask({
    title: user ? `User ${user.name}` : "New user", action: "Save",
    fields: [
      ...(user ? [] : [{ name: "name", label: "Name", required: true }]),
      { name: "password", label: user ? "New password" : "Password", type: "password", required: !user, hint: user ? "Empty: as it is" : undefined },
      { name: "tags", label: "Tags", value: user?.tags.join(", ") ?? "", hint: TAGS },
    ],
    submit: async (values) => {
      const secret = values.password ? { password: values.password } : { password_hash: user?.password_hash ?? "", hashing_algorithm: user?.hashing_algorithm };
      await send("PUT", `users/${path(user?.name ?? values.name)}`, { tags: values.tags.split(",").map((/** @type {string} */ each) => each.trim()).filter(Boolean), ...secret });
      done(user ? "The user is changed." : "The user is there; now give it permissions in a virtual host.");
      again();
    },
  });
}

/**
 * @param {string} user
 * @param {string} vhost
 * @param {any} given
 * @param {() => void} again
 */
function permit(user, vhost, given, again) {
  return ask({
    title: `${user} in ${vhost}`, action: "Save", text: h("p", { class: "faint small" }, "Regular expressions of names; empty for none, .* for all. To take the access away, empty all three and tick the box."),
    fields: [
      { name: "configure", label: "May declare and delete", value: given?.configure ?? "" }, { name: "write", label: "May publish to and bind", value: given?.write ?? ".*" },
      { name: "read", label: "May consume from", value: given?.read ?? ".*" }, ...(given ? [{ name: "remove", label: "No access at all", type: "checkbox" }] : []),
    ],
    submit: async ({ configure, write, read, remove: isOver }) => {
      await (isOver ? send("DELETE", `permissions/${path(vhost, user)}`) : send("PUT", `permissions/${path(vhost, user)}`, { configure, write, read }));
      done("In effect at once, also for open connections.");
      again();
    },
  });
}

/**
 * @param {string} name
 * @param {() => void} again
 */
function limitsOf(name, again) {
  return ask({
    title: `Limits of ${name}`, action: "Save", fields: [{ name: "max-connections", label: "Connections", type: "number", hint: "-1 for no limit; empty: as it is" }, { name: "max-channels", label: "Channels", type: "number", hint: "-1 for no limit; empty: as it is" }],
    submit: async (values) => {
      for (const [limit, value] of Object.entries(values)) await send("PUT", `user-limits/${path(name, limit)}`, { value });
      again();
    },
  });
}

/**
 * @param {string} name
 * @param {() => void} again
 */
function remove(name, again) {
  return ask({
    title: `Delete the user ${name}`, action: "Delete", danger: true, typed: name, text: "Its connections are closed, and its permissions are gone.",
    submit: async () => {
      await send("DELETE", `users/${path(name)}`);
      done(`${name} is deleted.`);
      again();
    },
  });
}
