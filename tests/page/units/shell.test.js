/** The pure modules of the page. Node runs this in a copy of the files (tests/page/test_modules.py). */
import assert from "node:assert/strict";
import { test } from "node:test";
import { urgency } from "./static/shell/attention.js";
import { count, counted, duration, latency, percent, rate, short, size, utc } from "./static/shell/format.js";
import { link, parse } from "./static/shell/route.js";
import { Rows, keyOf, smooth } from "./static/shell/rows.js";
import { added, ceiling, history, points, rates } from "./static/shell/series.js";
import { grouped, matcher, sorted } from "./static/shell/table_rows.js";
import { TailLines } from "./static/shell/tail_lines.js";

const COLUMNS = ["vhost", "name", "consumers", "messages_ready", "messages_unacknowledged", "publish", "deliver_get", "ack", "state"];
const row = (name, ready, publish, rest = {}) => {
  const made = { vhost: "/", name, consumers: 0, messages_ready: ready, messages_unacknowledged: 0, publish, deliver_get: 0, ack: 0, state: "running", ...rest };
  return COLUMNS.map((column) => made[column]);
};

test("numbers are short, and sizes and times have units", () => {
  assert.deepEqual([count(1234567), count(12), count(null), count(-1500)], ["1,234,567", "12", "–", "-1,500"]);
  assert.deepEqual([short(9999), short(12345), short(123456), short(12345678)], ["9,999", "12.3k", "123k", "12.3M"]);
  assert.deepEqual([rate(0), rate(0.01), rate(3.14), rate(250)], ["0", "<0.1", "3.1", "250"]);
  assert.deepEqual([size(0), size(1023), size(1536), size(3 * 2 ** 30), size(null)], ["0 B", "1023 B", "1.5 KiB", "3.0 GiB", "–"]);
  assert.deepEqual([duration(0.25), duration(5), duration(61), duration(3600), duration(90061), duration(NaN)], ["250 ms", "5.0 s", "1 min 1 s", "1 h", "1 d 1 h", "–"]);
  assert.deepEqual([latency(900), latency(1500), latency(25000), latency(2e6), latency(null)], ["900 µs", "1.5 ms", "25 ms", "2.0 s", "–"]);
  assert.deepEqual([percent(1, 3), percent(1, 0)], ["33 %", "–"]);
  assert.deepEqual([counted(1, "queue"), counted(2, "queue"), counted(2, "policy")], ["1 queue", "2 queues", "2 policies"]);
  assert.deepEqual([utc(0), utc(NaN), utc(2 ** 62)], ["1970-01-01 00:00:00 UTC", "", "year 146140482"]);
});

test("an address has any name, and is read back", () => {
  for (const name of ["a/b", "a?b=c&d", "#", "%2F", "<script>", " ", "ä😀"]) {
    const { page, names, query } = parse(link("queues", ["/", name], { tab: "messages" }));
    assert.deepEqual([page, names, query.get("tab")], ["queues", ["/", name], "messages"]);
  }
  assert.deepEqual([parse("").page, parse("#/").page, parse("#/queues/%").names], ["overview", "overview", ["%"]]);
});

test("rows are whole after the piece with the time", () => {
  const rows = new Rows();
  assert.equal(rows.take({ columns: COLUMNS, rows: [row("a", 1, 0)] }), false);
  assert.equal(rows.byKey.size, 0);
  assert.equal(rows.take({ rows: [row("b", 2, 0)], gone: [], at: 1000 }), true);
  assert.deepEqual([...rows.byKey.keys()], [keyOf("/", "a"), keyOf("/", "b")]);
  assert.equal(rows.byKey.get(keyOf("/", "b")).messages, 2);
});

test("rates come from counts, fade when nothing moves, and end", () => {
  const rows = new Rows();
  rows.take({ columns: COLUMNS, rows: [row("a", 0, 0), row("b", 0, 0)], at: 1000 });
  for (let at = 1; at <= 30; at += 1) rows.take({ rows: [row("a", 10 * at, 10 * at)], at: 1000 + 1000 * at });
  const found = () => rows.byKey.get(keyOf("/", "a"));
  assert.ok(Math.abs(found().incoming - 10) < 0.1 && Math.abs(found().growth - 10) < 0.1);
  assert.equal(rows.byKey.get(keyOf("/", "b")).incoming, 0);
  for (let at = 31; at <= 70; at += 1) rows.take({ rows: [], at: 1000 + 1000 * at });
  assert.deepEqual([found().incoming, found().growth, found().messages_ready, rows.moving.size], [0, 0, 300, 0]);
});

test("what is gone is gone, and a new beginning replaces all", () => {
  const rows = new Rows();
  rows.take({ columns: COLUMNS, rows: [row("a", 0, 0), row("b", 0, 0)], at: 1000 });
  rows.take({ rows: [], gone: [["/", "a"]], at: 2000 });
  assert.deepEqual([...rows.byKey.values()].map((each) => each.name), ["b"]);
  rows.take({ columns: COLUMNS, rows: [row("c", 0, 0)], at: 3000 });
  assert.deepEqual([...rows.byKey.values()].map((each) => each.name), ["c"]);
});

test("small rates are none", () => {
  assert.equal(smooth(0.05, 0, 10), 0);
  assert.ok(smooth(0, 100, 1) > 20);
});

test("queues with critical reasons come first, then the longest", () => {
  const queue = { health: [], messages: 0, incoming: 0, outgoing: 0 };
  const critical = { ...queue, health: [["critical", "no consumer", "Start it."]], messages: 1 };
  const warned = { ...queue, health: [["warning", "paused", "Resume it."]], messages: 5 };
  const order = [{ ...queue, messages: 1e9 }, warned, critical].sort((one, other) => urgency(other) - urgency(one));
  assert.deepEqual(order.map((each) => each.health[0]?.[1]), ["no consumer", "paused", undefined]);
});

test("rates between events, and none after a restart", () => {
  assert.deepEqual(rates({ at: 0, counts: { a: 1 } }, { at: 2000, counts: { a: 5 } }, ["a", "b"]), [2, 0]);
  assert.equal(rates({ at: 0, counts: { a: 9 } }, { at: 2000, counts: { a: 1 } }, ["a"]), null);
  assert.equal(rates({ at: 5, counts: {} }, { at: 5, counts: {} }, []), null);
});

test("samples of the API are turned round", () => {
  const source = { publish_details: { samples: [{ timestamp: 2000, sample: 30 }, { timestamp: 1000, sample: 10 }] } };
  assert.deepEqual(history(source, ["publish"], true), [{ at: 2000, values: [20] }]);
  assert.deepEqual(history(source, ["publish", "ack"], false), [{ at: 1000, values: [10, 0] }, { at: 2000, values: [30, 0] }]);
  assert.deepEqual(history(undefined, ["publish"], true), []);
});

test("old samples are dropped, and scales are round", () => {
  const samples = [];
  for (let at = 0; at < 100; at += 1) added(samples, { at: at * 1000, values: [at] }, 10);
  assert.ok(samples.length <= 12 && samples.at(-1).at === 99000);
  assert.deepEqual([0, 0.3, 1, 3, 7, 1200, -1].map(ceiling), [1, 0.5, 1, 5, 10, 2000, 1]);
  assert.deepEqual(points([{ at: 0, values: [0] }, { at: 10, values: [2] }], 0, 0, 10, 2, 100, 104), [[0, 104], [100, 4]]);
});

test("lines of a tail are counted, and the newest kept", () => {
  const tail = new TailLines(2);
  tail.take('\n{"time":1}\n{"ti');
  assert.deepEqual([tail.seen, tail.count], [1, 1]);
  tail.take('me":2}\n{"time":3}\n{"lost":7}\n');
  assert.deepEqual([tail.seen, tail.lost, tail.passed], [3, 7, 1]);
  assert.deepEqual(tail.shown(), [{ time: 2 }, { time: 3 }]);
  assert.equal(tail.count, 0);
  tail.take('{"end":"deleted"}\n');
  assert.deepEqual([tail.end, tail.seen], ["deleted", 3]);
});

test("rows are below their groups, which can be folded", () => {
  const rows = [{ v: "b", n: 1 }, { v: "__proto__", n: 2 }, { v: "b", n: 3 }];
  const text = (/** @type {string} */ name, /** @type {any[]} */ own) => `${name} ${own.length}`;
  const found = grouped(rows, (row) => row.v, text, new Set(["__proto__"]));
  assert.deepEqual(found, [{ group: "b", text: "b 2" }, rows[0], rows[2], { group: "__proto__", text: "__proto__ 1" }]);
});

test("rows with the same value are in the order of their names", () => {
  const rows = [{ n: "b", v: 1 }, { n: "a", v: 1 }, { n: "c", v: 2 }];
  assert.deepEqual(sorted(rows, (row) => row.v, true, (row) => row.n).map((row) => row.n), ["c", "a", "b"]);
  assert.deepEqual(sorted(rows, (row) => row.v, false).map((row) => row.n), ["b", "a", "c"]);
});

test("a filter has words or a regular expression, and shows that it is none", () => {
  const filter = { value: "", said: "", setCustomValidity(text) { this.said = text; } };
  const found = (value) => {
    filter.value = value;
    return ["billing.1", "Billing.22", "search.1", "/"].filter(matcher(filter));
  };
  assert.deepEqual(found(""), ["billing.1", "Billing.22", "search.1", "/"]);
  assert.deepEqual(found(" bILL"), ["billing.1", "Billing.22"]);
  assert.deepEqual(found("/^bill.*\\d\\d$/"), ["Billing.22"]);
  assert.deepEqual(found("/\\.1$"), ["billing.1", "search.1"]);
  assert.deepEqual(found("/"), ["/"]);
  assert.equal(filter.said, "");
  assert.deepEqual(found("/(/"), []);
  assert.match(filter.said, /Invalid regular expression/);
});
