"""Rows of the export, compared with what was done to the broker."""

from typing import Any

import msgspec
import pytest
from doubles.fakes import Client, DiskNode, Node

from leveret.broker.amqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue, make
from leveret.broker.config.config import ExportConfig, StorageConfig
from leveret.broker.export.rows import FULL_MS, Rows
from leveret.broker.export.tables import TABLES
from leveret.broker.statistics.node_figures import Process

PROCESS = Process(open_files=2, max_files=9, user_seconds=3e-6, system_seconds=4e-6, rss=1)
NAMES = {table.struct: name for name, table in TABLES.items()}


class Looking:
    """A sampler that takes the rows of a broker when a test says so."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.rows = Rows(node, node="n@h", boot_id="b", clock=node.loop.monotonic)
        self.rows.begin()

    def look(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of one sample, by table."""
        found: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows.take(self.node.wall_clock(), PROCESS, 0):
            if row is not None:
                found.setdefault(NAMES[type(row)], []).append(msgspec.to_builtins(row))
        return found

    def queue(self, name: str = "q") -> dict[str, Any]:
        (row,) = [row for row in self.look()["queue_interval"] if name == row["queue"]]
        return row


@pytest.fixture
def node(tmp_path) -> Node:
    """A broker with sampling enabled."""
    return Node(export=ExportConfig(dir=tmp_path))


@pytest.fixture
def looking(node) -> Looking:
    return Looking(node)


def chosen(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names}


def test_a_queue_s_row_counts_what_was_done(node, looking):
    """Publishes, deliveries, gets, acks, rejects and requeues are in their columns, and nowhere else."""
    client = Client(node)
    client.declare("q")
    client.ask(make(Basic.Get, 0, "q", False))
    for _ in range(10):
        client.publish("q", b"body")
    for _ in range(4):
        client.ask(make(Basic.Get, 0, "q", False))
    client.send(Basic.Ack(1, False))
    client.send(Basic.Reject(2, False))
    client.send(Basic.Reject(3, True))
    client.ask(make(Basic.Get, 0, "q", True))
    row = looking.queue()

    assert {"pub": 10, "delivered": 5, "got": 5, "get_empty": 1, "redelivered": 1} == chosen(
        row, "pub", "delivered", "got", "get_empty", "redelivered"
    )
    assert {"acked": 1, "rejected": 1, "requeued": 1, "ready": 6, "unacked": 1} == chosen(
        row, "acked", "rejected", "requeued", "ready", "unacked"
    )
    assert ("n@h", "b", "/", "classic", "standard", 1) == tuple(
        row[name] for name in ("node", "boot_id", "vhost", "type", "mode", "v")
    )


def test_what_a_queue_discards_is_counted_by_reason(node, looking):
    """Expired, overflown and purged messages are counted apart, and dead letters are counted."""
    client = Client(node)
    client.declare("dead")
    client.declare(
        "q",
        arguments={
            "x-message-ttl": ("signedint", 100),
            "x-max-length": ("signedint", 5),
            "x-dead-letter-exchange": ("longstr", ""),
            "x-dead-letter-routing-key": ("longstr", "dead"),
        },
    )
    for _ in range(7):
        client.publish("q")
    node.pass_time(200)
    client.publish("q")
    client.ask(make(Queue.Purge, 0, "q", False))

    assert {"dropped": 2, "expired": 5, "dead_lettered": 7, "purged": 1, "pub": 8, "ready": 0} == chosen(
        looking.queue(), "dropped", "expired", "dead_lettered", "purged", "pub", "ready"
    )
    assert 7 == client.node.vhosts["/"].queues["dead"].published


@pytest.mark.parametrize("mode", ["consumer-ack", "consumer-ack-light"])
def test_promises_are_counted(node, looking, mode):
    """Publishes that wait for consumer acks are counted as accepted or refused."""
    client = Client(node)
    client.declare("q", arguments={"x-confirm-mode": ("longstr", mode)})
    client.send(make(Confirm.Select, False))
    for _ in range(6):
        client.publish("q")
    for _ in range(3):
        client.ask(make(Basic.Get, 0, "q", False))
    client.send(Basic.Ack(2, True))
    before = looking.queue()
    client.ask(make(Queue.Purge, 0, "q", False))

    assert {"promised": 4, "accepted": 2, "refused": 0, "mode": mode} == chosen(
        before, "promised", "accepted", "refused", "mode"
    )
    assert {"promised": 1, "accepted": 2, "refused": 3} == chosen(
        looking.queue(), "promised", "accepted", "refused"
    )


def test_a_queue_at_rest_has_a_row_once_a_minute(node, looking):
    """A changed queue has a row in each sample, an idle one once a minute, so that readers know it exists."""
    Client(node).declare("q")
    first = looking.look()["queue_interval"]
    node.clock.now += 5
    second = looking.look().get("queue_interval", [])
    node.clock.now += FULL_MS / 1000
    third = looking.look()["queue_interval"]

    assert [1, 0, 1] == [len(first), len(second), len(third)]


def test_after_a_loss_everything_is_written_again(node, looking):
    """Rows that were not written are written again, changed or not."""
    Client(node).declare("q")
    looking.look()
    looking.rows.forget()

    assert {"queue_interval", "exchange_interval", "conn_interval"} <= set(looking.look())


def test_what_is_gone_has_a_last_row(node, looking):
    """A deleted queue, a deleted exchange and a closed connection have a last row, with their final counters."""
    client = Client(node)
    client.declare("q")
    client.ask(make(Exchange.Declare, 0, "e", "fanout", False, False, False, False, False, {}))
    looking.look()
    client.publish("q")
    client.publish("k", exchange="e")
    client.ask(make(Queue.Delete, 0, "q", False, False, False))
    client.ask(make(Exchange.Delete, 0, "e", False, False))
    client.connection.lost()
    gone, after = looking.look(), looking.look()

    assert [("q", 1, 0)] == [(row["queue"], row["pub"], row["ready"]) for row in gone["queue_interval"]]
    assert [1] == [row["pub_in"] for row in gone["exchange_interval"] if "e" == row["exchange"]]
    assert [("closing", 2)] == [(row["state"], row["published"]) for row in gone["conn_interval"]]
    assert {"node_interval"} == set(after)


def test_a_queue_made_again_begins_anew(node, looking):
    """Two queues of one name are distinguished by their creation times."""
    client = Client(node)
    client.declare("q")
    client.publish("q")
    first = looking.queue()
    client.ask(make(Queue.Delete, 0, "q", False, False, False))
    node.pass_time(1000)
    client.declare("q")
    rows = {row["since_ms"]: row["pub"] for row in looking.look()["queue_interval"]}

    assert {first["since_ms"]: 1, first["since_ms"] + 1000: 0} == rows


def test_areas_give_exact_averages(node, looking):
    """The difference of areas between two rows is messages times time, whatever happens in between."""
    client = Client(node)
    client.declare("q")
    before = looking.queue()
    client.publish("q")
    node.pass_time(300)
    client.publish("q")
    node.pass_time(700)
    client.ask(make(Queue.Purge, 0, "q", False))
    node.pass_time(1000)
    after = looking.queue()
    elapsed = after["mono_us"] - before["mono_us"]

    assert 2_000_000 == elapsed
    assert (1 * 300 + 2 * 700) * 1000 == after["area_ready"] - before["area_ready"]
    assert after["area_ready"] == after["area_alpha"]


def exchange_row(rows: dict[str, Any], name: str) -> dict[str, Any]:
    (row,) = [row for row in rows["exchange_interval"] if name == row["exchange"]]
    return row


def test_an_exchange_s_row_adds_up(node, looking):
    """Every publish to an exchange was routed, returned or dropped, and copies are counted."""
    client = Client(node)
    for queue in ("a", "b"):
        client.declare(queue)
        client.ask(make(Queue.Bind, 0, queue, "amq.fanout", "", False, {}))
    client.ask(make(Queue.Bind, 0, "a", "amq.direct", "k", False, {}))
    for _ in range(3):
        client.publish("k", exchange="amq.fanout")
        client.publish("k", exchange="amq.direct")
        client.publish("nowhere", exchange="amq.direct")
    client.publish("nowhere", exchange="amq.direct", mandatory=True)
    client.publish("k", exchange="amq.direct", headers={"CC": ("array", [("longstr", "k2")])})
    rows = looking.look()
    names = ("pub_in", "routed", "unroutable_returned", "unroutable_dropped", "fanout_sum", "bindings")

    assert [3, 3, 0, 0, 6, 2] == [exchange_row(rows, "amq.fanout")[name] for name in names]
    assert [8, 4, 1, 3, 4, 1] == [exchange_row(rows, "amq.direct")[name] for name in names]


def test_binding_keys_have_rows(node, looking):
    """A topic exchange has a row per binding key with the number of messages that the key has matched."""
    client = Client(node)
    client.declare("q")
    for pattern in ("a.*", "#", "b"):
        client.ask(make(Queue.Bind, 0, "q", "amq.topic", pattern, False, {}))
    for key in ("a.x", "a.y", "a.x", "c"):
        client.publish(key, exchange="amq.topic")
    found = {row["pattern"]: (row["matches"], row["error"]) for row in looking.look()["topic_pattern"]}

    assert {"#": (4, 0), "a.*": (3, 0), "b": (0, 0)} == found


def test_a_connection_s_counters_never_fall(node, looking):
    """Counters of a closed channel stay in those of its connection and of the node."""
    client = Client(node)
    client.declare("q")
    client.send(Channel.Open(), channel=2)
    client.publish("q", channel=2)
    (before,) = looking.look()["conn_interval"]
    client.send(make(Channel.Close, 200, "", 0, 0), channel=2)
    client.publish("q")
    found = looking.look()
    (after,) = found["conn_interval"]

    assert [(1, 2), (2, 1)] == [(row["published"], row["channels"]) for row in (before, after)]
    assert 2 == found["node_interval"][0]["published"]
    client.connection.lost()
    assert 2 == looking.look()["node_interval"][0]["published"]


def test_a_connection_says_who_it_is(node, looking):
    """The row of a connection has user, vhost, address and state, and the reasons for which its channels wait."""
    client = Client(node)
    client.declare("q")
    client.consume("q")
    client.publish("q")
    (row,) = looking.look()["conn_interval"]

    assert ("127.0.0.1:50000 -> 127.0.0.1:5672", "guest", "/", "127.0.0.1", "running") == tuple(
        row[name] for name in ("conn_id", "user", "vhost", "peer", "state")
    )
    assert {"consumers": 1, "unacked": 1, "delivered": 1, "acked": 0, "unconfirmed": 0} == chosen(
        row, "consumers", "unacked", "delivered", "acked", "unconfirmed"
    )


def test_the_node_s_row_sums_up(node, looking):
    """Every sample has one row of the node, with the sums of all its objects."""
    client = Client(node)
    for queue in ("a", "b"):
        client.declare(queue)
        client.publish(queue)
    (row,) = looking.look()["node_interval"]

    assert {
        "connections": 1,
        "channels": 1,
        "queues": 2,
        "ready": 2,
        "rss": 1,
        "fds": 2,
        "alarms": [],
    } == chosen(row, "connections", "channels", "queues", "ready", "rss", "fds", "alarms")
    assert {
        "queues_created": 2,
        "published": 2,
        "cpu_user_us": 3,
        "cpu_sys_us": 4,
        "disk_free": -1,
    } == chosen(row, "queues_created", "published", "cpu_user_us", "cpu_sys_us", "disk_free")


def test_what_happens_is_reported(node, looking):
    """Connections, queues, exchanges, policies, logins and alarms have events, in order."""
    client = Client(node)
    client.declare("q")
    client.ask(make(Exchange.Declare, 0, "e", "fanout", False, False, False, False, False, {}))
    client.publish("q")
    client.ask(make(Basic.Consume, 0, "q", "tag", False, False, False, False, {}))
    client.ask(make(Basic.Cancel, "tag", False))
    client.ask(make(Queue.Delete, 0, "q", False, False, False))
    for limit in (1, 1 << 50):
        node.resource_monitor.memory.limit = limit
        node.resource_monitor.check_memory(0)
    client.connection.lost()
    stranger = Client(node, connect=False)
    stranger.receive(b"AMQP\x00\x00\x09\x01")
    stranger.send(make(Connection.StartOk, {}, "PLAIN", "\0me\0secret", "en_US"), channel=0)
    events = looking.look()["event"]

    assert [
        ("connection_opened", "/", client.connection.name),
        ("queue_created", "/", "q"),
        ("exchange_created", "/", "e"),
        ("consumer_added", "/", "q"),
        ("consumer_removed", "/", "q"),
        ("queue_deleted", "/", "q"),
        ("alarm_raised", "", "memory"),
        ("alarm_cleared", "", "memory"),
        ("connection_closed", "/", client.connection.name),
        ("auth_failed", "", "me"),
    ] == [(event["kind"], event["vhost"], event["name"]) for event in events]
    assert (
        {"user": "guest", "connection": client.connection.name} == events[3]["detail"] == events[4]["detail"]
    )
    assert {"peer": "127.0.0.1", "mechanism": "PLAIN"} == events[-1]["detail"]
    assert "secret" not in str(events)


def test_measured_times_have_rows_once(node, looking):
    """Each histogram covers the latencies since the last sample; a metric without any has no row."""
    client = Client(node)
    client.declare("q")
    client.send(make(Confirm.Select, False))
    client.publish("q")
    node.pass_time(50)
    client.consume("q", no_ack=True)
    found = {(row["metric"], row["mode"]): row for row in looking.look()["latency_hist"]}
    deliver = found["deliver", "standard"]

    assert {("confirm", "standard"), ("deliver", "standard"), ("residence", "standard")} == set(found)
    assert ("queue", "/", "q", "ll5", 1, 50_000) == tuple(
        deliver[name] for name in ("scope", "vhost", "name", "scheme", "count", "sum_us")
    )
    assert 1 == sum(bucket["c"] for bucket in deliver["b"])
    assert "latency_hist" not in looking.look()


def test_a_paged_queue_tells_its_states(tmp_path):
    """Ready messages are alpha, beta, gamma or delta, their number is the sum, and so are the areas."""
    storage = StorageConfig(sync=False, check_invariants=True, target_ram_count=10, segment=16, io_batch=1)
    node = DiskNode(tmp_path / "data", export=ExportConfig(dir=tmp_path / "out"), storage=storage)
    looking = Looking(node)
    client = Client(node)
    client.declare("q", durable=True)
    client.declare("mixed", durable=True)
    client.declare("transient")
    for number in range(120):
        client.publish("q", b"x" * 100, delivery_mode=2)
        client.publish("mixed", b"x" * 100, delivery_mode=1 + number % 2)
        client.publish("transient", b"x" * 100)
        node.commit()
        node.disk.monitor.look(node.clock.now)
        node.pass_time(10)
    rows = {row["queue"]: row for row in looking.look()["queue_interval"]}

    for row in rows.values():
        assert 120 == row["ready"] == row["alpha"] + row["beta"] + row["gamma"] + row["delta"]
        assert row["area_ready"] == pytest.approx(
            row["area_alpha"] + row["area_beta"] + row["area_gamma"] + row["area_delta"], abs=4
        )
        assert row["t_ab"] + row["t_ag"] > 0
        assert row["delta"] > 0
        assert row["area_delta"] > 0
    assert 0 == rows["q"]["beta"] == rows["q"]["t_ab"]
    assert 0 == rows["transient"]["gamma"] == rows["transient"]["t_ag"]
    assert (10.0, 0) == (rows["q"]["target_ram"], rows["q"]["damaged"])
    client.connection.lost()
    node.disk.close()


def test_looking_can_pause_anywhere(node, looking):
    """Sampling may pause between any two rows while objects come and go: nothing fails or is counted twice."""
    client = Client(node)
    for number in range(20):
        client.declare(f"q{number}")
        client.publish(f"q{number}")
    seen = set()
    for at, row in enumerate(looking.rows.take(node.wall_clock(), PROCESS, 0)):
        seen.add(getattr(row, "queue", ""))
        if at < 20:
            client.ask(make(Queue.Delete, 0, f"q{at}", False, False, False))
            client.declare(f"r{at}")
            client.send(Channel.Open(), channel=at + 2)
        elif at < 40:
            client.send(make(Channel.Close, 200, "", 0, 0), channel=at - 18)
    found = looking.look()

    seen |= {row["queue"] for row in found.get("queue_interval", [])}
    assert {f"r{number}" for number in range(20)} <= seen
    assert 20 == found["node_interval"][0]["published"]


def test_the_areas_of_a_queue_end_with_it(node, looking):
    """A deleted queue's messages count in its areas until the deletion, and in no level of its last row."""
    client = Client(node)
    client.declare("q")
    for _ in range(5):
        client.publish("q")
    client.ask(make(Basic.Get, 0, "q", False))
    looking.queue()
    node.pass_time(1000)
    client.ask(make(Queue.Delete, 0, "q", False, False, False))
    node.pass_time(4000)
    row = looking.queue()

    assert (0, 0) == (row["ready"], row["unacked"])
    assert (4_000_000, 1_000_000) == (row["area_ready"], row["area_unacked"])


def test_queues_and_exchanges_of_a_deleted_vhost_are_still_counted(node, looking):
    """Counters of a deleted vhost stay, and its exchanges have rows like any others."""
    node.directory.add_vhost("v")
    node.administration.users.set_permissions(None, "v", "guest", configure=".*", write=".*", read=".*")
    client = Client(node, vhost="v")
    client.declare("q")
    client.ask(make(Exchange.Declare, 0, "x", "direct", False, False, False, False, False, {}))
    before = looking.look()["node_interval"][0]
    node.administration.vhosts.delete(None, "v")
    found = looking.look()
    after = found["node_interval"][0]

    assert (1, 0) == (before["queues_created"], before["queues_deleted"])
    assert (1, 1) == (after["queues_created"], after["queues_deleted"])
    assert "x" in {row["name"] for row in found["event"] if "exchange_deleted" == row["kind"]}


def test_areas_never_fall(node, looking):
    """A turn that began before a sample takes nothing from the areas sampled."""
    publisher, one, other = Client(node), Client(node, port=50001), Client(node, port=50002)
    publisher.declare("q")
    one.consume("q")
    for _ in range(100):
        publisher.publish("q")
    node.pass_time(1)
    node.clock.now += 0.9
    before = looking.queue()
    node.clock.now += 0.01
    one.connection.lost()
    node.finish_turn()
    other.consume("q")
    after = looking.queue()

    assert before["area_ready"] <= after["area_ready"] < before["area_ready"] + 100 * 20_000
    assert before["area_unacked"] <= after["area_unacked"]


def test_what_a_restart_brings_back_has_not_happened(tmp_path):
    """Queues and exchanges of an earlier run have no creation events and are not counted as created."""
    first = DiskNode(tmp_path, export=ExportConfig(dir=tmp_path / "export"))
    client = Client(first)
    client.declare("q", durable=True)
    first.commit()
    client.ask(make(Exchange.Declare, 0, "x", "topic", False, True, False, False, False, {}))
    first.commit()
    client.connection.lost()
    second = first.restarted()
    found = Looking(second).look()

    assert "event" not in found
    assert ["q"] == [row["queue"] for row in found["queue_interval"]]
    assert 0 == found["node_interval"][0]["queues_created"]
