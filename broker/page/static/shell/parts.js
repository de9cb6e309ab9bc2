/** Parts that most pages are made of. */
import { h } from "./elements.js";
import { moment, utc } from "./format.js";
import { link } from "./route.js";

/** @typedef {import("./elements.js").Children} Children */

/**
 * The heading of a page, with what can be done there, and the pages above it.
 * @param {string} title
 * @param {{actions?: Children, beside?: Children, above?: [string, string][]}} [more] `above`: titles and addresses
 */
export function heading(title, { actions = [], beside = [], above = [] } = {}) {
  return h(
    "div", { class: "page-head" },
    above.length ? h("nav", { class: "crumbs", "aria-label": "Above" }, above.map(([text, href]) => h("a", { href }, `‹ ${text}`))) : null,
    h("h1", null, title), ...[beside].flat(), h("div", { class: "actions" }, ...[actions].flat()),
  );
}

/**
 * A panel with a heading.
 * @param {string} title
 * @param {Children} body
 * @param {Children} [actions]
 * @param {boolean} [isFlush] true for a body up to the edges
 */
export function panel(title, body, actions = [], isFlush = false) {
  return h(
    "section", { class: "panel" },
    h("header", null, h("h2", null, title), h("div", { class: "actions" }, ...[actions].flat())),
    isFlush ? h("div", null, ...[body].flat()) : h("div", { class: "body" }, ...[body].flat()),
  );
}

/**
 * Facts with their names; facts without a value are left out.
 * @param {[string, Children][]} facts
 */
export function facts(facts) {
  return h("dl", { class: "facts" }, facts.filter(([, value]) => value !== null && value !== undefined && value !== "").flatMap(([name, value]) => [h("dt", null, name), h("dd", null, ...[value].flat())]));
}

/**
 * A figure with its name, which is a link if there is more to see.
 * @param {string} label
 * @param {string} [href]
 */
export function figure(label, href) {
  const value = h("div", { class: "value" }, "–");
  const inside = [h("div", { class: "label" }, label), value];
  return { element: href ? h("a", { class: "figure", href }, inside) : h("div", { class: "figure" }, inside), value };
}

/**
 * A word in colour, with a dot: the word says the same as the colour.
 * @param {string} text
 * @param {"good" | "warn" | "bad" | ""} [kind]
 * @param {string} [title]
 */
export function badge(text, kind = "", title = undefined) {
  return h("span", { class: `badge ${kind}`, title }, kind ? h("span", { class: "dot" }) : null, text);
}

/** What is special about a queue, by its abbreviation. @type {Record<string, string>} */
const FEATURES = {
  D: "durable", AD: "auto-delete: it goes with its last consumer", Excl: "exclusive to one connection", TTL: "messages expire (message-ttl)", Exp: "deleted when it is not used (expires)",
  Lim: "a maximum of messages (max-length)", "Lim B": "a maximum of bytes (max-length-bytes)", Ovfl: "publishes are refused when it is full (overflow)", DLX: "dead letters go to an exchange",
  DLK: "dead letters get a routing key", DL: "a maximum of deliveries (delivery-limit)", Pri: "priorities (max-priority)", SAC: "single active consumer", Hold: "messages are held until their time",
  Retry: "returned messages wait for a retry", Ret: "acknowledged messages are retained for a replay",
};

/**
 * What is special about a queue as chips, which a pointer explains.
 * @param {{features: string[], confirm_mode: string}} queue
 * @param {number} [most] how many are shown; the others are named by the last
 */
export function chips({ features, confirm_mode: mode }, most = Infinity) {
  const all = [...(mode === "standard" ? [] : [[mode, "when publishes are confirmed"]]), ...features.map((each) => [each, FEATURES[each]])];
  const hidden = all.slice(most);
  return [...all.slice(0, most).map(([name, meaning]) => badge(name, "", meaning)), hidden.length ? badge(`+${hidden.length}`, "", hidden.map((each) => each.join(": ")).join("; ")) : null];
}

/**
 * A moment in the zone of the viewer, with UTC as its title.
 * @param {number | null | undefined} milliseconds
 */
export function time(milliseconds) {
  if (!milliseconds) return h("span", null, "–");
  if (Number.isNaN(new Date(milliseconds).getTime())) return h("span", null, moment(milliseconds));
  return h("time", { datetime: new Date(milliseconds).toISOString(), title: utc(milliseconds) }, moment(milliseconds));
}

/**
 * A link to a queue, with its virtual host if that is not the one that is shown anyway.
 * @param {string} vhost
 * @param {string} name
 */
export function queueLink(vhost, name) {
  return h("a", { href: link("queues", [vhost, name]), title: name }, name || "(no name)");
}

/**
 * A link to an exchange; the default exchange has no name.
 * @param {string} vhost
 * @param {string} name
 */
export function exchangeLink(vhost, name) {
  return h("a", { href: link("exchanges", [vhost, name || "amq.default"]) }, name || "(default exchange)");
}

/**
 * A table of a few rows, which are cards on a phone. The first cell of a row is its name.
 * @param {string} label
 * @param {string[]} heads
 * @param {Children[][]} rows
 */
export function listed(label, heads, rows) {
  return h("div", { class: "scroll" }, h(
    "table", { class: "cards", "aria-label": label }, h("thead", null, h("tr", null, heads.map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", null, rows.map((cells) => h("tr", null, cells.map((cell, at) => (at ? h("td", { "data-label": heads[at] === "Actions" ? null : heads[at] }, ...[cell].flat()) : h("th", { scope: "row", class: "name" }, ...[cell].flat())))))),
  ));
}

/**
 * A button.
 * @param {string} text
 * @param {() => unknown} act
 * @param {string} [kind] class
 */
export function button(text, act, kind = "") {
  return h("button", { type: "button", class: kind || null, click: act }, text);
}

/**
 * A link that looks like a button.
 * @param {string} text
 * @param {string} href
 */
export function go(text, href) {
  return h("a", { class: "button", href }, text);
}
