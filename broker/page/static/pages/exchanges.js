/** All exchanges, and one of them: its bindings, and where a message with some key would go. */
import { get, path, send } from "../shell/api.js";
import { ask } from "../shell/dialog.js";
import { Chart } from "../shell/chart.js";
import { fill, h, reasonOf } from "../shell/elements.js";
import { perSecond, rate } from "../shell/format.js";
import { done } from "../shell/notices.js";
import { badge, button, exchangeLink, go, heading, panel, queueLink } from "../shell/parts.js";
import { link } from "../shell/route.js";
import { poll } from "../shell/poll.js";
import { history } from "../shell/series.js";
import { bindingsOf } from "./bindings.js";
import { keyOfRow, listPage, vhostColumn } from "./list_page.js";
import { placeFields } from "./place_fields.js";
import { publish } from "./publish.js";

/** @typedef {import("../app.js").Place} Place */

const SECONDS = 600;
const TYPES = ["direct", "fanout", "topic", "headers", "x-consistent-hash", "x-delayed-message", "x-local-random", "x-modulus-hash", "x-random", "x-recent-history"];
export const title = "Exchanges";

/** @param {Place} place */
export function show(place) {
  const { route, vhost, user } = place;
  if (route.names.length > 1) return showExchange(place);
  const rateOf = (/** @type {any} */ row, /** @type {string} */ name) => row.message_stats?.[`${name}_details`]?.rate ?? 0;
  return listPage(place, {
    title: "Exchanges", noun: "exchange", id: "exchanges", path: vhost ? `exchanges/${path(vhost)}` : "exchanges",
    query: { columns: "name,vhost,type,durable,auto_delete,internal,message_stats.publish_in_details.rate,message_stats.publish_out_details.rate" },
    key: keyOfRow, sort: "name", text: (row) => `${row.name} ${row.type} ${row.vhost}`,
    actions: user.mayChange ? button("New exchange", () => create(vhost), "primary") : [],
    columns: [
      { name: "name", title: "Name", head: true, value: (row) => row.name, show: (row) => exchangeLink(row.vhost, row.name) },
      vhostColumn(place),
      { name: "type", title: "Type", value: (row) => row.type },
      { name: "in", title: "In /s", number: true, value: (row) => rateOf(row, "publish_in"), show: (row) => rate(rateOf(row, "publish_in")) },
      { name: "out", title: "Out /s", number: true, value: (row) => rateOf(row, "publish_out"), show: (row) => rate(rateOf(row, "publish_out")) },
      { name: "features", title: "Features", value: (row) => [row.durable && "durable", row.auto_delete && "auto-delete", row.internal && "internal"].filter(Boolean).join(", ") },
    ],
  });
}

/** @param {Place} place */
async function showExchange({ main, route, user, signal }) {
  const [vhost, given] = route.names;
  const name = given === "amq.default" ? "" : given;
  const facts = await get(`exchanges/${path(vhost, given)}`, {}, signal);
  const moving = new Chart("Messages per second", [{ name: "Published to it", colour: 1, show: perSecond }, { name: "Put into queues", colour: 2, show: perSecond }]);
  const isOurs = !name || name.startsWith("amq.");
  const answer = h("div", { "aria-live": "polite" });
  const key = h("input", { type: "text", name: "key", "aria-label": "Routing key", placeholder: "orders.created.eu", spellcheck: "false" });
  const headers = h("input", { type: "text", name: "headers", "aria-label": "Headers (JSON)", placeholder: '{"tenant": "eu"}', spellcheck: "false" });
  const explain = async (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      const found = await send("POST", `leveret/explain/publish/${path(vhost, given)}`, { routing_key: key.value, headers: headers.value ? JSON.parse(headers.value) : {} });
      fill(answer, whereItGoes(vhost, found));
    } catch (error) {
      fill(answer, h("p", { class: "error" }, reasonOf(error)));
    }
  };
  main.append(
    heading(name || "Default exchange", {
      above: [["Exchanges", link("exchanges")]], beside: [badge(facts.type), facts.durable && badge("durable"), facts.internal && badge("internal"), vhost !== "/" && badge(`virtual host ${vhost}`)],
      actions: user.mayChange ? [button("Publish", () => publish(vhost, name), "primary"), user.administers ? go("Live tail", link("tail", [vhost, given])) : null, isOurs ? null : button("Delete", () => remove(vhost, name), "danger")] : [],
    }),
    h("div", { class: "stack" },
      panel("Where would this go?", [h("form", { class: "row", submit: explain }, key, facts.type === "headers" || facts.arguments["hash-header"] ? headers : null, h("button", null, "Show")), answer]),
      panel("Messages per second", moving.element), bindingsOf(vhost, name, "exchange", user, signal)),
  );
  const asked = { msg_rates_age: SECONDS, msg_rates_incr: 5 };
  poll({
    read: (aborted) => get(`exchanges/${path(vhost, given)}`, asked, aborted), place: main, signal,
    show: (found) => moving.set(history(found.message_stats, ["publish_in", "publish_out"], true), SECONDS),
  });
}

/**
 * @param {string} vhost
 * @param {any} found
 */
function whereItGoes(vhost, found) {
  if (!found.routed) return h("p", { class: "note" }, "Nowhere: no binding matches, and the message would be lost (or returned, if it is mandatory).");
  const chosen = found.steps.filter((/** @type {any} */ step) => step.choice).map((/** @type {any} */ step) => `${step.exchange} chooses one of ${step.bindings} bindings by ${step.choice}.`);
  return h("div", { class: "scroll" }, chosen.length ? h("p", { class: "note" }, chosen.join(" ")) : null, h("table", { class: "cards", "aria-label": "Queues that the message reaches" }, h("tbody", null, found.queues.map((/** @type {any} */ queue) => h(
    "tr", null, h("th", { scope: "row" }, queueLink(vhost, queue.name)), h("td", { class: "wide" }, `by ${queue.way.map((/** @type {string} */ each) => each || "(default)").join(" → ")}${queue.delay ? `, after ${queue.delay} ms` : ""}`),
    h("td", null, queue.refuses ? badge(queue.refuses, "bad") : queue.needs_consumer ? badge("no consumer", "warn") : badge(`${queue.consumers} consuming`, queue.consumers ? "good" : "")),
  )))));
}

/** @param {string} vhost */
async function create(vhost) {
  const fields = await placeFields(vhost);
  await ask({
    title: "New exchange", action: "Create",
    fields: [
      ...fields,
      { name: "type", label: "Type", type: "select", options: TYPES, value: "topic" }, { name: "durable", label: "Durable: it is there after a restart", type: "checkbox", value: true },
      { name: "arguments", label: "Arguments (JSON)", value: "{}", hint: 'Such as {"alternate-exchange": "lost"}, {"x-delayed-type": "direct"}, {"hash-header": "customer"} or {"x-recent-history-length": 50}' },
    ],
    submit: async (values) => {
      await send("PUT", `exchanges/${path(values.vhost, values.name)}`, { type: values.type, durable: values.durable, arguments: JSON.parse(values.arguments || "{}") });
      location.hash = link("exchanges", [values.vhost, values.name]);
    },
  });
}

/**
 * @param {string} vhost
 * @param {string} name
 */
function remove(vhost, name) {
  return ask({
    title: `Delete the exchange ${name}`, action: "Delete it with its bindings", danger: true, typed: name,
    text: "Who publishes to it gets an error from then on. This cannot be undone.",
    submit: async () => {
      await send("DELETE", `exchanges/${path(vhost, name)}`);
      done(`${name} is deleted.`);
      location.hash = link("exchanges");
    },
  });
}
