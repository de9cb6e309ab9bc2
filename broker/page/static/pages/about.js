/** About this broker: version, listeners, places of its files, its settings. */
import { get } from "../shell/api.js";
import { h } from "../shell/elements.js";
import { duration } from "../shell/format.js";
import { badge, facts, heading, panel } from "../shell/parts.js";

export const title = "About";

/** @param {import("../app.js").Place} place */
export async function show({ main, user, signal }) {
  const [overview, nodes, features] = await Promise.all([get("overview", {}, signal), user.monitors ? get("nodes", {}, signal) : [], get("deprecated-features", {}, signal).catch(() => [])]);
  const [node] = nodes;
  main.append(heading("About"), h("div", { class: "stack" },
    panel("Broker", facts([
      ["Leveret", overview.leveret_version], ["Behaves like RabbitMQ", overview.rabbitmq_version], ["Python", overview.erlang_version], ["Cluster name", overview.cluster_name],
      ["Node", overview.node], ["Process", node?.os_pid], ["Up for", node ? duration(node.uptime / 1000) : null], ["Data directory", node ? (node.db_dir ? h("code", null, node.db_dir) : "none: this broker keeps everything in memory") : null],
      ["Configuration", node ? node.config_files.join(", ") || "none: all defaults" : null], ["Logs", node?.log_files.join(", ")],
      ["Listeners", (overview.listeners ?? []).map((/** @type {any} */ each) => badge(`${each.protocol} ${each.ip_address}:${each.port}`))],
    ])),
    features.length ? panel("Deprecated features of RabbitMQ", h("p", { class: "row" }, features.map((/** @type {any} */ each) => badge(`${each.name}: ${each.state}`, each.state === "denied" ? "warn" : "", each.desc)))) : null,
    panel("You", facts([["User", user.name], ["Tags", user.tags.map((tag) => badge(tag))], ["Keys", ["Press ", h("kbd", null, "?"), " for all of them."]]])),
    panel("API", h("p", null, "All that this page shows and does is in the HTTP API: ", h("a", { href: "api/openapi.json" }, "its description (OpenAPI)"), "."))));
  if (!user.administers) return;
  const settings = await get("config/effective", {}, signal);
  main.lastElementChild?.append(panel("Settings in effect", h("details", null, h("summary", null, "Show all"), h("pre", { tabindex: "0" }, String(settings)))));
}
