/**
 * A round trip with amqplib over TLS: node talk.mjs HOST PORT CA CERTIFICATE KEY, the last two empty for none.
 * With a certificate it logs in by it (EXTERNAL). Prints "done" when every message was confirmed and came back.
 */
import { readFileSync } from "node:fs";
import amqplib from "amqplib";

process.on("uncaughtException", (error) => {
  console.error(String(error));
  process.exit(1);
});
const [host, port, ca, certificate, key] = process.argv.slice(2);
const BODIES = [Buffer.from("one"), Buffer.alloc(60_000, "two"), Buffer.from("three")];

const options = { ca: [readFileSync(ca)], servername: host };
if (certificate) {
  Object.assign(options, {
    cert: readFileSync(certificate), key: readFileSync(key), credentials: amqplib.credentials.external(),
  });
}
const user = certificate ? "" : "guest:guest@";
const connection = await amqplib.connect(`amqps://${user}${host}:${port}`, options);
connection.on("error", (error) => console.error(String(error)));
const channel = await connection.createConfirmChannel();
const { queue } = await channel.assertQueue("", { exclusive: true });
for (const body of BODIES) channel.sendToQueue(queue, body, { persistent: true });
await channel.waitForConfirms();
let count = 0;
await new Promise((resolve, reject) => {
  connection.on("close", () => reject(new Error("closed")));
  channel.consume(queue, (message) => {
    if (!message.content.equals(BODIES[count])) reject(new Error(`message ${count} is another`));
    channel.ack(message);
    if (++count === BODIES.length) resolve();
  });
});
await channel.close();
console.log("done");
process.exit(0);
