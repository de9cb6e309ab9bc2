/** What to do first with a broker in which there is nothing yet. */
import { address, pikaConnection } from "../shell/address.js";
import { h, setText } from "../shell/elements.js";

/**
 * A program that publishes a message, with the address of this broker.
 * @param {import("../shell/address.js").Address} address
 * @param {string} vhost
 */
export function program(address, vhost) {
  return `${address.isTLS ? "import ssl\n" : ""}import pika  # pip install pika

connection = ${pikaConnection(address, vhost)}
channel = connection.channel()
channel.queue_declare("hello", durable=True)
channel.basic_publish("", "hello", b"Hello, world")
connection.close()`;
}

/** @param {string} vhost */
export function firstProgram(vhost) {
  const place = h("pre");
  address().then((found) => setText(place, program(found, vhost)));
  return place;
}

/**
 * Say that there is no queue, and how to get one.
 * @param {string} vhost
 */
export function gettingStarted(vhost) {
  return [
    h("p", null, "There are no queues yet. Programs declare them, or you do with “New queue”."),
    h("p", null, "This one declares a queue and publishes a message, and you see it here at once:"),
    firstProgram(vhost),
  ];
}
