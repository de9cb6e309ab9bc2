/** The form for a new queue. Pure but for its types. */

/** @typedef {import("../shell/dialog.js").Field} Field */

/**
 * The fields of the form.
 * @param {string[]} vhosts
 * @returns {Field[]}
 */
export function queueFields(vhosts) {
  return [
    { name: "name", label: "Name", required: true },
    { name: "vhost", label: "Virtual host", type: "select", options: vhosts, value: vhosts[0] },
    { name: "type", label: "Type", type: "select", options: ["classic", "quorum"], value: "classic" },
    { name: "durable", label: "Durable: it is there after a restart", type: "checkbox", value: true },
    { name: "ttl", label: "Messages expire after (ms)", type: "number", hint: "Empty for never" },
    { name: "length", label: "Maximum number of messages", type: "number", hint: "Empty for no limit" },
    { name: "exchange", label: "Dead letters go to the exchange", hint: "Empty: they are dropped. (default) is the default exchange" },
    { name: "key", label: "… with the routing key", hint: "Empty: that of the message. With the default exchange, the name of a queue" },
  ];
}

/**
 * The arguments of the queue that a form describes.
 * @param {Record<string, any>} values
 * @returns {Record<string, unknown>}
 */
export function queueArguments(values) {
  /** @type {Record<string, unknown>} */
  const found = {};
  if (values.type === "quorum") found["x-queue-type"] = "quorum";
  if (values.ttl !== undefined) found["x-message-ttl"] = values.ttl;
  if (values.length !== undefined) found["x-max-length"] = values.length;
  if (values.exchange) found["x-dead-letter-exchange"] = values.exchange === "(default)" ? "" : values.exchange;
  if (values.key) {
    found["x-dead-letter-exchange"] ??= "";
    found["x-dead-letter-routing-key"] = values.key;
  }
  return found;
}
