/** The pure parts of single pages. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { asCurl, asHex, asJson, asPika, octets, python, quoted } from "./static/pages/message_text.js";
import { added } from "./static/pages/publish_templates.js";
import { made } from "./static/pages/publish.js";
import { queueArguments } from "./static/pages/queue_form.js";
import { steps } from "./static/pages/reports.js";
import { program } from "./static/pages/start.js";
import { addressOf } from "./static/shell/address.js";
import { half } from "./static/shell/chart.js";
import { count, perSecond, short, zone } from "./static/shell/format.js";
import { prefixes } from "./static/shell/table_rows.js";

const AT = { host: "h", port: 5672, isTLS: false };

const MESSAGE = { exchange: "", routing_key: "it's", payload: "hé", payload_encoding: "string", properties: { delivery_mode: 2, headers: { ok: true, none: null } } };

test("a body is shown as JSON only if it is some", () => {
  assert.equal(asJson({ payload: '{"a":[1]}', payload_encoding: "string" }), '{\n  "a": [\n    1\n  ]\n}');
  for (const payload of ["{", "text", "5", ""]) assert.equal(asJson({ payload, payload_encoding: "string" }), null);
  assert.equal(asJson({ payload: "e30=", payload_encoding: "base64" }), null);
});

test("octets are shown in lines of sixteen", () => {
  assert.deepEqual([...octets({ payload: "AAH/", payload_encoding: "base64" })], [0, 1, 255]);
  assert.equal(asHex(octets(MESSAGE)), `000000  68 c3 a9${" ".repeat(39)}  h..`);
  assert.equal(asHex(new Uint8Array(17)).split("\n").length, 2);
});

test("a command and a program publish the same message", () => {
  assert.equal(quoted("it's"), "'it'\\''s'");
  assert.match(asCurl(MESSAGE, "http://h/api/", "/"), /^curl -u USER -X POST 'http:\/\/h\/api\/exchanges\/%2F\/amq.default\/publish'/);
  assert.match(asPika(MESSAGE, AT, "/"), /basic_publish\("", "it's", "hé"\.encode\(\), pika\.BasicProperties\(delivery_mode=2, headers=\{"ok": True, "none": None\}\)\)/);
  assert.match(asPika({ ...MESSAGE, payload: "AAE=", payload_encoding: "base64" }, AT, "/"), /^import base64\n/);
  assert.equal(python([1, "a", false]), '[1, "a", False]');
});

test("a form makes a message", () => {
  const form = { routing_key: "k", content_type: "", payload: "b", headers: '{"a":1}', persistent: true };
  assert.deepEqual(made(form), { routing_key: "k", properties: { headers: { a: 1 }, delivery_mode: 2 }, payload: "b", payload_encoding: "string" });
  assert.throws(() => made({ ...form, headers: "{" }), /not JSON/);
});

test("a form makes the arguments of a queue", () => {
  assert.deepEqual(queueArguments("classic", {}), {});
  assert.deepEqual(queueArguments("quorum", { "message-ttl": 5, "dead-letter-exchange": "dlx" }), { "x-queue-type": "quorum", "x-message-ttl": 5, "x-dead-letter-exchange": "dlx" });
  assert.deepEqual(queueArguments("stream", { "max-age": "7D" }), { "x-queue-type": "stream", "x-max-age": "7D" });
  assert.deepEqual(queueArguments("classic", { "dead-letter-routing-key": "dead" }), { "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead" });
});

test("a program has the address of this broker, whatever listens on the usual port", () => {
  const listeners = [{ protocol: "http", port: 15680 }, { protocol: "amqp/ssl", port: 5671 }, { protocol: "amqp", port: 26740 }];
  const plain = addressOf(listeners, "10.0.0.1");
  assert.match(program(plain, "/"), /ConnectionParameters\("10\.0\.0\.1", 26740\)/);
  assert.match(asPika(MESSAGE, plain, "v"), /ConnectionParameters\("10\.0\.0\.1", 26740, virtual_host="v"\)/);
  assert.match(program(plain, 'a"b'), /virtual_host="a\\"b"/);
  const tls = addressOf(listeners.slice(0, 2), "h");
  for (const text of [program(tls, "/"), asPika(MESSAGE, tls, "/")]) {
    assert.match(text, /^import ssl\n/m);
    assert.match(text, /ConnectionParameters\("h", 5671, ssl_options=pika\.SSLOptions\(ssl\.create_default_context\(\)\)\)/);
  }
  assert.match(program(addressOf([], "h"), "/"), /ConnectionParameters\("h"\)/);
});

test("the middle of an axis is no other number than it says", () => {
  const whole = (value) => String(Math.round(value));
  assert.equal(half(1, whole), "");
  assert.equal(half(5, whole), "");
  assert.equal(half(10, whole), "5");
  assert.equal(half(1, (value) => value.toFixed(1)), "0.5");
});

test("an axis has one unit, and no fraction that is none; thousands have commas everywhere", () => {
  assert.deepEqual([short(10000), half(10000, short)], ["10k", "5k"]);
  assert.deepEqual([perSecond(5000), half(5000, perSecond)], ["5,000/s", "2,500/s"]);
  assert.deepEqual([perSecond(5), half(5, perSecond)], ["5/s", "2.5/s"]);
  assert.deepEqual([perSecond(0.5), half(0.5, perSecond)], ["0.5/s", ""]);
  assert.equal(count(6034), "6,034");
});

test("queues are grouped by what their names begin with, if another begins so", () => {
  const rows = ["billing.a", "billing.b", "mail_in", "mail_out", "alone.x", "plain", ".odd"].map((name) => ({ name }));
  assert.deepEqual(rows.map(prefixes(rows)), ["billing.*", "billing.*", "mail_*", "mail_*", "others", "others", "others"]);
});

test("the way to a report names the directories of this broker", () => {
  assert.match(steps(null), /^# leveret.conf.*\nexport.dir = EXPORT\nmanagement.reports_url = .*\n\npip .*\n.* --input EXPORT --output REPORTS$/);
  assert.match(steps("/var/export"), /^# leveret.conf.*\nmanagement.reports_url = .*--input \/var\/export --output REPORTS$/s);
  assert.match(steps("/o'r"), /--input '\/o'\\''r' --output REPORTS$/);
});

test("a template keeps a message by its name, and nothing else", () => {
  const form = { routing_key: "k", payload: "b", password: "secret", times: 3, persistent: true };
  const once = added([], "one", form);
  assert.deepEqual(once, [{ name: "one", values: { routing_key: "k", payload: "b", persistent: true } }]);
  assert.deepEqual(added(once, "one", { payload: "c" }), [{ name: "one", values: { payload: "c" } }]);
  assert.equal(added(Array.from({ length: 60 }, (_, at) => ({ name: String(at), values: {} })), "new", form).length, 50);
});

test("a time of day has the zone of the viewer beside it", () => {
  assert.match(zone(), /^\S+$/);
});
