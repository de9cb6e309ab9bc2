"""The consumer-ack queue around each backing queue, against a list of all that was ever published.

The threads of the disk are replaced by rules, as in the test of the variable queue: what a commit or a load does happens
when the machine says so. Each promise is a notebook, so the model knows the call behind each result.
"""

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from checks.internals import has_unfinished
from hypothesis import event, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from leveret.confirm.consumer_ack import ConsumerAckQueue
from leveret.storage.journal.journal import Journal
from leveret.storage.journal.reads import LoadRequest
from leveret.storage.message import Message, Persistent, Promised
from leveret.storage.queues import variable_queue as variable_queue_module
from leveret.storage.queues.invariants import check
from leveret.storage.queues.memory_queue import MemoryQueue
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.priority_queue import PriorityQueue
from leveret.storage.queues.variable_queue import VariableQueue
from leveret.storage.store.environment import Environment

MEMORY = Path("/dev/shm")
READY, UNACKED, GONE = "ready", "unacked", "gone"
KEPT, BROKEN = "kept", "broken"
SEEN: Counter[str] = Counter()
"""Number of examples in which each thing happened."""


class Promise:
    """Notes its verdicts, of which there must be one."""

    def __init__(self) -> None:
        self.verdicts: list[str] = []

    def accepted(self, seq_no: int = 0) -> None:
        self.verdicts.append(KEPT)

    def refused(self, seq_no: int = 0) -> None:
        self.verdicts.append(BROKEN)


class Copy:
    """The model's view of a message."""

    def __init__(self, name: int, level: int, promise: Promise | None, expires: int, *, light: bool) -> None:
        self.name = name
        self.level = level
        self.promise = promise
        self.expires = expires
        self.light = light and promise is not None
        """True if it is not kept once it is delivered."""
        self.state = READY
        self.key: Any = None
        self.redelivered = False
        self.verdict = ""

    @property
    def place(self) -> tuple[int, int]:
        return -self.level, self.name


class Disk:
    """An environment without threads."""

    def __init__(self, data_dir: Path) -> None:
        self.environment = Environment(data_dir, sync=False)
        boot = self.environment.boot
        self.ids = iter(range((boot << 32) + 1, (boot + 1) << 32))
        self.first = boot << 40
        self.journal = Journal(self.first, 300)
        self.requests: list[LoadRequest] = []
        self.pager = Pager(
            self.journal,
            self.requests.append,
            segment=4,
            io_batch=2,
            load_octets=600,
            blob_threshold=1 << 30,
            ram_limit=1 << 40,
        )

    def make(self, *, durable: bool) -> VariableQueue:
        return VariableQueue(
            self.pager, next(self.ids), durable=durable, next_seq=self.first if durable else 0
        )

    def commit(self) -> None:
        while self.journal.has_work or has_unfinished(self.environment):
            self.environment.commit(self.journal.cut())
            self.journal.settled()

    def read(self) -> None:
        requests, self.requests[:] = self.requests[:], []
        for request in requests:
            request.queue.loaded(request, self.environment.read(request.ranges, request.limit))


def level_of(content: bytes) -> int:
    return content[7]


class Machine(RuleBasedStateMachine):
    """State machine of a queue whose mode changes."""

    highest = 0
    """The highest priority; 0 for a queue without."""
    has_disk = False

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[Copy] = []
        self.open: dict[int, Copy] = {}
        self.names = 0
        self.lost = 0
        self.woken = 0
        self.now = 1
        self.seen: set[str] = set()
        self.data_dir: Path | None = None
        self.variable: list[VariableQueue] = []
        self.ram_target = inf
        if self.has_disk:
            self.data_dir = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
            self.disk = Disk(self.data_dir)
        has_levels = self.highest > 0
        inner = PriorityQueue(lambda _: self.make(), level_of, self.highest) if has_levels else self.make()
        self.queue = ConsumerAckQueue(inner)
        self.queue.on_loaded = self.wake
        self.is_light = False

    def make(self) -> Any:
        if not self.has_disk:
            return MemoryQueue()
        queue = self.disk.make(durable=True)
        queue.target_ram_count = self.ram_target
        self.variable.append(queue)
        return queue

    def wake(self) -> None:
        self.woken += 1

    def note(self, what: str) -> None:
        self.seen.add(what)

    # -- the model --------------------------------------------------------------------------------------------------

    def having(self, state: str) -> list[Copy]:
        return sorted([copy for copy in self.copies if copy.state == state], key=lambda copy: copy.place)

    def resolve(self, copies: list[Copy], verdict: str) -> None:
        """Messages go, and those that were promised have their verdict unless they had it before."""
        for copy in copies:
            copy.state = GONE
            self.decide(copy, verdict)

    def decide(self, copy: Copy, verdict: str) -> None:
        if copy.promise is not None and not copy.verdict:
            copy.verdict = verdict
            self.note(verdict)

    def verify(self) -> None:
        """Check the properties that hold at any time."""
        if self.highest and len({copy.level for copy in self.having(READY)}) > 1:
            self.note("several levels")
        assert len(self.having(READY)) == self.queue.ready_count
        assert len(self.having(UNACKED)) == self.queue.unacked_count
        for copy in self.copies:
            if copy.promise is not None:
                assert ([copy.verdict] if copy.verdict else []) == copy.promise.verdicts
        self.copies = [copy for copy in self.copies if copy.state != GONE]
        for queue in self.variable:
            check(queue)
            if queue.delta.count:
                self.note("delta")

    # -- rules ------------------------------------------------------------------------------------------------------

    def new(self, count: int, kinds: list[str], size: int, expires: int) -> list[tuple[Message, Copy]]:
        made = []
        for number in range(count):
            self.names += 1
            kind = kinds[number % len(kinds)]
            level = self.names * 7 % (self.highest + 2) if self.highest else 0
            content = b"\x02\x00\x01" + self.names.to_bytes(4, "big") + bytes([level]) + bytes(size)
            address = b"\x01x\x01k"
            promise = Promise() if kind == "promised" else None
            message: Message
            if promise is not None:
                message = Promised(address, content, 1, promise)
            elif kind == "persistent":
                message = Persistent(address, content, 1, None, 0, 1)
            else:
                message = Message(address, content, 1)
            copy = Copy(self.names, min(level, self.highest), promise, expires, light=self.is_light)
            made.append((message, copy))
        return made

    @initialize(
        light=st.booleans(),
        messages=st.sampled_from([3, 8, 0, inf]),
        kinds=st.lists(st.sampled_from(["promised", "plain", "persistent"]), min_size=1, max_size=3),
        size=st.sampled_from([50, 400]),
    )
    def begin(self, messages: float, kinds: list[str], size: int, *, light: bool) -> None:
        """A queue of either mode that has something."""
        self.change_mode(light=light)
        self.ram_target = messages
        self.publish(30, kinds, size, 0)
        self.change_mode(light=not light)
        self.publish(10, kinds, size, 0)
        self.set_ram_target(messages, 1 << 40)
        if self.has_disk:
            self.commit()
        self.fetch(5, ack_required=True)

    @rule(
        count=st.sampled_from([1, 2, 3, 7, 20]),
        kinds=st.lists(
            st.sampled_from(["promised", "promised", "plain", "persistent"]), min_size=1, max_size=4
        ),
        size=st.sampled_from([0, 50, 400]),
        lifetime=st.sampled_from([0, 0, 0, 2, 5]),
    )
    def publish(self, count: int, kinds: list[str], size: int, lifetime: int) -> None:
        expires = self.now + lifetime if lifetime else 0
        made = self.new(count, kinds, size, expires)
        self.copies += [copy for _, copy in made]
        self.queue.publish(
            [message for message, _ in made],
            persistent=any(message.persistent for message, _ in made),
            small=size <= 50,
            expires=expires,
        )
        self.verify()

    @precondition(lambda self: not self.queue.ready_count)
    @rule(
        count=st.sampled_from([1, 2, 5]),
        kinds=st.lists(
            st.sampled_from(["promised", "promised", "plain", "persistent"]), min_size=1, max_size=3
        ),
        ack_required=st.booleans(),
        lifetime=st.sampled_from([0, 0, 3]),
    )
    def publish_delivered(self, count: int, kinds: list[str], lifetime: int, *, ack_required: bool) -> None:
        expires = self.now + lifetime if lifetime else 0
        made = self.new(count, kinds, 20, expires)
        keys = self.queue.publish_delivered(
            [message for message, _ in made],
            ack_required=ack_required,
            persistent=any(message.persistent for message, _ in made),
            expires=expires,
        )

        assert count == len(keys)
        self.copies += [copy for _, copy in made]
        self.take([copy for _, copy in made], list(keys), ack_required=ack_required)
        self.verify()

    def take(self, copies: list[Copy], keys: list[Any], *, ack_required: bool) -> None:
        """Messages went to a consumer."""
        for copy, key in zip(copies, keys, strict=True):
            copy.state = UNACKED if ack_required else GONE
            if not ack_required:
                self.decide(copy, KEPT)
                continue
            if copy.light:
                self.note("light delivery")
                assert copy.promise is key
            else:
                assert isinstance(key, int)
            copy.key = key

    @precondition(lambda self: self.queue.ready_count)
    @rule(count=st.sampled_from([1, 2, 5, 30]), ack_required=st.sampled_from([True, True, False]))
    def fetch(self, count: int, *, ack_required: bool) -> None:
        keys, messages, redelivered = self.queue.fetch(count, ack_required=ack_required)
        copies = self.having(READY)[: len(messages)]

        assert len(messages) <= count
        assert [copy.name for copy in copies] == [int.from_bytes(m.content[3:7], "big") for m in messages]
        assert all(copy.redelivered is redelivered for copy in copies)
        if not messages:
            self.note("fetch that has to wait")
            assert self.queue.loading
        self.take(copies, list(keys), ack_required=ack_required)
        self.verify()

    def chosen(self, bits: int) -> list[Copy]:
        unacked = self.having(UNACKED)
        return [copy for number, copy in enumerate(unacked) if bits >> number % 16 & 1]

    @precondition(lambda self: self.queue.unacked_count)
    @rule(bits=st.integers(1, 65535), moved=st.booleans())
    def ack(self, bits: int, *, moved: bool) -> None:
        copies = self.chosen(bits)
        self.queue.ack([copy.key for copy in copies], moved=moved)
        self.resolve(copies, KEPT)
        self.verify()

    @precondition(lambda self: self.queue.unacked_count)
    @rule(bits=st.integers(1, 65535))
    def refuse_and_ack(self, bits: int) -> None:
        """The broker discards unacked messages."""
        copies = [copy for copy in self.chosen(bits) if not copy.light]
        self.queue.refuse([copy.key for copy in copies])
        for copy in copies:
            self.decide(copy, BROKEN)
        self.queue.ack([copy.key for copy in copies])
        self.resolve(copies, KEPT)
        self.verify()

    @precondition(lambda self: self.queue.unacked_count)
    @rule(bits=st.integers(1, 65535))
    def requeue(self, bits: int) -> None:
        copies = self.chosen(bits)
        before = self.queue.lost
        seq_ids, promises = self.queue.split([copy.key for copy in copies])
        light = [copy for copy in copies if copy.light]
        self.queue.refuse_light(promises)
        self.queue.requeue(seq_ids)

        assert [copy.promise for copy in light] == promises
        assert before + len(light) == self.queue.lost
        self.resolve(light, BROKEN)
        for copy in copies:
            if not copy.light:
                copy.state = READY
                copy.redelivered = True
                self.note("requeued")
        self.verify()

    @precondition(lambda self: self.queue.ready_count)
    @rule(count=st.sampled_from([1, 2, 5]))
    def drop(self, count: int) -> None:
        dropped = self.queue.drop(count)

        assert dropped <= count
        self.resolve(self.having(READY)[:dropped], BROKEN)
        self.verify()

    @rule(passing=st.integers(1, 3))
    def expire(self, passing: int) -> None:
        """Time passes, and what has expired at the head is dropped."""
        self.now += passing
        while self.queue.ready_count:
            count, expired = self.queue.head_run(self.now, 10)
            ready = self.having(READY)[:count]
            assert all((0 < copy.expires <= self.now) is expired for copy in ready)
            if not count or not expired:
                break
            self.note("expired")
            dropped = self.queue.drop(count)
            self.resolve(ready[:dropped], BROKEN)
            if not dropped:
                break
        if self.queue.ready_count:
            assert self.queue.head_expires() in (None, self.having(READY)[0].expires)
        self.verify()

    @precondition(lambda self: self.queue.unacked_count)
    @rule()
    def look_at_unacked(self) -> None:
        """Bodies of unacked messages, which dead letters need; nothing is kept of light ones."""
        kept = [copy for copy in self.having(UNACKED) if not copy.light]
        found, waiting = self.queue.unacked_messages([copy.key for copy in kept])

        assert {copy.key for copy in kept} == {key for key, _ in found} | set(waiting)
        names = {copy.key: copy.name for copy in kept}
        assert [names[key] for key, _ in found] == [int.from_bytes(m.content[3:7], "big") for _, m in found]

    @rule(really=st.sampled_from([False, False, False, True]))
    def purge(self, *, really: bool) -> None:
        if not really:
            return
        ready = self.having(READY)

        assert len(ready) == self.queue.purge()
        self.resolve(ready, BROKEN)
        self.verify()

    @rule(light=st.booleans())
    def change_mode(self, *, light: bool) -> None:
        """Light is what is published from now on; where nothing is light any more, what is ready is not either."""
        if self.is_light is not light:
            self.note("change of mode")
        self.is_light = light
        self.queue.set_light(light=light)
        for copy in self.copies:
            copy.light = copy.light and (light or copy.state != READY)
        self.verify()

    @precondition(lambda self: self.has_disk)
    @rule(messages=st.sampled_from([0, 1, 3, 8, inf]), octets=st.sampled_from([0, 300, 2000, 1 << 40]))
    def set_ram_target(self, messages: float, octets: int) -> None:
        self.ram_target = messages
        for queue in self.variable:
            queue.set_ram_target(messages, octets)
        self.verify()

    @rule(lazy=st.booleans())
    def set_lazy(self, *, lazy: bool) -> None:
        self.queue.set_lazy(lazy=lazy)
        self.verify()

    @precondition(lambda self: self.has_disk)
    @rule()
    def commit(self) -> None:
        self.disk.commit()
        self.verify()

    @precondition(lambda self: self.has_disk and self.disk.requests)
    @rule()
    def read(self) -> None:
        woken = self.woken
        self.disk.commit()
        self.disk.read()

        assert woken < self.woken or not self.queue.loading
        self.verify()

    # -- the end ----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Consume everything, or delete the queue: every promise has its verdict."""
        if self.names % 2:
            light = [copy for copy in self.having(UNACKED) if copy.light]
            self.queue.delete()
            self.resolve([copy for copy in self.copies if copy not in light], BROKEN)
            for copy in self.copies:
                if copy.promise is not None:
                    assert ([copy.verdict] if copy.verdict else []) == copy.promise.verdicts
            # the channels that hold the rest give it back one way or the other
            acked, given_back = light[::2], light[1::2]
            self.queue.ack([copy.key for copy in acked])
            self.queue.refuse_light([copy.key for copy in given_back])
            self.resolve(acked, KEPT)
            self.resolve(given_back, BROKEN)
        else:
            while self.having(READY):
                if self.has_disk:
                    self.disk.commit()
                    self.disk.read()
                self.fetch(50, ack_required=True)
            unacked = self.having(UNACKED)
            self.queue.ack([copy.key for copy in unacked])
            self.resolve(unacked, KEPT)
            assert (0, 0) == (self.queue.ready_count, self.queue.unacked_count)
        for copy in self.copies:
            if copy.promise is not None:
                assert [copy.verdict] == copy.promise.verdicts

    def teardown(self) -> None:
        try:
            self.drain()
            if self.has_disk:
                self.disk.commit()
        finally:
            if self.data_dir is not None:
                self.disk.environment.close()
                shutil.rmtree(self.data_dir)
            for what in self.seen:
                event(what)
                SEEN[what] += 1
            SEEN["examples"] += 1


class Paging(Machine):
    has_disk = True


class Priorities(Machine):
    highest = 3


class PagingPriorities(Paging):
    highest = 3


MACHINES = Machine, Paging, Priorities, PagingPriorities


def run(machine: Callable[[], Machine], examples: int, steps: int) -> None:
    """Run a machine so often, with so many steps each at most."""
    with patch.object(variable_queue_module, "UNCOUNTED", 8):
        run_state_machine_as_test(
            machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
        )


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)
def test_each_promise_has_one_verdict_when_it_is_due(machine: type[Machine]) -> None:
    """Promises, counts, order and flags of a queue in either mode are those of a plain list after any operations."""
    run(machine, 25, 40)


def main(examples: int, steps: int) -> None:
    """Run the machines long, and print the number of examples in which each thing happened."""
    for machine in MACHINES:
        SEEN.clear()
        run(machine, examples, steps)
        count = SEEN.pop("examples")
        print(f"{machine.__name__}: {count} examples of at most {steps} steps, no difference")
        for what, examples_with in SEEN.most_common():
            print(f"{100 * examples_with / count:5.1f} %  {what}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
