/** Messages as text: their bodies, and the program or the command that publishes one again. Pure. */
import { pikaConnection } from "../shell/address.js";

/**
 * The body of a message of the API.
 * @param {{payload: string, payload_encoding: string}} message
 * @returns {Uint8Array}
 */
export function octets({ payload, payload_encoding: encoding }) {
  if (encoding !== "base64") return new TextEncoder().encode(payload);
  return Uint8Array.from(atob(payload), (each) => each.charCodeAt(0));
}

/**
 * A body as JSON with indentation; null if it is none.
 * @param {{payload: string, payload_encoding: string}} message
 */
export function asJson({ payload, payload_encoding: encoding }) {
  if (encoding === "base64" || !/^\s*[[{"]/.test(payload)) return null;
  try {
    return JSON.stringify(JSON.parse(payload), null, 2);
  } catch {
    return null;
  }
}

/**
 * Octets in lines of sixteen: place, numbers, characters.
 * @param {Uint8Array} body
 */
export function asHex(body) {
  const lines = [];
  for (let at = 0; at < body.length; at += 16) {
    const some = [...body.subarray(at, at + 16)];
    const numbers = some.map((each) => each.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const shown = some.map((each) => (each > 31 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${numbers}  ${shown}`);
  }
  return lines.join("\n");
}

/**
 * A text as one word of a shell.
 * @param {string} text
 */
export function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/**
 * The command that publishes a message like this one.
 * @param {any} message
 * @param {string} base address of the API
 * @param {string} vhost
 */
export function asCurl(message, base, vhost) {
  const body = JSON.stringify({
    routing_key: message.routing_key, properties: message.properties, payload: message.payload,
    payload_encoding: message.payload_encoding,
  });
  const exchange = encodeURIComponent(message.exchange || "amq.default");
  return `curl -u USER -X POST ${quoted(`${base}exchanges/${encodeURIComponent(vhost)}/${exchange}/publish`)} \\\n  -d ${quoted(body)}`;
}

/**
 * A value as Python writes it.
 * @param {unknown} value
 * @returns {string}
 */
export function python(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${python(each)}`).join(", ")}}`;
  return JSON.stringify(value);
}

/**
 * The program that publishes a message like this one.
 * @param {any} message
 * @param {import("../shell/address.js").Address} address
 * @param {string} vhost
 */
export function asPika(message, address, vhost) {
  const properties = Object.entries(message.properties ?? {}).map(([key, value]) => `${key}=${python(value)}`).join(", ");
  const body = message.payload_encoding === "base64" ? `base64.b64decode(${python(message.payload)})` : `${python(message.payload)}.encode()`;
  return [
    ...(message.payload_encoding === "base64" ? ["import base64"] : []),
    ...(address.isTLS ? ["import ssl"] : []),
    "import pika", "",
    `connection = ${pikaConnection(address, vhost)}`,
    "channel = connection.channel()",
    `channel.basic_publish(${python(message.exchange)}, ${python(message.routing_key)}, ${body}, pika.BasicProperties(${properties}))`,
    "connection.close()",
  ].join("\n");
}
