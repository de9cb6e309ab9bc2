/** What to do first with a broker in which there is nothing yet. */
import { h } from "../shell/elements.js";

/**
 * A program that publishes a message, with the address of this broker.
 * @param {string} host
 * @param {string} vhost
 */
export function program(host, vhost) {
  const where = vhost && vhost !== "/" ? `, virtual_host=${JSON.stringify(vhost)}` : "";
  return `import pika  # pip install pika

connection = pika.BlockingConnection(pika.ConnectionParameters(${JSON.stringify(host)}${where}))
channel = connection.channel()
channel.queue_declare("hello", durable=True)
channel.basic_publish("", "hello", b"Hello, world")
connection.close()`;
}

/**
 * Say that there is no queue, and how to get one.
 * @param {string} vhost
 */
export function gettingStarted(vhost) {
  return [
    h("p", null, "There are no queues yet. Programs declare them, or you do with “New queue”."),
    h("p", null, "This one declares a queue and publishes a message, and you see it here at once:"),
    h("pre", null, program(location.hostname || "localhost", vhost)),
  ];
}
