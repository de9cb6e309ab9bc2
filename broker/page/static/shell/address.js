/**
 * Where programs reach this broker.
 *
 * @typedef {{host: string, port: number | null, isTLS: boolean}} Address `port`: null if the user may not know it
 */
import { get } from "./api.js";

/** @type {Promise<Address> | null} */
let asked = null;

/** @returns {Promise<Address>} */
export function address() {
  const host = location.hostname || "localhost";
  asked ??= get("overview", { columns: "listeners" }).then((found) => addressOf(found.listeners ?? [], host), () => {
    asked = null;
    return addressOf([], host);
  });
  return asked;
}

/**
 * @param {{protocol: string, port: number}[]} listeners
 * @param {string} host
 * @returns {Address}
 */
export function addressOf(listeners, host) {
  const port = (/** @type {string} */ protocol) => listeners.find((each) => each.protocol === protocol)?.port;
  const plain = port("amqp");
  return { host, port: plain ?? port("amqp/ssl") ?? null, isTLS: plain === undefined && port("amqp/ssl") !== undefined };
}

/**
 * The expression by which pika connects.
 * @param {Address} address
 * @param {string} vhost
 */
export function pikaConnection({ host, port, isTLS }, vhost) {
  const given = [JSON.stringify(host)];
  if (port !== null) given.push(String(port));
  if (vhost && vhost !== "/") given.push(`virtual_host=${JSON.stringify(vhost)}`);
  if (isTLS) given.push("ssl_options=pika.SSLOptions(ssl.create_default_context())");
  return `pika.BlockingConnection(pika.ConnectionParameters(${given.join(", ")}))`;
}
