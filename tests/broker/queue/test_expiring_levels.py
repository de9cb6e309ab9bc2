"""Messages with priorities that expire, in quorum queues of RabbitMQ 4.3, beside a list for each priority."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, basic_consume, hurry, queue_declare, work
from hypothesis import given, strategies as st

from leveret.broker.amqp.commands import Basic, Queue, make
from leveret.broker.channel.settings import Compatibility
from leveret.broker.config.config import StorageConfig
from leveret.broker.queue.compatibility import QueueCompatibility
from leveret.storage.queues.priority_queue import PriorityQueue

STRICT = Compatibility(queues=QueueCompatibility(priorities="strict"))
TO_DEAD = {"x-dead-letter-exchange": ("longstr", ""), "x-dead-letter-routing-key": ("longstr", "dead")}
TTL = {"x-message-ttl": ("signedint", 400)}

publish = st.tuples(
    st.just("publish"), st.sampled_from((None, 1, 4, 9, 200)), st.sampled_from((None, 100, 100, 300, 900))
)
step = st.one_of(
    publish,
    publish,
    st.tuples(st.just("pass"), st.sampled_from((50, 100, 150, 300))),
    st.tuples(st.just("get")),
    st.tuples(st.just("give back")),
    st.tuples(st.just("page out")),
    st.tuples(st.just("restart"), st.sampled_from(("restarted", "killed"))),
)


class Model:
    """Ready messages: for each priority the names of its ready messages with their times, in order."""

    def __init__(self, ttl: int | None) -> None:
        self.ttl = ttl
        self.now = 0
        self.levels: dict[int, list[tuple[int, int | None]]] = {level: [] for level in range(31, -1, -1)}
        self.given: list[tuple[int, tuple[int, int | None]]] = []
        self.dead: list[int] = []
        self.expired = 0

    def publish(self, name: int, priority: int | None, expiration: int | None) -> None:
        times = [self.now + each for each in (expiration, self.ttl) if each is not None]
        level = 4 if priority is None else min(priority, 31)
        self.levels[level].append((name, min(times, default=None)))

    def expire(self) -> None:
        for messages in self.levels.values():
            while messages and messages[0][1] is not None and messages[0][1] <= self.now:
                self.dead.append(messages.pop(0)[0])

    def get(self) -> int | None:
        for level, messages in self.levels.items():
            if messages:
                self.given.append((level, messages.pop(0)))
                return self.given[-1][1][0]
        return None

    def give_back(self) -> None:
        for level, message in self.given:
            self.levels[level] = sorted([*self.levels[level], message])
        self.given.clear()

    @property
    def ready_count(self) -> int:
        return sum(map(len, self.levels.values()))


class Broker:
    """A broker on a disk, with the profile's priorities, and a client of it."""

    def __init__(self, node: DiskNode, arguments: dict[str, Any]) -> None:
        self.begin(node)
        for name, table in (("q", arguments), ("dead", {})):
            self.client.send(queue_declare(name, durable=True, arguments=table))
        self.settle()

    def begin(self, node: DiskNode) -> None:
        self.node, self.client = node, Client(node)

    @property
    def queue(self) -> Any:
        return self.node.vhosts["/"].queues["q"]

    def settle(self) -> None:
        """Commit, read and run until nothing is left to do."""
        for _ in range(20):
            self.node.commit()
            self.node.read()
            work(self.node)
            if not self.node.disk.loads and not self.node.disk.journal.has_work:
                return
        raise AssertionError("it does not end")

    def get(self, *, no_ack: bool = False, name: str = "q") -> int | None:
        self.client.send(make(Basic.Get, 0, name, no_ack))
        self.settle()
        (answer,) = [
            each for each in self.client.take() if isinstance(each.method, Basic.GetOk | Basic.GetEmpty)
        ]
        if not isinstance(answer.method, Basic.GetOk):
            return None
        return int(answer.body)

    def drain(self, name: str) -> list[int]:
        found = []
        while (body := self.get(no_ack=True, name=name)) is not None:
            found.append(body)
        return found

    def page_out(self) -> None:
        for level in self.queue.store.levels.values():
            level.set_ram_target(0, 0)
        self.settle()

    def give_back(self) -> None:
        self.client.send(make(Basic.Recover, True))
        self.client.sent()

    def restart(self, how: str) -> None:
        self.client.connection.lost()
        self.settle()
        self.begin(getattr(self.node, how)())


@given(st.lists(step, min_size=3, max_size=25), st.booleans(), st.booleans())
def test_the_head_of_each_priority_expires(steps, has_ttl, dead_letters):
    """In each priority messages leave at their time when they are first, the most urgent priority first."""
    arguments = (
        {"x-queue-type": ("longstr", "quorum")} | (TTL if has_ttl else {}) | (TO_DEAD if dead_letters else {})
    )
    with TemporaryDirectory() as folder:
        broker = Broker(DiskNode(Path(folder), compatibility=STRICT), arguments)
        model = Model(400 if has_ttl else None)
        for number, (kind, *values) in enumerate(steps):
            if kind == "publish":
                priority, expiration = values
                model.publish(number, priority, expiration)
                given_ = {
                    "delivery_mode": 2,
                    "priority": priority,
                    "expiration": expiration and str(expiration),
                }
                broker.client.publish(
                    "q", b"%d" % number, **{key: value for key, value in given_.items() if value is not None}
                )
            elif kind == "pass":
                model.now += values[0]
                broker.node.pass_time(values[0])
            elif kind == "get":
                assert model.get() == broker.get()
            elif kind == "give back":
                model.give_back()
                broker.give_back()
            elif kind == "page out":
                broker.page_out()
            else:
                model.give_back()
                broker.restart(values[0])
            broker.settle()
            model.expire()
            assert model.ready_count == broker.queue.ready_count
            assert len(model.given) == broker.queue.unacked_count
        model.give_back()
        broker.give_back()
        broker.settle()
        model.expire()
        left = []
        while (name := model.get()) is not None:
            left.append(name)
            model.expire()
        assert left == broker.drain("q")
        assert (model.dead if dead_letters else []) == broker.drain("dead")
        broker.node.disk.close()


def fill(broker: Broker) -> None:
    """Publish a message that stays, of the highest priority and of the lowest, and twenty between that expire."""
    for number in (0, 99):
        broker.client.publish("q", b"%d" % number, delivery_mode=2, priority=0 if number else 9)
    for number in range(1, 21):
        broker.client.publish("q", b"%d" % number, delivery_mode=2, priority=1 + number % 2, expiration="100")
    broker.settle()


@pytest.mark.parametrize("arguments", [TO_DEAD, {}], ids=["dead letters", "none"])
def test_expiry_goes_on_when_its_step_was_over(tmp_path, arguments):
    """Messages that there was no time for are discarded in the next steps, and none of them is delivered."""
    broker = Broker(
        DiskNode(tmp_path, compatibility=STRICT), {"x-queue-type": ("longstr", "quorum"), **arguments}
    )
    fill(broker)
    hurry(broker.node, looks=2)
    broker.node.pass_time(100)
    broker.client.send(basic_consume("q", "tag", no_ack=True))
    broker.settle()

    assert [b"0", b"99"] == [each.body for each in broker.client.take() if each.body]
    assert 0 == broker.queue.ready_count
    assert ([*range(1, 21, 2), *range(2, 21, 2)] if arguments else []) == broker.drain("dead")
    broker.node.disk.close()


@pytest.mark.parametrize("target", [0, None], ids=["on disk", "in memory"])
def test_a_deleted_queue_dead_letters_what_has_expired_in_any_priority(tmp_path, target):
    """Messages whose time has come are dead-lettered although the queue is deleted before it has discarded them."""
    storage = StorageConfig(sync=False, segment=4, io_batch=1, target_ram_count=target)
    node = DiskNode(tmp_path, compatibility=STRICT, storage=storage)
    broker = Broker(node, {"x-queue-type": ("longstr", "quorum"), **TO_DEAD})
    fill(broker)
    if target is not None:
        broker.page_out()
    assert (broker.queue.store.state_counts()[3] > 0) is (target is not None)
    broker.node.clock.now += 0.1
    queue = broker.queue
    broker.client.send(make(Queue.Delete, 0, "q", False, False, False))
    broker.settle()

    assert queue.finished
    assert [*range(1, 21, 2), *range(2, 21, 2)] == broker.drain("dead")
    broker.node.disk.close()


def test_a_dead_letter_that_comes_back_sees_the_whole_queue(tmp_path):
    """A queue that is full refuses its own dead letters also while one of its priorities is being discarded."""
    arguments = {
        "x-queue-type": ("longstr", "quorum"),
        "x-dead-letter-exchange": ("longstr", ""),
        "x-dead-letter-routing-key": ("longstr", "q"),
        "x-max-length": ("signedint", 3),
        "x-overflow": ("longstr", "reject-publish"),
    }
    broker = Broker(DiskNode(tmp_path, compatibility=STRICT), arguments)
    seen: list[int] = []
    queue = broker.queue
    publish_pending = queue.limits.dead_letters.publish_pending
    for body, priority, expiration in (("0", 9, None), ("1", 9, None), ("2", 1, "100")):
        rest = {} if expiration is None else {"expiration": expiration}
        broker.client.publish("q", body.encode(), priority=priority, **rest)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            type(queue.limits.dead_letters),
            "publish_pending",
            lambda self: (seen.append(queue.backing.ready_count), publish_pending())[1],
        )
        broker.node.pass_time(100)

    assert [2] == seen[:1]
    broker.node.disk.close()


def test_other_queues_have_one_head(tmp_path):
    """The lower priorities of a classic queue wait for the highest one."""
    broker = Broker(DiskNode(tmp_path, compatibility=STRICT), {"x-max-priority": ("signedint", 10)})
    fill(broker)
    broker.node.pass_time(100)
    broker.client.publish("q", b"100", priority=9)
    broker.settle()

    assert 23 == broker.queue.ready_count
    assert isinstance(broker.queue.store, PriorityQueue)
    broker.node.disk.close()
