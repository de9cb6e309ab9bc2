"""Scrapes: RabbitMQ's dashboard finds its metrics, and values agree with what happened."""

import gc
import re
import time
from collections.abc import Iterator

import pytest
from doubles.fakes import Client, DiskNode, Node
from grafana import promql
from grafana.dashboard_10991 import EXPRESSIONS, SIZE_BOUNDS, TARGET_LABELS, VARIABLES
from grafana.exposition import Scraped
from hypothesis import given, settings, strategies as st

from leveret.broker.amqp.commands import Basic, Channel, Confirm, Exchange, Queue, make
from leveret.broker.metrics import scrape
from leveret.broker.metrics.aggregates import NODE_GROUPS, SIZE_LABELS
from leveret.broker.metrics.per_object import CHANNELS, CONNECTIONS, EXCHANGES, QUEUES
from leveret.broker.metrics.sampler import Process, Selection
from leveret.broker.metrics.scrape import PATTERN_OCTETS, UnusablePatternError, pattern
from leveret.broker.process.memory import THRESHOLDS

PROCESS = Process(20, 1024, 1.5, 0.5, 1.6e9)
LIGHT = {"x-confirm-mode": ("longstr", "consumer-ack-light")}
READY = re.compile(r"rabbitmq_(detailed_)?queue_messages_ready[ {]")
MOST_SECONDS = 0.05
"""Longest time in seconds that a scrape may keep others from running."""


def scraped(node: Node) -> Scraped:
    """Return the answer to `/metrics`."""
    return Scraped(scrape.aggregated(node, PROCESS))


def per_object(node: Node) -> Scraped:
    """Return the answer to `/metrics/per-object`."""
    return Scraped(scrape.per_object(node, PROCESS))


def detailed(node: Node, *families: str, **selection) -> Scraped:
    """Return the answer to `/metrics/detailed`."""
    return Scraped(scrape.detailed(node, Selection(frozenset(families), **selection), PROCESS))


# -- the dashboard ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def untouched(tmp_path_factory) -> Scraped:
    """The answer of a broker that has not been used."""
    node = DiskNode(tmp_path_factory.mktemp("data"))
    node.resource_monitor.disk.check(10**9)
    node.directory.rename_cluster("c")
    found = scraped(node)
    node.disk.close()
    return found


@pytest.mark.parametrize("expression", [*EXPRESSIONS, *VARIABLES])
def test_the_dashboard_finds_each_metric_with_its_labels(untouched, expression):
    """Every metric of the dashboard exists before anything has happened, with its labels and the right type."""
    parsed = promql.parse(expression)
    identity = dict(next(iter(untouched.values("rabbitmq_identity_info"))))
    build = dict(next(iter(untouched.values("rabbitmq_build_info"))))

    assert parsed.selectors
    for metric, matchers, function, _ in parsed.selectors:
        found = untouched.values(metric)
        assert found, metric
        for label, operator, value in matchers:
            if label not in TARGET_LABELS:
                assert all(label in dict(labels) for labels in found), (metric, label)
            if operator == "=" and label not in TARGET_LABELS:
                assert any(value == dict(labels)[label] for labels in found), (metric, label, value)
        counts = untouched.kind(metric) in {"counter", "histogram"}
        assert counts is (function in promql.RATES), metric
    assert parsed.joined <= TARGET_LABELS
    assert parsed.taken <= identity.keys() | build.keys()
    assert parsed.by <= identity.keys() | TARGET_LABELS


def test_there_is_one_identity(untouched):
    """The identity metric has one series: each panel multiplies by it, and two would be an error on all of them."""
    assert 1 == len(untouched.values("rabbitmq_identity_info"))
    assert 1 == len(untouched.values("rabbitmq_build_info"))


def test_operands_have_equal_labels(untouched):
    """Operands of a sum or difference have the same series."""
    name = "rabbitmq_global_messages_delivered_consume_{}_ack_total"

    assert untouched.values(name.format("auto")).keys() == untouched.values(name.format("manual")).keys()
    assert (
        untouched.values("rabbitmq_global_messages_received_confirm_total").keys()
        == untouched.values("rabbitmq_global_messages_confirmed_total").keys()
    )


def test_size_bounds_are_written_as_rabbitmq_does():
    """Bounds of size buckets are written as RabbitMQ does, because dashboards compare them as text."""
    assert SIZE_BOUNDS == (*SIZE_LABELS, "+Inf")


# -- counters of events -----------------------------------------------------------------------------------------------

PROTOCOL = {"protocol": "amqp091"}
CLASSIC = {**PROTOCOL, "queue_type": "rabbit_classic_queue"}


def test_messages_are_reported(node):
    """The actions of a publisher and a consumer change RabbitMQ's metrics for them by the right amounts."""
    publisher, consumer = Client(node), Client(node, port=50001)
    publisher.ask(Confirm.Select())
    publisher.declare("q")
    before = scraped(node)
    publisher.publish("q", b"x" * 150)
    publisher.publish("q", b"y")
    publisher.publish("nowhere")
    publisher.publish("nowhere", mandatory=True)
    consumer.ask(make(Basic.Get, 0, "q", True))
    consumer.consume("q")
    consumer.send(make(Basic.Ack, 2, False))
    consumer.ask(make(Basic.Get, 0, "q", False))

    after = scraped(node)

    found = {
        name.removeprefix("rabbitmq_global_messages_"): change
        for name, change in after.changed(before).items()
        if name.startswith("rabbitmq_global_messages")
    }
    expected = {
        "received_total": 4,
        "received_confirm_total": 4,
        "confirmed_total": 4,
        "routed_total": 2,
        "unroutable_dropped_total": 1,
        "unroutable_returned_total": 1,
        "delivered_total": 2,
        "delivered_consume_manual_ack_total": 1,
        "delivered_get_auto_ack_total": 1,
        "get_empty_total": 1,
        "acknowledged_total": 1,
    }
    assert expected == found
    assert 1 == after.value("rabbitmq_global_messages_acknowledged_total", **CLASSIC)
    sizes = [
        after.value("rabbitmq_message_size_bytes_bucket", le=le, **PROTOCOL)
        for le in ("100.0", "1000.0", "+Inf")
    ]
    assert [3, 4, 4] == sizes
    assert 151 == after.value("rabbitmq_message_size_bytes_sum", **PROTOCOL)
    assert (1, 1) == tuple(
        after.value(f"rabbitmq_global_{what}", **PROTOCOL) for what in ("publishers", "consumers")
    )


def test_quorum_queues_have_series_of_their_own(node):
    """Quorum queues have series of RabbitMQ's type for them."""
    client = Client(node)
    client.declare("q", durable=True, arguments={"x-queue-type": ("longstr", "quorum")})
    client.publish("q")
    client.ask(make(Basic.Get, 0, "q", True))

    name, labels = (
        "rabbitmq_global_messages_delivered_total",
        {**PROTOCOL, "queue_type": "rabbit_quorum_queue"},
    )

    assert (1, 0) == (scraped(node).value(name, **labels), scraped(node).value(name, **CLASSIC))


def test_each_object_has_the_same_metrics(node):
    """Per-object metrics that add up have the sums of `/metrics`, and RabbitMQ's labels."""
    client = Client(node)
    client.declare("q")
    client.declare('an "odd" \\ name')
    client.publish("q", b"one")
    client.publish("q", b"two")
    client.consume("q")
    whole, single = scraped(node), per_object(node)

    for groups in (QUEUES, CHANNELS, CONNECTIONS):
        for group in groups:
            for column in group.columns:
                name = group.prefix + column.name
                if column.adds_up:
                    assert whole.value(name) == sum(single.values(name).values()), name
    assert 2 == single.value("rabbitmq_queue_messages_unacked", vhost="/", queue="q")
    assert 0 == single.value("rabbitmq_queue_messages_unacked", vhost="/", queue='an "odd" \\ name')
    channel = "127.0.0.1:50000 -> 127.0.0.1:5672 (1)"
    assert 2 == single.value("rabbitmq_channel_messages_delivered_ack_total", channel=channel, vhost="/")
    assert 2 == single.value("rabbitmq_channel_messages_unacked", channel=channel)
    assert 2 == single.value("rabbitmq_queue_messages_published_total", queue_vhost="/", queue="q")
    assert 2 == single.value("rabbitmq_exchange_messages_published_total", vhost="/", exchange="")
    info = {"vhost": "/", "queue": "q", "queue_type": "rabbit_classic_queue", "membership": "leader"}
    assert 1 == single.value("rabbitmq_queue_info", **info)
    assert single.families.keys() >= whole.families.keys() - {"rabbitmq_exchange_messages_confirmed"}


def test_details_are_those_that_are_asked_for(node):
    """Groups, vhosts and names of queues leave out everything else; an unknown group is ignored."""
    node.directory.add_vhost("other")
    node.users.set_permissions("guest", "other", ".*", ".*", ".*")
    client, other = Client(node), Client(node, vhost="other", port=50001)
    for name in ("orders.1", "orders.2", "logs"):
        client.declare(name)
    other.declare("orders.3")
    names = "rabbitmq_detailed_queue_messages"

    def queues(**selection) -> set[str]:
        found = detailed(node, "queue_coarse_metrics", "nothing", **selection)
        assert {
            "rabbitmq_build_info",
            "rabbitmq_identity_info",
            "rabbitmq_detailed_queue_info",
        } <= found.families.keys()
        return {dict(labels)["queue"] for labels in found.values(names)}

    assert {"orders.1", "orders.2", "logs", "orders.3"} == queues()
    assert {"orders.3"} == queues(vhosts=frozenset({"other"}))
    assert {"orders.1", "orders.2", "orders.3"} == queues(queue=pattern("^orders"))
    assert {"orders.2"} == queues(queue=pattern("2"), vhosts=frozenset({"/"}))
    assert {"rabbitmq_build_info", "rabbitmq_identity_info"} == detailed(node).families.keys()


@pytest.mark.parametrize(
    "group",
    [
        *[group.name for groups in (QUEUES, CHANNELS, CONNECTIONS, EXCHANGES) for group in groups],
        *NODE_GROUPS,
        "vhost_status",
    ],
)
def test_each_group_can_be_asked_for(node, group):
    """Each group can be requested, and its series have names of that group."""
    Client(node).declare("q")

    found = detailed(node, group).families.keys() - {"rabbitmq_build_info", "rabbitmq_identity_info"}

    assert found
    prefixes = ("rabbitmq_detailed_", "leveret_detailed_", "rabbitmq_cluster_")
    assert [] == [name for name in found if not name.startswith(prefixes)]


@pytest.mark.parametrize("text", ["(", "a" * (PATTERN_OCTETS + 1), r"(a)\1"])
def test_patterns_that_cannot_be_used(text):
    """Invalid patterns are refused, as are those that could run without end."""
    with pytest.raises(UnusablePatternError, match="regex"):
        pattern(text)


@pytest.mark.parametrize(
    "text", [r"x.{240}z", r"x[xy]{60}z", r"(x.{99}y|.{99}x){2}z", r"(.{0,9}){19}z", r"(x+x+)+y"]
)
def test_no_pattern_takes_long(node, text):
    """Names and a pattern made to match slowly do not make a step of an answer long, or are refused."""
    client = Client(node)
    for number in range(200):
        name = "".join("xy"[(number * at * at // 7) % 2] for at in range(1, 251)) + str(number)
        client.send(make(Queue.Declare, 0, name, False, False, False, False, True, {}))
    try:
        selection = Selection(frozenset({"queue_coarse_metrics"}), queue=pattern(text))
    except UnusablePatternError:
        return
    pieces = scrape.detailed(node, selection, PROCESS)

    assert longest_step(pieces)[0] < MOST_SECONDS


def test_churn_survives_a_vhost(node):
    """Queues declared, created and deleted in a vhost are still counted when it is deleted."""
    node.directory.add_vhost("other")
    node.users.set_permissions("guest", "other", ".*", ".*", ".*")
    client = Client(node, vhost="other")
    client.declare("q")
    client.declare("q")
    client.connection.lost()

    node.directory.remove_vhost(node.vhosts["other"])

    found = scraped(node)
    names = ("declared", "created", "deleted")
    assert [2, 1, 1] == [found.value(f"rabbitmq_queues_{name}_total") for name in names]


# -- our own ---------------------------------------------------------------------------------------------------------


def test_promises_and_light_deliveries_that_come_back(node):
    """Publishes that wait for consumers are counted, and so are those delivered again."""
    client = Client(node)
    client.ask(Confirm.Select())
    client.declare("q", arguments=LIGHT)
    for _ in range(3):
        client.publish("q")
    client.consume("q")
    assert 3 == scraped(node).value("leveret_confirm_promises_open")

    client.send(make(Basic.Reject, 1, True))

    found = scraped(node)
    assert (2, 1) == tuple(
        found.value(f"leveret_confirm_{name}") for name in ("promises_open", "light_rejects_total")
    )
    assert 1 == found.value("leveret_confirms_nacked_total")


def test_confirms_take_time_by_mode(node):
    """A sample of publishes is in the histogram of its mode."""
    client = Client(node)
    client.ask(Confirm.Select())
    client.declare("plain")
    client.declare("light", arguments=LIGHT)
    client.publish("plain")
    found = scraped(node)
    name = "leveret_confirm_latency_seconds_count"

    assert (1, 0) == tuple(found.value(name, mode=mode) for mode in ("standard", "consumer-ack-light"))


def test_states_and_transitions(tmp_path):
    """Paged messages are counted by state and by transition, also after their queue is deleted."""
    node = DiskNode(tmp_path)
    client = Client(node)
    client.declare("q")
    for number in range(10):
        client.publish("q", b"%d" % number)
    states = ("alpha", "beta", "gamma", "delta")

    def found() -> tuple[list[float], float]:
        answer = scraped(node)
        return (
            [answer.value("leveret_queue_messages", state=state) for state in states],
            answer.value("leveret_queue_state_transitions_total", transition="alpha_to_beta"),
        )

    assert ([10, 0, 0, 0], 0) == found()
    node.vhosts["/"].queues["q"].store.set_ram_target(4, 1 << 30)
    assert ([4, 6, 0, 0], 6) == found()

    client.ask(make(Queue.Delete, 0, "q", False, False, False))

    assert ([0, 0, 0, 0], 6) == found()
    node.disk.close()


def test_the_time_of_the_next_held_message():
    """A scrape has the number of held messages, and the time at which the first of them is due, if there is one."""
    node = Node()
    client = Client(node)
    client.declare("q", arguments={"x-allow-hold": ("bool", True)})
    names = ("leveret_queue_messages_held", "leveret_queue_next_due_timestamp_seconds")

    def found() -> list[float]:
        return [per_object(node).value(name, vhost="/", queue="q") for name in names]

    assert [0, 0] == found()
    for due in (2_000_000, 1_500_500):
        client.publish("q", headers={"x-deliver-at": ("long", due)})
    assert [2, 1500.5] == found()


def test_held_publishers(node):
    """Publishers blocked by an alarm, and those paused for a queue, are counted."""
    client = Client(node)
    client.declare("q")
    node.set_alarm("low on memory")
    client.publish("q")
    other = Client(node, port=50001)
    node.set_alarm("")
    other.connection.paused_at = node.now()
    node.set_alarm("low on memory")
    client.publish("q")

    name = "leveret_publishers_paused"
    found = scraped(node)

    assert 1 == found.value(name, reason="alarm")
    node.set_alarm("")
    assert (0, 0, 1) == tuple(
        scraped(node).value(name, reason=reason) for reason in ("alarm", "disk", "queue")
    )


# -- while it is made ------------------------------------------------------------------------------------------------


def longest_step(pieces: Iterator[str]) -> tuple[float, list[str]]:
    """Return the processor time in seconds of the longest step of an answer, and the answer."""
    longest, made = 0.0, []
    while True:
        began = time.thread_time()
        piece = next(pieces, None)
        longest = max(longest, time.thread_time() - began)
        if piece is None:
            return longest, made
        made.append(piece)


def stepwise(pieces: Iterator[str], between) -> Scraped:
    """Make an answer, with something happening between its pieces."""
    made = []
    for piece in pieces:
        made.append(piece)
        between()
    return Scraped(made)


@given(st.data())
@settings(max_examples=30)
def test_counters_never_fall(data):
    """No counter is lower in the next answer, whatever is closed or deleted while one is made."""
    node = Node()
    clients = [Client(node, port=50000 + number) for number in range(6)]
    for number, client in enumerate(clients):
        client.declare(f"q{number}")
        client.consume(f"q{number}", no_ack=number % 2 == 0)
    events = []
    for number, client in enumerate(clients):
        events += [
            lambda n=number, c=client: c.connection.state == "open" and c.publish(f"q{(n + 1) % 6}"),
            lambda c=client: c.connection.lost(),
            lambda n=number: (
                "/" in node.vhosts
                and (queue := node.vhosts["/"].queues.get(f"q{n}")) is not None
                and node.vhosts["/"].delete_queue(queue)
            ),
        ]
    order = data.draw(st.lists(st.sampled_from(range(len(events))), max_size=60))
    script = iter(order)
    before: dict = {}
    for _ in range(3):
        answer = stepwise(
            scrape.aggregated(node, PROCESS),
            lambda: [events[at]() for at in [next(script, None)] if at is not None],
        )
        kinds = {each.name: each.type for family in answer.families.values() for each in [family]}
        for (name, labels), value in answer.samples.items():
            family = name.removesuffix("_total")
            if kinds.get(family) == "counter":
                assert before.get((name, labels), 0) <= value, name
                before[name, labels] = value


@pytest.fixture
def collecting_as_the_broker_does() -> Iterator[None]:
    """Run the garbage collector as seldom as in a broker, without the objects that were there before."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_a_long_step_is_noticed():
    """The time of each step is measured, not their sum, nor the time in which others run."""

    def pieces() -> Iterator[str]:
        yield "short"
        until = time.thread_time() + MOST_SECONDS
        while time.thread_time() < until:
            pass
        yield "long"

    longest, made = longest_step(pieces())

    assert (["short", "long"], True) == (made, MOST_SECONDS <= longest < 2 * MOST_SECONDS)


@pytest.mark.parametrize("way", ["aggregated", "per_object", "detailed"])
def test_ten_thousand_queues_stall_nobody(way, collecting_as_the_broker_does):
    """Every step of an answer is short, however many objects there are."""
    node = Node()
    client = Client(node)
    for number in range(10_000):
        client.send(make(Queue.Declare, 0, f"queue-{number}", False, False, False, False, True, {}))
        if not number % 10:
            client.publish(f"queue-{number}", b"x")
    client.sent()
    groups = frozenset({"queue_coarse_metrics", "queue_metrics", "queue_delivery_metrics", "queue_states"})
    selection = Selection(groups, queue=pattern("queue"))
    given = (selection,) if way == "detailed" else ()
    pieces = getattr(scrape, way)(node, *given, PROCESS)

    longest, made = longest_step(pieces)

    assert longest < MOST_SECONDS
    text = "".join(made)
    series = text.count("\n") - 2 * text.count("# TYPE ")
    assert series > (20_000 if way != "aggregated" else 100)
    ready = [line for line in text.splitlines() if READY.match(line)]
    assert 1000 == sum(int(line.rpartition(" ")[2]) for line in ready)


def test_what_was_deleted_meanwhile_is_not_shown(node):
    """A queue deleted while an answer is made has no series, and its counters are in the sums."""
    client = Client(node)
    for number in range(250):
        client.send(make(Queue.Declare, 0, f"q{number}", False, False, False, False, True, {}))
    client.publish("q240")
    pieces = scrape.per_object(node, PROCESS)
    made = [next(pieces), next(pieces)]
    client.ask(make(Queue.Delete, 0, "q240", False, False, False))

    found = Scraped([*made, *pieces])

    assert 249 == len(found.values("rabbitmq_queue_messages"))
    assert 1 == found.value("rabbitmq_global_messages_routed_total", **PROTOCOL)


def test_channels_and_exchanges_that_close(node):
    """A deleted exchange and a closed channel have no series any more; their sums stay."""
    client = Client(node)
    client.ask(make(Exchange.Declare, 0, "x", "fanout", False, False, False, False, False, {}))
    client.publish("", exchange="x")
    client.ask(make(Exchange.Delete, 0, "x", False, False))
    client.ask(Channel.Close(200, "", 0, 0))

    found = scraped(node)

    assert 1 == found.value("rabbitmq_exchange_messages_published_total")
    assert 1 == found.value("rabbitmq_channel_messages_unroutable_dropped_total")
    assert {} == per_object(node).values("rabbitmq_channel_messages_published_total")
