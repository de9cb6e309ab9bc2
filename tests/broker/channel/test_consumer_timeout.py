"""The consumer timeout, compared with a table of when each message was delivered."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings, strategies as st

from leveret.broker.channel.consumer_timeout import ConsumerTimeouts

DEFAULT = 1_800_000


@dataclass(eq=False)
class Someone:
    """A consumer; its `ack_timeout` is in ms, None for the broker's."""

    ack_timeout: int | None = None
    unacked: int = 0


class Bench:
    """A channel that is checked once a second."""

    def __init__(self, default: int = DEFAULT) -> None:
        self.default = default
        self.ages = ConsumerTimeouts()
        self.now = 1000.0
        self.tag = 0
        self.unacked: dict[int, tuple[Someone, int]] = {}
        self.consumers: list[Someone] = []
        self.delivered: dict[int, float] = {}

    def join(self, timeout: int | None = None) -> Someone:
        self.consumers.append(Someone(timeout))
        return self.consumers[-1]

    def deliver(self, taker: Someone, count: int = 1) -> None:
        for _ in range(count):
            self.tag += 1
            self.unacked[self.tag] = taker, 0
            self.delivered[self.tag] = self.now
            taker.unacked += 1

    def ack(self, tag: int) -> None:
        self.unacked.pop(tag)[0].unacked -= 1

    def look(self) -> tuple[int, int] | None:
        if not self.unacked:
            self.ages = ConsumerTimeouts()
            return None
        found = self.ages.overdue(self.now, self.unacked, self.tag, self.consumers, self.default)
        return found[0] if found else None

    def wait(self, seconds: int) -> tuple[int, int] | None:
        """Check until a delivery is overdue, or for that many seconds."""
        for _ in range(seconds):
            self.now += 1
            found = self.look()
            if found:
                return found
        return None


def test_a_delivery_is_overdue_after_its_timeout():
    """The broker's timeout applies where the consumer has none, and is detected at most two checks late."""
    bench = Bench()
    bench.deliver(bench.join())

    assert bench.wait(1800) is None
    assert (1, DEFAULT) == bench.wait(3)


@pytest.mark.parametrize("default", [0, 5000])
def test_nothing_is_overdue_where_none_is_wanted(default):
    """A timeout of 0 disables it, for the broker's as for the consumer's."""
    bench = Bench(default)
    bench.deliver(bench.join(None if default == 0 else 0))

    assert bench.wait(10_000) is None


def test_a_taker_has_the_last_word():
    """A consumer's own timeout takes precedence, whether shorter than the broker's or longer."""
    short, long = Bench(10_000), Bench(10_000)
    short.deliver(short.join(3000))
    long.deliver(long.join(30_000))

    assert (1, 3000) == short.wait(6)
    assert long.wait(29) is None
    assert (1, 30_000) == long.wait(4)


@pytest.mark.parametrize("count", [1, 10_000])
def test_nobody_hides_behind_an_older_delivery(count):
    """A timeout is detected behind any number of older deliveries of a consumer without one."""
    bench = Bench()
    bench.deliver(bench.join(0), count)
    bench.wait(100)
    bench.deliver(bench.join(5000))

    assert bench.wait(5) is None
    assert (count + 1, 5000) == bench.wait(3 + count // 4096)


def test_one_who_has_left_is_judged_too():
    """Deliveries of a cancelled consumer, and those of `basic.get`, count as others do."""
    bench = Bench()
    bench.deliver(bench.join(0))
    gone = Someone(5000)
    bench.deliver(gone)

    assert (2, 5000) == bench.wait(8)


def test_acked_deliveries_are_no_concern():
    """A busy channel that acks every delivery in time has nothing overdue, and keeps next to no marks."""
    bench = Bench(5000)
    taker = bench.join()
    for number in range(1, 500):
        bench.deliver(taker)
        if number > 4:
            bench.ack(number - 4)
        assert bench.wait(1) is None
        assert 6 >= len(bench.ages._times)


def test_marks_are_bounded():
    """A delivery that stays in front for days makes nothing grow, though others are delivered and acked behind it."""
    bench = Bench(20_000)
    bench.deliver(bench.join(0))
    taker = bench.join(24 * 3600 * 1000)
    for _ in range(3 * 24 * 360):
        bench.deliver(taker)
        tag = bench.tag
        bench.now += 9
        assert bench.wait(1) is None
        bench.ack(tag)

    assert 1002 >= len(bench.ages._times) == len(bench.ages._tags)


def test_a_longer_timeout_counts_from_now_on():
    """Raising the broker's timeout applies to waiting deliveries: none of them is overdue before the new one."""
    bench = Bench(5000)
    bench.deliver(bench.join())
    bench.wait(4)
    bench.default = 60_000

    assert bench.wait(54) is None
    assert (1, 60_000) == bench.wait(5)


@settings(max_examples=200)
@given(
    timeouts=st.lists(st.sampled_from((None, 0, 2000, 7000, 40_000)), min_size=1, max_size=4),
    default=st.sampled_from((0, 5000, 20_000)),
    script=st.lists(
        st.one_of(
            st.tuples(st.just("deliver"), st.integers(0, 3), st.integers(1, 5)),
            st.tuples(st.just("ack"), st.integers(0, 50)),
            st.tuples(st.just("leave"), st.integers(0, 3)),
            st.tuples(st.just("wait"), st.integers(1, 30)),
        ),
        max_size=60,
    ),
)
def test_it_is_never_early_and_a_little_late_at_most(timeouts, default, script):
    """An overdue delivery has exceeded its consumer's timeout, and none exceeds it by three checks."""
    bench = Bench(default)
    takers = [bench.join(timeout) for timeout in timeouts]
    for kind, *arguments in script:
        if kind == "deliver":
            bench.deliver(takers[arguments[0] % len(takers)], arguments[1])
        elif kind == "ack":
            tags = list(bench.unacked)
            if tags:
                bench.ack(tags[arguments[0] % len(tags)])
        elif kind == "leave":
            taker = takers[arguments[0] % len(takers)]
            if taker in bench.consumers:
                bench.consumers.remove(taker)
        else:
            for _ in range(arguments[0]):
                found = bench.wait(1)
                if found:
                    tag, timeout = found
                    own = bench.unacked[tag][0].ack_timeout
                    assert (default if own is None else own) == timeout
                    assert bench.now - bench.delivered[tag] > timeout / 1000 > 0
                    bench.ack(tag)
                    while bench.look():  # the others that are, in the same second
                        bench.ack(bench.look()[0])
                for tag, (taker, _) in bench.unacked.items():
                    limit = default if taker.ack_timeout is None else taker.ack_timeout
                    assert not limit or bench.now - bench.delivered[tag] <= limit / 1000 + 3
