/** The bindings of a queue or an exchange: a picture, a table, and how to add and remove them. */
import { get, path, send } from "../shell/api.js";
import { ask } from "../shell/dialog.js";
import { h, refresh } from "../shell/elements.js";
import { done } from "../shell/notices.js";
import { button, exchangeLink, panel, queueLink } from "../shell/parts.js";
import { poll } from "../shell/poll.js";
import { picture } from "./picture.js";

/**
 * @param {string} vhost
 * @param {string} name
 * @param {"queue" | "exchange"} kind
 * @param {import("../app.js").User} user
 * @param {AbortSignal} signal
 */
export function bindingsOf(vhost, name, kind, user, signal) {
  const drawn = h("div");
  const table = h("div");
  const apiName = kind === "exchange" ? name || "amq.default" : name;
  const read = async (/** @type {AbortSignal} */ aborted) => {
    const base = `${kind}s/${path(vhost, apiName)}/bindings`;
    if (kind === "queue") return get(base, {}, aborted);
    const both = await Promise.all([get(`${base}/source`, {}, aborted), get(`${base}/destination`, {}, aborted)]);
    return both.flat();
  };
  const place = h("div", { class: "stack" });
  const again = poll({
    read, place, signal,
    show: (/** @type {any[]} */ rows) => {
      const self = (/** @type {any} */ row) => row.destination === name && row.destination_type === kind;
      const before = rows.filter(self).map((row) => ({ name: row.source, kind: /** @type {const} */ ("exchange"), key: label(row) }));
      const after = rows.filter((row) => !self(row)).map((row) => ({ name: row.destination, kind: row.destination_type, key: label(row) }));
      refresh(drawn, picture(vhost, name, kind, before, after));
      refresh(table, rows.length ? bindingTable(rows, user, () => again()) : h("div", { class: "empty" }, kind === "queue" ? "No exchange leads here but the default exchange." : "Nothing is bound."));
    },
  });
  place.append(
    panel("Bindings", drawn, user.mayChange ? button("Add a binding", () => add(vhost, name, kind, again)) : []),
    panel("All bindings", table, [], true),
  );
  return place;
}

/** @param {any} row */
function label(row) {
  const given = Object.keys(row.arguments ?? {}).length ? ` ${JSON.stringify(row.arguments)}` : "";
  return row.source === "" ? "" : `${row.routing_key}${given}`;
}

/**
 * @param {any[]} rows
 * @param {import("../app.js").User} user
 * @param {() => void} again
 */
function bindingTable(rows, user, again) {
  return h("div", { class: "scroll" }, h(
    "table", { class: "cards", "aria-label": "All bindings" },
    h("thead", null, h("tr", null, ["From", "To", "Key", "Arguments", ""].map((text) => h("th", { scope: "col" }, text || h("span", { class: "visually" }, "Actions"))))),
    h("tbody", null, rows.map((row) => h(
      "tr", null, h("td", { "data-label": "From" }, exchangeLink(row.vhost, row.source)),
      h("td", { "data-label": "To" }, row.destination_type === "queue" ? queueLink(row.vhost, row.destination) : exchangeLink(row.vhost, row.destination)),
      h("td", { class: "wide", "data-label": "Key" }, h("code", null, row.routing_key)), h("td", { class: "wide", "data-label": "Arguments" }, Object.keys(row.arguments ?? {}).length ? h("code", null, JSON.stringify(row.arguments)) : ""),
      h("td", { class: "number" }, user.mayChange && row.source !== "" ? button("Remove", () => remove(row, again)) : ""),
    ))),
  ));
}

/**
 * @param {any} row
 * @param {() => void} again
 */
function remove(row, again) {
  return ask({
    title: "Remove the binding", action: "Remove", danger: true,
    text: `From ${row.source} to ${row.destination} by the key “${row.routing_key}”. Messages that are in queues stay there.`,
    submit: async () => {
      await send("DELETE", `bindings/${path(row.vhost)}/e/${path(row.source)}/${row.destination_type === "queue" ? "q" : "e"}/${path(row.destination)}/${encodeURIComponent(row.properties_key)}`);
      done("The binding is removed.");
      again();
    },
  });
}

/**
 * @param {string} vhost
 * @param {string} name
 * @param {"queue" | "exchange"} kind
 * @param {() => void} again
 */
function add(vhost, name, kind, again) {
  const isQueue = kind === "queue";
  return ask({
    title: isQueue ? `Bind the queue ${name}` : `Bind to the exchange ${name}`, action: "Bind",
    fields: [
      ...(isQueue ? [] : [{ name: "type", label: "To a", type: "select", options: ["queue", "exchange"], value: "queue" }]),
      { name: "other", label: isQueue ? "To the exchange" : "Named", required: true }, { name: "routing_key", label: "Binding key", hint: "With a topic exchange: * is one word, # any number" },
      { name: "arguments", label: "Arguments (JSON)", value: "{}" },
    ],
    submit: async (values) => {
      const [source, destination] = isQueue ? [values.other, name] : [name, values.other];
      const to = isQueue || values.type === "queue" ? "q" : "e";
      await send("POST", `bindings/${path(vhost)}/e/${path(source)}/${to}/${path(destination)}`, { routing_key: values.routing_key, arguments: JSON.parse(values.arguments || "{}") });
      done("The binding is there.");
      again();
    },
  });
}
