/** The dialog that publishes a message, and remembers the last one and named templates. */
import { path, send } from "../shell/api.js";
import { ask } from "../shell/dialog.js";
import { counted } from "../shell/format.js";
import { recall, remember } from "../shell/memory.js";
import { done, failed } from "../shell/notices.js";
import { templates } from "./publish_templates.js";

/**
 * Ask for a message and publish it.
 * @param {string} vhost
 * @param {string} exchange
 * @param {string} [key]
 */
export async function publish(vhost, exchange, key = "") {
  const last = recall("publish", {});
  await ask({
    title: exchange ? `Publish to ${exchange}` : `Publish to the queue ${key}`, action: "Publish",
    fields: [
      { name: "routing_key", label: "Routing key", value: key || last.routing_key || "" },
      { name: "content_type", label: "Content type", value: last.content_type ?? "application/json" },
      { name: "payload", label: "Body", type: "textarea", value: last.payload ?? '{"hello": "world"}' },
      { name: "headers", label: "Headers (JSON)", type: "textarea", rows: 3, value: last.headers ?? "{}" },
      { name: "times", label: "How many", type: "number", value: 1 },
      { name: "persistent", label: "Persistent: it is there after a restart", type: "checkbox", value: last.persistent ?? true },
    ],
    below: templates,
    submit: async (values) => {
      const message = made(values);
      remember("publish", values);
      const times = Math.min(1000, Math.max(1, values.times ?? 1));
      let routed = true;
      for (let number = 0; number < times; number += 1) {
        routed = (await send("POST", `exchanges/${path(vhost, exchange || "amq.default")}/publish`, message)).routed;
      }
      if (routed) done(`${counted(times, "message")} published.`);
      else failed(new Error("Published, but no queue is bound for this routing key: the message is gone."));
    },
  });
}

/**
 * The body of the request for a form.
 * @param {Record<string, any>} values
 */
export function made({ routing_key, content_type, payload, headers, persistent }) {
  let parsed;
  try {
    parsed = JSON.parse(headers || "{}");
  } catch {
    throw new Error("The headers are not JSON.");
  }
  const properties = { headers: parsed, delivery_mode: persistent ? 2 : 1, ...(content_type ? { content_type } : {}) };
  return { routing_key, properties, payload, payload_encoding: "string" };
}
