"""Retention compared with a model: after any operations, stops and kills, what is retained is what was acked.

A comparison asks for what is retained, and so ends the wait of messages for others of their record. It follows about
half of the operations; the others, commits and kills among them, find such messages waiting.
"""

import tempfile
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from doubles.fakes import Client, DiskNode, queue_declare
from hypothesis import example, given, settings, strategies as st
from samples.retained import commit, queue, read, ready, retained

from leveret.broker.amqp.commands import Basic, Queue as Wire, make
from leveret.broker.config.config import StorageConfig
from leveret.broker.queue.limits import QueueLimits
from leveret.broker.queue.retained_queue import RetainedQueue
from leveret.storage.journal.runs import PackedRun as Record
from leveret.storage.queues import stream_log
from leveret.storage.queues.stream_log import StreamLog

SECOND = 1000
FILE = 1500
"""Bytes of a content from which its body gets a file."""
HEAD = 31
"""Bytes of a content besides its body."""
KINDS = {
    "classic": {},
    "quorum": {"x-queue-type": ("longstr", "quorum")},
    "priorities": {"x-max-priority": ("signedint", 2)},
    "consumer-ack": {"x-confirm-mode": ("longstr", "consumer-ack")},
}
NAMES = (
    "publish", "publish", "publish", "transient", "large", "expiration", "get", "get", "get", "ack", "ack", "ack",
    "ack all", "reject", "requeue", "auto-ack", "wait", "commit", "commit", "kill", "stop", "page", "purge", "policy",
    "off on", "torn", "torn", "very large", "very large",
)  # fmt: skip
OPERATIONS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 1000), st.booleans()), max_size=60)
"""Names, numbers, and whether a comparison follows."""


class Sent(NamedTuple):
    number: int
    body: bytes
    is_saved: bool
    may_expire: bool = False


class Model:
    """Expected contents of a queue: messages by number, and the retained ones with the times of their acks."""

    def __init__(self) -> None:
        self.messages: dict[int, Sent] = {}
        self.retained: list[tuple[int, Sent]] = []
        self.retain_for, self.most = 10 * SECOND, 3000
        self.on_disk: tuple[dict[int, Sent], list[tuple[int, Sent]]] = ({}, [])
        self.committed = 0  # time of the last commit
        self.room = 0
        """Bytes of a message for which others may have left although it was not retained in the end."""

    def ack(self, number: int, now: int) -> None:
        """Retain a message, if it may be."""
        sent = self.messages.pop(number)
        if not sent.may_expire and len(sent.body) + HEAD <= self.most:
            self.retained.append((now, sent))

    def trim(self, now: int, found: list[bytes]) -> None:
        """Compare with what is found, and drop what is not.

        The oldest messages may be missing if with their segment there would be too many bytes. Those that were retained
        for too long may be there, but for a segment that ended too long ago and is on disk.
        """
        gone = len(self.retained) - len(found)
        assert gone >= 0
        dropped, self.retained = self.retained[:gone], self.retained[gone:]
        assert [sent.body for _, sent in self.retained] == found
        if dropped and dropped[-1][0] > now - self.retain_for:
            left = sum([len(body) + HEAD for body in found])
            assert left + self.room + self.most // 8 + len(dropped[-1][1].body) + 2 * HEAD > self.most
        self.room = 0
        if self.retained and {*self.retained} <= {*self.on_disk[1]} and now > self.committed + SECOND:
            assert (
                self.retained[0][0] > now - self.retain_for - max(SECOND, self.retain_for // 8) - 2 * SECOND
            )

    def commit(self, now: int) -> None:
        """Note what survives a kill."""
        self.committed = now
        self.on_disk = (
            {number: sent for number, sent in self.messages.items() if sent.is_saved},
            list(self.retained),
        )

    def restart(self) -> None:
        self.messages, self.retained = dict(self.on_disk[0]), list(self.on_disk[1])


class Run:
    """A broker beside its model."""

    def __init__(self, folder: Path, kind: str, *, early: bool) -> None:
        self.kind = kind
        config = StorageConfig(sync=False, check_invariants=True, early_confirm=early, blob_threshold=FILE)
        self.node = DiskNode(folder / "data", storage=config)
        self.model = Model()
        self.count = 0
        self.connect()
        self.client.send(queue_declare("q", durable=True, arguments=KINDS[kind]))
        self.policy(10 * SECOND, 3000)

    def connect(self) -> None:
        self.client = Client(self.node)
        self.tags: dict[int, int] = {}

    def policy(self, retain_for: int, most: int) -> None:
        """Set the policy, which is on disk afterwards."""
        definition = {"retain-for": retain_for, "retain-bytes": most}
        self.node.administration.policies.set(None, "/", "keep", {"pattern": "^q$", "definition": definition})
        self.node.run_turn()
        self.node.clock.run()
        self.model.retain_for, self.model.most = retain_for, most
        self.commit()

    def off_and_on(self) -> None:
        """Delete what is retained: end the retention, and begin it again before anything of that is on disk."""
        definition = {"retain-for": self.model.retain_for, "retain-bytes": self.model.most}
        policies = self.node.administration.policies
        policies.clear(None, "/", "keep")
        policies.set(None, "/", "keep", {"pattern": "^q$", "definition": definition})
        self.node.run_turn()
        self.model.retained = []

    def commit(self) -> None:
        """Commit both, after acked messages that are on disk were read, as a stop waits for that, too."""
        read(self.node)
        commit(self.node)
        while self.node.disk.journal.files:
            self.node.write_files()
        commit(self.node)  # a queue without early confirms writes the ends of what it has just written
        self.model.commit(self.node.context.clock())

    def settle(self) -> None:
        """Let the broker do what it can without time or a commit."""
        self.node.clock.run()
        self.model.trim(self.node.context.clock(), retained(self.node) or [])

    def publish(self, body: bytes, *, mode: int = 2, **properties: Any) -> None:
        self.count += 1
        is_saved = mode == 2 or self.kind == "quorum"
        self.model.messages[self.count] = Sent(self.count, body, is_saved, "expiration" in properties)
        self.client.publish("q", body, delivery_mode=mode, **properties)

    def get(self, *, no_ack: bool = False) -> None:
        waiting = sorted(self.model.messages.keys() - self.tags.values())
        self.client.take()
        self.client.send(make(Basic.Get, 0, "q", no_ack))
        while not (found := self.client.take()):
            if self.node.disk.loads:
                read(self.node)
            else:
                self.commit()
        tag = getattr(found[-1].method, "delivery_tag", 0)
        assert bool(tag) is bool(waiting)
        if tag:
            assert self.model.messages[waiting[0]].body == found[-1].body
            if no_ack:
                self.model.ack(waiting[0], self.node.context.clock())
            else:
                self.tags[tag] = waiting[0]

    def do(self, operation: str, number: int) -> None:
        tags = list(self.tags)
        match operation:
            case "publish":
                self.publish(b"%d" % self.count)
            case "transient":
                self.publish(b"%d" % self.count, mode=1)
            case "large":
                self.publish(b"%d" % self.count * number)
            case "very large":
                self.publish(b"%d" % self.count + bytes(FILE))
            case "expiration":
                self.publish(b"%d" % self.count, expiration="1000000000")
            case "get":
                self.get()
            case "auto-ack":
                self.get(no_ack=True)
            case "ack" if tags:
                tag = tags[number % len(tags)]
                self.client.send(make(Basic.Ack, tag, False))
                self.model.ack(self.tags.pop(tag), self.node.context.clock())
            case "ack all":
                self.client.send(make(Basic.Ack, 0, True))
                for tag in tags:
                    self.model.ack(self.tags.pop(tag), self.node.context.clock())
            case "reject" if tags:
                tag = tags[number % len(tags)]
                self.client.send(make(Basic.Reject, tag, False))
                del self.model.messages[self.tags.pop(tag)]
            case "requeue" if tags:
                tag = tags[number % len(tags)]
                self.client.send(make(Basic.Reject, tag, True))
                del self.tags[tag]
            case "wait":
                self.node.pass_time(number * 7)
            case "commit":
                self.commit()
            case "kill" | "stop":
                self.node = self.node.killed() if operation == "kill" else self.stopped()
                self.model.restart()
                self.connect()
            case "torn":
                self.torn(no_ack=bool(number % 3))
            case "page":
                store = queue(self.node).store
                for each in getattr(store, "levels", {0: store}).values():
                    each.set_ram_target(0, 0)
                queue(self.node).retained.log.trim(inf)
            case "purge":
                self.client.take()
                self.client.send(make(Wire.Purge, 0, "q", False))
                while not self.client.take():
                    commit(self.node)
                kept = set(self.tags.values())
                self.model.messages = {key: sent for key, sent in self.model.messages.items() if key in kept}
                self.commit()
            case "off on":
                self.off_and_on()
            case "policy":
                self.policy((1 + number % 20) * SECOND, 10 + number * 5)

    def torn(self, *, no_ack: bool) -> None:
        """Kill the broker after a commit while files are not written: what was taken is in one of the two places.

        If it is in the queue, older ones that left for it are not retained either.
        """
        self.commit()
        tags, before = set(self.tags), dict(self.model.messages)
        self.get(no_ack=no_ack)
        for tag in self.tags.keys() - tags:
            self.client.send(make(Basic.Ack, tag, False))
            self.model.ack(self.tags.pop(tag), self.node.context.clock())
        self.node.commit()
        self.node = self.node.killed()
        taken = before.keys() - self.model.messages.keys()
        is_saved = all(before[each].is_saved for each in taken)
        if not is_saved or len(ready(self.node)) < len(self.model.on_disk[0]):
            self.model.commit(self.node.context.clock())
        else:
            self.model.room = sum(len(before[each].body) + HEAD for each in taken)
        self.model.restart()
        self.connect()

    def stopped(self) -> DiskNode:
        """Stop the broker and start it again."""
        self.commit()
        return self.node.restarted()

    def check(self) -> None:
        self.settle()
        waiting = sorted(self.model.messages.keys() - self.tags.values())
        assert [self.model.messages[number].body for number in waiting] == ready(self.node)
        moving = queue(self.node).backing.unacked_count - len(self.tags)  # until their files are written
        assert 0 <= moving <= len(self.node.disk.journal.files)
        found, count = queue(self.node).retained, len(self.model.retained)
        assert isinstance(found, RetainedQueue)
        assert (count, sum(len(sent.body) + HEAD for _, sent in self.model.retained)) == (
            found.ready_count,
            found.log.kept_octets,
        )


def run(kind: str, operations: list[tuple[str, int, bool]], *, early: bool) -> None:
    """Carry out operations, and compare after some of them and at the end."""
    with tempfile.TemporaryDirectory() as folder:
        both = Run(Path(folder), kind, early=early)
        try:
            for operation, number, compares in operations:
                both.do(operation, number)
                if compares:
                    both.check()
            both.check()
        finally:
            both.node.disk.close()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(operations=OPERATIONS, early=st.booleans())
@example(operations=[("very large", 0, False), ("torn", 1, True)], early=True)
@example(
    operations=[(each, 0, False) for each in ("very large", "auto-ack", "very large", "torn")], early=False
)
def test_the_retained_messages_are_the_acked_ones(kind, operations, early):
    """After any sequence with stops and kills, acked messages within time and bytes are retained, and no others."""
    run(kind, operations, early=early)


MISTAKES = {
    "it forgets the time": (StreamLog, "retain", lambda log, octets, since: None),
    "it keeps what was rejected": (
        QueueLimits,
        "removed",
        lambda limits, seq_ids: limits.retention.take(seq_ids),
    ),
    "its records lose a message": (
        stream_log,
        "PackedRun",
        lambda messages, space: Record([*messages[1:], messages[1]], space),
    ),
    "the last one takes its messages along": (StreamLog, "follow", lambda log, last: None),
    "a commit forgets what waits": (RetainedQueue, "_commit_begins", lambda queue: None),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_comparison_finds_a_mistake(monkeypatch, mistake):
    """A retention that keeps what has expired, or was rejected, or loses some of it, is found."""
    names = [
        *("publish", "get", "reject", "publish", "publish", "get", "get", "ack all", "wait"),
        *("publish", "get", "ack", "wait", "wait", "commit", "wait"),
    ]
    unseen = ["publish", "publish", "get", "ack", "get", "ack", "commit", "kill"]
    unseen += ["publish", "publish", "get", "ack", "commit", "get", "off on", "ack", "commit", "kill"]
    operations = [(name, 800, True) for name in names] + [(name, 800, False) for name in unseen]
    run("classic", operations, early=True)
    place, name, replacement = MISTAKES[mistake]
    monkeypatch.setattr(place, name, replacement)
    with pytest.raises(AssertionError):
        run("classic", operations, early=True)
