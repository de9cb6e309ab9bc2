"""Publish limits: the bucket against a model, the pace of a connection, and what its client is told."""

from typing import Any

import pytest
from doubles.fakes import Client, Clock, Node
from hypothesis import given, settings, strategies as st
from services.api import Api

from leveret.broker.amqp.commands import Basic, make
from leveret.broker.auth.passwords import Password, hash_password
from leveret.broker.auth.users import User, UserLimits, VHostLimits
from leveret.broker.channel.settings import Limits
from leveret.broker.connection.flow_control import FlowControl
from leveret.broker.connection.publish_limits import (
    BREAK_SECONDS,
    LEAST_READ,
    LOOK_SECONDS,
    MOST_BUCKETS,
    TELL_AGAIN_SECONDS,
    TELL_SECONDS,
    Bucket,
    Buckets,
    PublishLimits,
    PublishPace,
)

TAKES = st.lists(st.tuples(st.floats(0, 5), st.integers(0, 2000)), min_size=1, max_size=60)
RATES = st.integers(1, 5000)


@given(RATES, TAKES)
def test_a_bucket_is_the_token_bucket_of_the_textbook(rate, takes):
    """The time at which everything is paid for is that at which a bucket that is filled steadily is no longer empty."""
    bucket, tokens, now = Bucket(rate), float(rate), 0.0
    for seconds, count in takes:
        now += seconds
        tokens = min(float(rate), tokens + seconds * rate) - count

        assert bucket.take(count, now) - now == pytest.approx(-tokens / rate, abs=1e-6)


@given(RATES, st.lists(st.integers(1, 500), min_size=1, max_size=60))
def test_who_waits_stays_below_the_limit(rate, reads):
    """In any time a connection takes no more than the limit allows for it, one second's worth, and one read."""
    bucket, now, taken = Bucket(rate), 0.0, []
    for count in reads:
        taken.append((now, count))
        now = max(now, bucket.take(count, now))

    for first in range(len(taken)):
        total = 0
        for at, count in taken[first:]:
            assert total <= rate * (at - taken[first][0] + 1) + 1e-6
            total += count


@settings(max_examples=50)
@given(RATES, st.lists(st.tuples(st.integers(0, 2), st.integers(1, 100)), min_size=1, max_size=60))
def test_connections_that_share_a_bucket_take_turns(rate, reads):
    """A read is paid for after all earlier ones, whichever connection they came from."""
    bucket = Bucket(rate)
    paid = [bucket.take(count, 0.0) for _, count in reads]

    assert paid == sorted(paid)


def test_a_changed_rate_applies_to_what_is_not_paid_for_yet():
    """A limit that is raised shortens the wait, one that is lowered lengthens it."""
    bucket = Bucket(10)
    bucket.take(10 + 20, 0.0)
    bucket.change(20, 0.0)
    assert 1.0 == bucket.paid
    bucket.change(5, 0.5)
    assert 0.5 + 2.0 == bucket.paid


def test_few_buckets_are_remembered():
    """Those that are full again are forgotten when there are very many, so that deleted users leave nothing."""
    buckets = Buckets()
    for number in range(3 * MOST_BUCKETS):
        rate, _ = buckets.of("user", str(number), PublishLimits(rate=1), 0.0)
        rate.take(1, 0.0)

    assert len(buckets._buckets) <= MOST_BUCKETS
    assert (None, None) == buckets.of("user", "0", PublishLimits(), 0.0)


def test_reads_are_small_if_the_limit_is():
    """About a tenth of a second's worth, by the size of the messages so far, and never less than a little."""
    pace = PublishPace(0, 0)
    pace.limit(PublishLimits(rate=100), {}, 0.0)
    assert 4096 == pace.read_limit(131072)
    pace.read(10, 2000, 0.0)
    assert 2000 == pace.read_limit(131072)
    pace.limit(PublishLimits(rate=1), {}, 0.0)
    assert LEAST_READ == pace.read_limit(131072)
    pace.limit(PublishLimits(octets=50_000), {}, 0.0)
    assert 5000 == pace.read_limit(131072)
    pace.limit(PublishLimits(), {}, 0.0)
    assert 131072 == pace.read_limit(131072)


def test_a_large_message_is_not_taken_for_many_small_ones():
    """Its octets count together, however many reads it needs."""
    pace = PublishPace(0, 0)
    pace.limit(PublishLimits(rate=10), {}, 0.0)
    for number in range(1, 11):
        pace.read(number // 10, 10_000 * number, 0.0)

    assert 100_000 == pace.read_limit(131072)


# -- a connection -----------------------------------------------------------------------------------------------------


class Host:
    """The server, as far as flow control needs it."""

    def __init__(self, node: Node) -> None:
        self.loop = self
        self.clock: Clock = node.clock
        self.context, self.turn = node.context, node.turn
        self.timers: list[tuple[float, Any]] = []

    def now(self) -> float:
        return self.clock.now

    def wait_for_disk(self, *_given: Any, **_more: Any) -> bool:
        return False

    def call_later(self, seconds: float, callback: Any) -> None:
        self.timers.append((self.clock.now + seconds, callback))

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and call what becomes due in its order."""
        end = self.clock.now + seconds
        while due := sorted([timer for timer in self.timers if timer[0] <= end], key=lambda timer: timer[0]):
            self.timers.remove(due[0])
            self.clock.now = max(self.clock.now, due[0][0])
            due[0][1]()
        self.clock.now = end


class Paced:
    """A client whose connection has flow control; it publishes whenever it is read."""

    def __init__(self, node: Node, user: str = "guest") -> None:
        self.client = Client(node, user=user)
        self.connection = self.client.connection
        self.driver = self.client.driver
        self.driver.read_limit = 131072
        self.host = Host(node)
        self.flow = FlowControl(self.host, self.driver)
        self.driver.limit_reads = self.flow.limit_reads
        self.client.declare("q")

    def publish(self, count: int) -> bool:
        """Publish so many messages in one read; returns whether the connection is still read."""
        for _ in range(count):
            self.client.publish("q", b"x" * 100)
        self.connection.octets_in += 150 * count
        self.flow.after_read(150 * count)
        return self.driver.reading

    def press_for(self, seconds: float, count: int = 10) -> list[str]:
        """Publish as fast as it is read, for a time; returns what the broker has sent."""
        end = self.host.now() + seconds
        while self.host.now() < end:
            while self.driver.reading and self.host.now() < end:
                self.publish(count)
            self.host.pass_time(0.05)
        return self.client.sent()


def node_with(**limits: int) -> Node:
    return Node(limits=Limits(**{f"connection_max_publish_{name}": limit for name, limit in limits.items()}))


def test_without_limits_nothing_is_kept():
    """A connection without a limit has no pace at all."""
    paced = Paced(Node())

    assert paced.connection.pace is None
    assert paced.publish(1000)


def test_a_connection_is_not_read_until_it_is_within_its_limit():
    """Everything that was read is in the queue; then nothing is read until that is paid for."""
    paced = Paced(node_with(rate=100))
    assert paced.publish(100)
    assert not paced.publish(50)
    assert 150 == paced.client.node.vhosts["/"].queues["q"].ready_count

    paced.host.pass_time(0.49)
    assert not paced.driver.reading
    paced.host.pass_time(0.02)
    assert paced.driver.reading


def test_octets_are_limited_too():
    """As received, with their frames."""
    paced = Paced(node_with(bytes=15_000))
    assert paced.publish(90)
    assert not paced.publish(90)


@pytest.mark.parametrize("kind", ["user", "vhost"])
def test_connections_share_the_limits_of_a_user_and_of_a_vhost(kind):
    """Two that publish at once are each read half as often."""
    node = Node()
    if kind == "user":
        node.users.set_user_limits("guest", UserLimits(max_publish_rate=100))
    else:
        node.users.set_vhost_limits("/", VHostLimits(max_publish_rate=100))
    one, other = Paced(node), Paced(node)
    assert one.publish(100)
    assert not other.publish(100)
    assert not one.publish(100)
    assert (1.0, 2.0) == tuple(each.connection.pace.until - node.clock.now for each in (other, one))


def test_others_work_while_a_publisher_waits():
    """A consumer acks what the waiting publisher sent, and another user publishes and is read on."""
    node = Node()
    node.users.add(User("other", hash_password(Password("other"))))
    node.users.set_permissions("other", "/", ".*", ".*", ".*")
    node.users.set_user_limits("guest", UserLimits(max_publish_rate=100))
    slow, fast = Paced(node), Paced(node, user="other")
    assert not slow.publish(1000)

    fast.client.consume("q")
    fast.client.ask(make(Basic.Ack, 0, True))
    assert (0, 0) == (node.vhosts["/"].queues["q"].ready_count, node.vhosts["/"].queues["q"].unacked_count)
    assert fast.publish(1000)
    assert not slow.driver.reading


def test_a_limit_applies_to_open_connections_and_may_be_taken_away():
    """Also from one that waits, after a second at most."""
    node = Node()
    paced = Paced(node)
    node.users.set_user_limits("guest", UserLimits(max_publish_rate=1))
    assert not paced.publish(1000)
    node.users.set_user_limits("guest", UserLimits())
    paced.host.pass_time(LOOK_SECONDS)

    assert paced.driver.reading
    assert paced.publish(1000)


def test_a_connection_that_is_closed_is_read_for_the_answer():
    """However long it would have to wait."""
    paced = Paced(node_with(rate=1))
    assert not paced.publish(1000)
    paced.connection.force_close("test")
    paced.host.pass_time(LOOK_SECONDS)

    assert paced.driver.reading


def test_the_client_is_told_after_a_while():
    """Not for a short time, once for a long one, and when it is over; a connection in flow says so in lists."""
    paced = Paced(node_with(rate=100))
    assert [] == [line for line in paced.press_for(TELL_SECONDS) if "blocked" in line]
    assert ['0 connection.blocked reason="publish limit of the connection"'] == paced.press_for(3.0)
    paced.host.pass_time(3 * BREAK_SECONDS + 1)
    assert ["0 connection.unblocked"] == paced.client.sent()


def test_the_client_is_not_told_again_and_again():
    """At most once in ten seconds."""
    paced = Paced(node_with(rate=100))
    told = 0
    for _ in range(4):
        told += sum("connection.blocked" in line for line in paced.press_for(TELL_SECONDS + 1.0))
        paced.host.pass_time(1.5)

    assert TELL_AGAIN_SECONDS < 4 * (TELL_SECONDS + 2.5) < 2 * TELL_AGAIN_SECONDS
    assert 2 == told


def test_a_long_wait_is_no_break():
    """One large read that is paid for over seconds counts as being slowed down all the time."""
    paced = Paced(node_with(rate=10))
    paced.publish(100)
    paced.host.pass_time(TELL_SECONDS + LOOK_SECONDS)

    assert ['0 connection.blocked reason="publish limit of the connection"'] == paced.client.sent()


# -- setting them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["user-limits/guest", "vhost-limits/%2f"])
def test_limits_are_set_by_the_api(path):
    """Like RabbitMQ's; 0, which would hold clients for ever, is refused."""
    api = Api(Node())
    assert 204 == api.request("PUT", f"{path}/max-publish-rate", {"value": 500}).status
    assert 204 == api.request("PUT", f"{path}/max-publish-bytes", {"value": -1}).status
    assert {"max-publish-rate": 500, "max-publish-bytes": -1}.items() <= api.request("GET", path).body[0][
        "value"
    ].items()

    refused = api.request("PUT", f"{path}/max-publish-rate", {"value": 0})
    assert 400 == refused.status
    assert "max-publish-rate should be at least 1, or negative for no limit" in refused.body["reason"]
