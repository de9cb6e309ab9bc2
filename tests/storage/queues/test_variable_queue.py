"""The variable queue, its journal and its disk against a list of every message they were ever given.

Everything is real but the threads: what a commit, a load or a file does happens when the machine says so, and a crash is
opening the data directory again while whatever was not committed is forgotten. The model knows exactly what must be on
disk at any time.
"""

import errno
import logging
import mmap
import os
import random
import shutil
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lmdb
import pytest
from checks.internals import has_unfinished
from hypothesis import currently_in_test_context, event, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from samples.walks import unacked_of, walked

from leveret.storage.errors import DiskFullError, Done, StorageError
from leveret.storage.journal.batch import Batch, LoggedChanges, together
from leveret.storage.journal.blocks import LAST_SEQ_ID, read_bitmap, read_header, read_records, unpack_key
from leveret.storage.journal.journal import Journal
from leveret.storage.journal.reads import DELTA, Loaded, LoadRequest, Range
from leveret.storage.message import Message, Persistent, body_octets
from leveret.storage.queues import peek as peek_module, variable_queue as variable_queue_module
from leveret.storage.queues.backing_queue import Look, Peeked, Piece
from leveret.storage.queues.invariants import check
from leveret.storage.queues.loading import AHEAD_LOADS
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.variable_queue import VariableQueue
from leveret.storage.store import (
    environment as environment_module,
    lmdb_environment as table_module,
    redo_log as redo_log_module,
)
from leveret.storage.store.environment import Environment, Written
from leveret.storage.store.recovery import recover, saved_rows
from leveret.storage.store.redo_log import LogEntry
from leveret.storage.store.replica import ReplicaEnvironment

IO_BATCH, LOAD_OCTETS, EMBED_BELOW, BLOB_THRESHOLD, SWEEP_WORK = 4, 1500, 300, 2000, 3
MEMORY = Path("/dev/shm")

READY, UNACKED, GONE = "ready", "unacked", "gone"
NOWHERE, IN_BLOB, NOTED, AHEAD, WRITING, WRITTEN = "nowhere", "file", "noted", "ahead", "writing", "written"
FAULTS = ("store", "paged", "deletions")
NO_ROOM = [("store",), ("store",), ("store", "many deletions"), ("store", "deletions")]
DELETIONS = ("marks", "merges", "deletes", "unrefs", "sweeps")
LITTLE = 4
"""Deletions for which a commit finds no space, if it finds space for fewer."""
TARGETS = [0, 1, 3, 8, 20, inf]
MODES = ["persistent", "transient", "mixed"]
LIMITS = [0, 300, 2000, 8000, 1 << 40]

SEEN: Counter[str] = Counter()
"""Number of examples in which each thing happened."""


class Copy:
    """The model's view of one queue's copy of a message."""

    def __init__(self, name: int, content: bytes, seq_id: int) -> None:
        self.name = name
        self.content = content
        self.seq_id = seq_id
        self.state = READY
        self.redelivered = False
        self.fetched = False
        self.returns = 0
        """Number of its returns."""
        self.noted_returns = 0
        """Least number of returns that would be found after a crash now."""
        self.most_returns = 0
        """Largest such number: a commit that carried out deletions alone may have written it down."""
        self.cut_returns = 0
        """Number of returns that is on disk after the commit under way."""
        self.expires = 0
        self.moved = False
        self.withdrawn = False
        self.deleted = False
        """True if its queue was deleted, while it was there."""
        self.dropped_with: list[Copy] | None = None
        """All that its queue has dropped with it and before, if no consumer took it."""
        self.disk = NOWHERE
        """Stage on its way to the disk; NOWHERE for one that shall not get there."""
        self.on_disk = False
        """True if it would be found after a crash now."""
        self.death = NOWHERE
        """Stage of its end on the way to the disk."""

    @property
    def body(self) -> int:
        return body_octets(self.content)

    def is_needed(self, *, late: bool) -> bool:
        """Return whether it has to be written, if it is not written yet."""
        return self.state != GONE or (late and not self.moved and not self.deleted)


class ModelQueue:
    def __init__(self, queue: VariableQueue) -> None:
        self.queue = queue
        self.copies: dict[int, Copy] = {}
        """Copies by seq_id, all that are on disk or not gone."""
        self.fetched = 0
        """Number of messages that were taken from the ready ones, or never were there."""
        self.read_to = 0
        """Position at which the last read of the delta ended."""

    def having(self, state: str) -> list[Copy]:
        return sorted((copy for copy in self.copies.values() if copy.state == state), key=lambda c: c.seq_id)

    def drop(self, copies: list[Copy]) -> None:
        """Note that the queue drops messages, which no consumer has taken."""
        dropped = [copy for copy in self.copies.values() if copy.dropped_with is not None]
        for copy in copies:
            copy.state = GONE
            copy.dropped_with = [*dropped, *copies]


class Publisher:
    def __init__(self) -> None:
        self.open: dict[int, list[Copy]] = {}
        """Copies in durable queues of messages without a verdict."""
        self.accepts: list[int] = []
        self.refusals: list[int] = []

    def accepted(self, seq_no: int) -> None:
        self.accepts.append(seq_no)

    def refused(self, seq_no: int) -> None:
        self.refusals.append(seq_no)


def compare(expected: list[Copy], found: list[Peeked]) -> None:
    """Compare messages that a look has found with those of the model."""
    assert [copy.seq_id for copy in expected] == [peeked.seq_id for peeked in found]
    assert [copy.content for copy in expected] == [peeked.message.content for peeked in found]
    assert [copy.expires for copy in expected] == [peeked.expires for peeked in found]


class HalfLook:
    """A look at a queue that is not done yet, and what it must find: the queue as it was when the look began."""

    def __init__(self, model: ModelQueue, most: int | None) -> None:
        self.most = most
        self.ready = [(copy, copy.redelivered) for copy in model.having(READY)]
        self.unacked = model.having(UNACKED)
        self.returns = {
            copy.seq_id: range(copy.noted_returns, copy.most_returns + 1)
            for copy, _ in self.ready
            if not copy.fetched
        }
        self.steps = model.queue.peek(most)
        self.wanted: Any = None
        self.reads = 0

    def go_on(self) -> bool:
        """Do one step; returns true after the last one."""
        try:
            if self.wanted is None:
                self.wanted = next(self.steps)
            else:
                self.reads += 1
                self.wanted = self.steps.send(self.wanted())
        except StopIteration as stopped:
            self.compare(stopped.value)
            return True
        return False

    def compare(self, look: Look) -> None:
        unacked = [(copy, True) for copy in self.unacked]
        for found, there, most in ((look.ready, self.ready, self.most), (look.unacked, unacked, None)):
            positions = {peeked.seq_id for peeked in found}
            expected = [
                (copy, flag)
                for copy, flag in there
                if copy.seq_id in positions
                or not (copy.state == GONE and len(copy.content) >= BLOB_THRESHOLD)
            ][:most]
            compare([copy for copy, _ in expected], found)
            assert [flag for _, flag in expected] == [peeked.redelivered for peeked in found]
        for peeked in look.ready:
            assert peeked.returns in self.returns.get(peeked.seq_id, range(1))


class HalfWalk:
    """A walk over a queue that is not done yet, which withdraws some of the messages that were there at its beginning."""

    def __init__(self, model: ModelQueue, seed: int) -> None:
        self.model = model
        self.chance = random.Random(seed)
        self.share = self.chance.choice([0.1, 0.5, 1])
        self.chosen: set[int] = set()
        """Messages that it withdraws in any case."""
        self.there = {copy.seq_id for state in (READY, UNACKED) for copy in model.having(state)}
        """Messages that it may show: those that are requeued meanwhile as well."""
        self.steps = model.queue.walk()
        self.answer: Any = None
        self.wanted: Any = None
        self.at = -1
        self.again: set[int] = set()
        """Messages of the last piece that were paged before they could be withdrawn: they come once more."""

    def go_on(self, machine: "Machine") -> bool:
        """Do one step; returns true after the last one."""
        try:
            if callable(self.wanted):
                self.answer = self.wanted()
            self.wanted, self.answer = self.steps.send(self.answer), None
        except StopIteration:
            return True
        if isinstance(self.wanted, Piece):
            self.use(machine, self.wanted)
        return False

    def use(self, machine: "Machine", piece: Piece) -> None:
        copies, queue = self.model.copies, self.model.queue
        found = [peeked.seq_id for peeked in piece.messages]
        assert found == sorted(found)
        assert set(found) <= self.there
        if found[0] > self.at:
            self.again.clear()
        else:
            assert set(found) <= self.again
            self.again.difference_update(found)
        self.at = max(self.at, found[-1])
        compare([copies[seq_id] for seq_id in found], piece.messages)
        for copy, peeked in zip([copies[seq_id] for seq_id in found], piece.messages, strict=True):
            assert copy.fetched or copy.noted_returns <= peeked.returns <= copy.most_returns
        chosen = [
            peeked.seq_id
            for peeked in piece.messages
            if self.chance.random() < self.share or peeked.seq_id in self.chosen
        ]
        if not chosen:
            return
        while not piece.prepare(chosen[0], chosen[-1]):
            machine.verify()
        machine.verify()
        taken = piece.withdraw(chosen)
        self.model.fetched += len(taken)
        left = [seq_id for seq_id in chosen if copies[seq_id].state == READY]
        assert taken == left[: len(taken)]
        if len(taken) < len(left):
            assert queue.delta.start <= left[len(taken)] < queue.delta.stop
            self.again.update(chosen)
            machine.note("left what was paged meanwhile")
        for seq_id in taken:
            copy = copies[seq_id]
            if not copy.fetched:
                copy.returns = copy.noted_returns = copy.most_returns = queue.take_returns([seq_id]).get(
                    seq_id, 0
                )
            copy.state, copy.fetched, copy.withdrawn = UNACKED, True, True
        machine.verify()
        machine.note("withdrew")
        machine.moved(
            self.model, [copies[seq_id] for seq_id in taken[1 if self.chance.random() < 0.3 else 0 :]]
        )


def _ready(model: ModelQueue) -> int:
    return model.queue.ready_count


def _unacked(model: ModelQueue) -> int:
    return model.queue.unacked_count


def name_of(message: Message) -> int:
    return int.from_bytes(message.content[3:7], "big")


class Machine(RuleBasedStateMachine):
    """A broker's storage without a broker."""

    blob_threshold = BLOB_THRESHOLD
    late = False
    """True if messages settled before their commit are written nevertheless, and confirmed then."""

    def __init__(self) -> None:
        super().__init__()
        self.data_dir = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.names = 0
        self.publisher = Publisher()
        self.queues: dict[int, ModelQueue] = {}
        self.transient: ModelQueue | None = None
        self.definitions: set[int] = set()
        """Durable queues that would be found after a crash now."""
        self.noted_definitions: list[tuple[int, bool]] = []
        self.writing_definitions: list[tuple[int, bool]] = []
        self.graves: dict[int, ModelQueue] = {}
        """Deleted queues, whose end may not be on disk yet."""
        self.late_acks: list[tuple[VariableQueue, list[int]]] = []
        """Deliveries that consumers of deleted queues have still to ack."""
        self.looks: list[HalfLook] = []
        self.walks: list[HalfWalk] = []
        self.seen: set[str] = set()
        self.target, self.limit, self.segment = inf, 1 << 40, 16
        self.open()

    # -- the disk ---------------------------------------------------------------------------------------------------

    def open_environment(self) -> Environment:
        return Environment(self.data_dir, sync=False)

    def open(self) -> None:
        self.environment = self.open_environment()
        boot = self.environment.boot
        self.ids = iter(range((boot << 32) + 1, (boot + 1) << 32))
        self.journal = Journal(boot << 40, EMBED_BELOW)
        self.requests: list[LoadRequest] = []
        self.reads: list[tuple[LoadRequest, Callable[[], Loaded]]] = []
        self.batch: Batch | None = None
        self.committed = False
        self.error: DiskFullError | None = None
        self.unlink: list[int] = []
        self.is_partly_deleted = False
        """True if records are deleted, and references to their bodies are not yet."""
        self.pager = Pager(
            self.journal,
            self.requests.append,
            segment=self.segment,
            io_batch=IO_BATCH,
            load_octets=LOAD_OCTETS,
            blob_threshold=self.blob_threshold,
            ram_limit=self.limit,
            early_confirm=not self.late,
        )
        self.pager.snapshot = self.environment.snapshot
        self.looks = []
        self.walks = []

    @initialize(
        messages=st.sampled_from(TARGETS),
        octets=st.sampled_from(LIMITS),
        segment=st.sampled_from([16, 4]),
        mode=st.sampled_from(MODES),
    )
    def declare_all(self, messages: float, octets: int, segment: int, mode: str) -> None:
        self.target = messages
        self.pager.ram_limit = self.limit = octets
        self.pager.segment = self.segment = segment
        for _ in range(2):
            self.declare()
        self.declare_transient()
        self.publish(60, mode, [50], 1, 0, 0)
        self.commit_at_once()
        self.reduce_memory_use(0)

    def declare(self) -> None:
        queue = VariableQueue(self.pager, next(self.ids), durable=True, next_seq=self.environment.boot << 40)
        self.queues[queue.qid] = ModelQueue(queue)
        self.journal.put("defs", queue.qid.to_bytes(8, "big"), b"")
        self.noted_definitions.append((queue.qid, True))

    def declare_transient(self) -> None:
        self.transient = ModelQueue(self.make(next(self.ids), durable=False))

    def make(self, qid: int, *, durable: bool) -> VariableQueue:
        first = self.environment.boot << 40 if durable else 0
        queue = VariableQueue(self.pager, qid, durable=durable, next_seq=first)
        queue.target_ram_count = self.target
        queue.count_returns(counted=True)
        return queue

    @property
    def all_queues(self) -> list[ModelQueue]:
        assert self.transient is not None
        return [*self.queues.values(), self.transient]

    def pick(self, number: int, count: Callable[[ModelQueue], int] = lambda _: 1) -> ModelQueue:
        """Return one of the queues, of those where `count` is not 0 if there are any."""
        queues = self.all_queues
        queues = [model for model in queues if count(model)] or queues
        return queues[number % len(queues)]

    def note(self, what: str) -> None:
        self.seen.add(what)

    # -- after each operation -------------------------------------------------------------------------------------------

    def verify(self, only: object = None) -> None:
        """Every oracle that can be asked at any time, of all queues or of the one that something has touched."""
        for model in self.all_queues:
            queue = model.queue
            if only not in (None, queue):
                continue
            check(queue)
            states = Counter(copy.state for copy in model.copies.values())
            assert states[READY] == queue.ready_count
            assert states[UNACKED] == queue.unacked_count
            octets = sum([copy.body for copy in model.copies.values() if copy.state == READY])
            assert octets == sum(queue.ready_octets())
            assert model.fetched == queue.fetched
            assert not queue.lost_octets
            if queue.delta.count:
                self.note("delta")
                assert queue.delta.start >= model.read_to, "what was read from the delta went back to it"
            if queue.q2:
                self.note("q2")
            if any(c.name for c in model.copies.values() if c.redelivered and c.state == READY):
                self.note("redelivered ready")
        publisher = self.publisher
        for seq_no in publisher.refusals:
            del publisher.open[seq_no]
        for seq_no in publisher.accepts:
            copies = publisher.open.pop(seq_no)
            # A publisher withheld by the end of a dropped copy does not hear that there was no room for an acked one.
            late = self.late and not any(copy.dropped_with is not None for copy in copies)
            assert all(copy.disk == WRITTEN or not copy.is_needed(late=late) for copy in copies)
            for copy in copies:  # what is older does not come back if a younger one is confirmed and gone
                if copy.dropped_with is not None and not copy.on_disk:
                    assert not any(other.on_disk for other in copy.dropped_with)
                    self.note("confirmed what was dropped")
        publisher.accepts.clear()
        publisher.refusals.clear()

    # -- publishing -------------------------------------------------------------------------------------------------

    def new(self, targets: list[ModelQueue], size: int, *, persistent: bool) -> Message:
        self.names += 1
        name = self.names
        body = size * 3 + name % 7
        content = b"\x02\x00\x01" + name.to_bytes(4, "big") + bytes(4) + body.to_bytes(8, "big") + bytes(size)
        address = b"\x01x" + bytes([1 + name % 3]) + b"k"
        copies = sum(model.queue.durable for model in targets)
        message: Message
        if persistent and copies:
            message = Persistent(address, content, 1, self.publisher, name, copies)
            self.publisher.open[name] = []
        else:
            message = Message(address, content, 1)
        return message

    def add(self, model: ModelQueue, messages: list[Message], state: str, expires: int = 0) -> None:
        first = model.queue.next_seq
        for seq_id, message in enumerate(messages, first):
            copy = Copy(name_of(message), message.content, seq_id)
            copy.state = state
            copy.expires = expires
            copy.fetched = state != READY
            model.fetched += copy.fetched
            if message.persistent and model.queue.durable:
                if copy.is_needed(late=self.late):
                    copy.disk = NOTED if len(message.content) < self.blob_threshold else IN_BLOB
                self.publisher.open[copy.name].append(copy)
            model.copies[seq_id] = copy

    @rule(
        count=st.sampled_from([40, 25, 60, 10, 3, 1]),
        mode=st.sampled_from(MODES),
        sizes=st.lists(
            st.one_of(st.integers(0, 200), st.integers(0, 200), st.integers(250, 700), st.just(2100)),
            min_size=1,
            max_size=4,
        ),
        chosen_queues=st.integers(1, 7),
        fan_out=st.integers(0, 3),
        expires=st.sampled_from([0, 0, 3, 6]),
    )
    def publish(
        self, count: int, mode: str, sizes: list[int], chosen_queues: int, fan_out: int, expires: int
    ) -> None:
        models = [model for number, model in enumerate(self.all_queues) if chosen_queues >> (number % 3) & 1]
        if not models:
            return
        runs: dict[int, list[Message]] = {id(model): [] for model in models}
        for number in range(count):
            chosen = models if fan_out else [models[number % len(models)]]
            persistent = mode == "persistent" or (mode == "mixed" and number % 3 != fan_out % 3)
            message = self.new(chosen, sizes[number % len(sizes)], persistent=persistent)
            for model in chosen:
                runs[id(model)].append(message)
        if fan_out and len(models) > 1:
            self.note("fan-out")
        for model in models:
            run = runs[id(model)]
            self.add(model, run, READY, expires)
            saved = model.queue.durable and any(message.persistent for message in run)
            model.queue.publish(run, persistent=saved, small=max(sizes) <= 100, expires=expires)
        self.verify()

    @rule(
        number=st.integers(0, 5),
        count=st.integers(1, 6),
        ack_required=st.booleans(),
        persistent=st.booleans(),
        size=st.sampled_from([0, 50, 400, 2100]),
        expires=st.sampled_from([0, 0, 5]),
    )
    def publish_delivered(
        self, number: int, count: int, ack_required: bool, persistent: bool, size: int, expires: int
    ) -> None:
        model = self.pick(number)
        if model.queue.ready_count:
            return
        messages = [self.new([model], size, persistent=persistent) for _ in range(count)]
        first = model.queue.next_seq
        self.add(model, messages, UNACKED if ack_required else GONE, expires)
        seq_ids = model.queue.publish_delivered(
            messages,
            ack_required=ack_required,
            persistent=persistent and model.queue.durable,
            expires=expires,
        )

        assert list(range(first, first + count)) == list(seq_ids)
        self.verify()

    # -- fetching -----------------------------------------------------------------------------------------------------

    def take(self, model: ModelQueue, batch: Any, state: str, *, flag: bool | None) -> None:
        expected = model.having(READY)[: len(batch.messages)]
        model.fetched += len(expected)
        assert [copy.seq_id for copy in expected] == list(batch.seq_ids)
        assert [copy.content for copy in expected] == [message.content for message in batch.messages]
        assert [bytes([1 + copy.name % 3]) for copy in expected] == [m.address[2:3] for m in batch.messages]
        stored = model.queue.take_returns(batch.seq_ids)
        for copy in expected:
            assert flag is None or copy.redelivered is flag
            if not copy.fetched:  # since the start
                self.compare_returns(copy, stored.get(copy.seq_id, 0))
            copy.state = state
            copy.fetched = True

    def compare_returns(self, copy: Copy, stored: int) -> None:
        """Compare the number of returns after a start with those that were written down."""
        assert copy.noted_returns <= stored <= copy.most_returns
        if stored:
            self.note("delivery count")
        copy.returns = copy.noted_returns = copy.most_returns = stored

    def fetch_from(self, model: ModelQueue, count: int, *, ack_required: bool) -> int:
        batch = model.queue.fetch(count, ack_required=ack_required)
        assert len(batch.messages) <= count
        if not batch.messages:
            self.note("waited for a load")
            assert model.queue.loading
        self.take(model, batch, UNACKED if ack_required else GONE, flag=batch.redelivered)
        return len(batch.messages)

    @precondition(lambda self: self.batch is None)
    @rule(
        number=st.integers(0, 5),
        mode=st.sampled_from(MODES),
        published=st.integers(1, 9),
        fetched=st.integers(1, 9),
        rounds=st.integers(5, 40),
    )
    def trade(self, number: int, mode: str, published: int, fetched: int, rounds: int) -> None:
        """Publishers and consumers are at work together, and the disk keeps up."""
        for _ in range(rounds):
            self.publish(published, mode, [50], 1 << number % 3, 0, 0)
            if self.journal.has_work:
                self.commit_at_once()
            self.load_at_once()
            model = self.all_queues[number % 3]
            if model.queue.ready_count:
                self.fetch_from(model, fetched, ack_required=False)
        self.verify()

    @precondition(lambda self: any(map(_ready, self.all_queues)))
    @rule(number=st.integers(0, 5), count=st.integers(1, 40), ack_required=st.booleans())
    def fetch(self, number: int, count: int, ack_required: bool) -> None:
        model = self.pick(number, _ready)
        if model.queue.ready_count:
            self.fetch_from(model, count, ack_required=ack_required)
            self.verify()

    def choose(self, copies: list[Copy], seed: int) -> list[Copy]:
        chance = random.Random(seed)
        if not copies:
            return []
        chosen = chance.sample(copies, chance.randint(1, len(copies)))
        if seed % 2:
            chosen.sort(key=lambda copy: copy.seq_id)
        return chosen

    @precondition(lambda self: any(model.queue.unacked_count for model in self.all_queues))
    @rule(number=st.integers(0, 5), seed=st.integers(0, 999))
    def ack(self, number: int, seed: int) -> None:
        model = self.pick(number, _unacked)
        self.ack_those(model, self.choose(model.having(UNACKED), seed))

    def ack_those(self, model: ModelQueue, chosen: list[Copy]) -> None:
        for copy in chosen:
            copy.state = GONE
        model.queue.ack([copy.seq_id for copy in chosen])
        self.verify()

    @precondition(
        lambda self: self.batch is None and any(not each.queue.ready_count for each in self.all_queues)
    )
    @rule(number=st.integers(0, 5), count=st.integers(1, 6), size=st.sampled_from([0, 400, 2100]))
    def ack_in_flight(self, number: int, count: int, size: int) -> None:
        """Messages are settled while their commit is under way."""
        model = self.pick(number, lambda model: not model.queue.ready_count)
        first = model.queue.next_seq
        messages = [self.new([model], size, persistent=True) for _ in range(count)]
        self.add(model, messages, UNACKED)
        model.queue.publish_delivered(messages, ack_required=True, persistent=model.queue.durable)
        if self.journal.has_work:
            self.cut()
        for seq_id in range(first, first + count):
            model.copies[seq_id].state = GONE
        self.note("acked in flight")
        model.queue.ack(range(first, first + count))
        self.verify()

    @precondition(lambda self: any(model.queue.unacked_count for model in self.all_queues))
    @rule(number=st.integers(0, 5), seed=st.integers(0, 999))
    def requeue(self, number: int, seed: int) -> None:
        model = self.pick(number, _unacked)
        chosen = self.choose([copy for copy in model.having(UNACKED) if not copy.withdrawn], seed)
        for copy in chosen:
            copy.state = READY
            copy.redelivered = True
            copy.returns += 1
        model.queue.note_returns({copy.seq_id: copy.returns for copy in chosen})
        model.queue.requeue([copy.seq_id for copy in chosen])
        self.verify()

    @precondition(lambda self: self.batch is None)
    @rule(
        number=st.integers(0, 5),
        count=st.integers(0, 6),
        size=st.sampled_from([0, 400, 2100]),
        seed=st.integers(0, 999),
        deleting=st.booleans(),
        faults=st.sampled_from(NO_ROOM),
    )
    def settle_without_room(
        self, number: int, count: int, size: int, seed: int, deleting: bool, faults: tuple[str, ...]
    ) -> None:
        """Messages are acked, others move, perhaps their queue goes, and there is space for deletions at most."""
        models = list(self.queues.values())
        model = models[number % len(models)]
        if model.queue.ready_count:
            self.fetch_from(model, 1 + seed % 40, ack_required=True)
        elif count:
            messages = [self.new([model], size, persistent=True) for _ in range(count)]
            self.add(model, messages, UNACKED)
            model.queue.publish_delivered(messages, ack_required=True, persistent=True)
            self.commit_all()
        chosen = self.choose(model.having(UNACKED), seed)
        self.ack_those(model, chosen[::2])
        self.move_those(model, chosen[1::2])
        if deleting:
            self.delete_that(model, acks=True)
        if self.journal.has_work:
            self.cut()
            self.commit(faults)
            self.note("settled without room" + ", and deleted" * deleting)

    def dropped(self, model: ModelQueue, expected: list[Copy], count: int) -> None:
        assert count <= len(expected)
        assert count == len(expected) or model.queue.loading
        model.drop(expected[:count])
        model.fetched += count

    @precondition(lambda self: any(map(_ready, self.all_queues)))
    @rule(number=st.integers(0, 5), count=st.integers(1, 30))
    def drop(self, number: int, count: int) -> None:
        model = self.pick(number, _ready)
        self.dropped(model, model.having(READY)[:count], model.queue.drop(count))
        self.verify()

    def expired(self, model: ModelQueue, now: int, limit: int) -> list[Copy]:
        """Return the expired messages at the head that the queue reports, a part of those that the model has."""
        expected = list(takewhile(lambda copy: 0 < copy.expires <= now, model.having(READY)))[:limit]
        head = model.having(READY)[0]
        expires = model.queue.head_expires()
        assert expires == head.expires or (expires is None and model.queue.loading)
        count, expired = model.queue.head_run(now, limit)
        assert count or model.queue.loading
        if expired:
            assert count <= len(expected)
            return expected[:count]
        assert not (count and expected)
        run = model.having(READY)[:count]
        assert run == list(takewhile(lambda copy: not 0 < copy.expires <= now, run))
        return []

    @precondition(lambda self: any(map(_ready, self.all_queues)))
    @rule(number=st.integers(0, 5), now=st.integers(0, 9), limit=st.integers(1, 40))
    def drop_expired(self, number: int, now: int, limit: int) -> None:
        model = self.pick(number, _ready)
        expected = self.expired(model, now, limit)
        if expected:
            self.note("expired")
            self.dropped(model, expected, model.queue.drop(len(expected)))
        self.verify()

    @precondition(lambda self: any(map(_ready, self.all_queues)))
    @rule(number=st.integers(0, 5), now=st.integers(0, 9), limit=st.integers(1, 40))
    def fetch_expired(self, number: int, now: int, limit: int) -> None:
        model = self.pick(number, _ready)
        expected = self.expired(model, now, limit)
        if expected:
            assert self.fetch_from(model, len(expected), ack_required=True) <= len(expected)
        self.verify()

    @precondition(lambda self: any(model.queue.unacked_count for model in self.all_queues))
    @rule(number=st.integers(0, 5), seed=st.integers(0, 999))
    def move(self, number: int, seed: int) -> None:
        """Unacked messages go elsewhere, as far as their bodies are here."""
        model = self.pick(number, _unacked)
        self.move_those(model, self.choose(model.having(UNACKED), seed))

    def move_those(self, model: ModelQueue, copies: list[Copy]) -> None:
        chosen = {copy.seq_id: copy for copy in copies}
        found, waiting = model.queue.unacked_messages(chosen)
        assert sorted(chosen) == sorted([*(seq_id for seq_id, _ in found), *waiting])
        assert not waiting or model.queue.loading
        if waiting:
            self.note("waited for a body")
        for seq_id, message in found:
            assert chosen[seq_id].content == message.content
        self.moved(model, [chosen[seq_id] for seq_id, _ in found])

    def moved(self, model: ModelQueue, copies: list[Copy]) -> None:
        for copy in copies:
            copy.state = GONE
            copy.moved = True
        model.queue.ack([copy.seq_id for copy in copies], moved=True)
        self.verify()

    def purge(self, number: int) -> None:
        model = self.pick(number)
        ready = model.having(READY)
        if model.queue.delta.count:
            self.note("purged a delta")
        model.drop(ready)

        assert len(ready) == model.queue.purge()
        self.verify()

    def delete(self, number: int, *, acks: bool) -> None:
        self.delete_that(self.pick(number, _unacked), acks=acks)

    def delete_that(self, model: ModelQueue, *, acks: bool) -> None:
        unacked = [copy.seq_id for copy in model.having(UNACKED)]
        for copy in model.having(UNACKED):
            self.note(f"deleted unacked, {copy.disk}")
        model.drop([copy for copy in model.copies.values() if copy.state != GONE])
        for copy in model.copies.values():
            copy.deleted = True
        model.queue.delete()
        assert model.queue.unacked_count == 0
        if model.queue.durable:
            qid = model.queue.qid
            self.journal.delete("defs", qid.to_bytes(8, "big"))
            self.noted_definitions.append((qid, False))
            self.graves[qid] = model
            del self.queues[qid]
            self.declare()
        else:
            self.declare_transient()
        if acks:
            model.queue.ack(unacked)
        elif unacked:
            self.late_acks.append((model.queue, unacked))
        self.note("deleted a queue")
        self.verify()

    @precondition(lambda self: self.late_acks)
    @rule(count=st.integers(1, 20))
    def ack_deleted(self, count: int) -> None:
        """Consumers settle some messages of a queue that is gone."""
        queue, seq_ids = self.late_acks.pop(0)
        queue.ack(seq_ids[:count])
        if seq_ids[count:]:
            self.late_acks.append((queue, seq_ids[count:]))
        self.verify()

    # -- memory ---------------------------------------------------------------------------------------------------------

    @rule(
        number=st.integers(0, 5),
        messages=st.sampled_from(TARGETS),
        octets=st.sampled_from(LIMITS),
        acks_first=st.booleans(),
    )
    def set_ram_target(self, number: int, messages: float, octets: int, acks_first: bool) -> None:
        queue = self.pick(number).queue
        queue.rates.fetched = 10.0 if acks_first else 0.0
        queue.set_ram_target(messages, octets)
        self.verify()

    @rule(number=st.integers(0, 5), lazy=st.booleans())
    def set_lazy(self, number: int, lazy: bool) -> None:
        self.pick(number).queue.set_lazy(lazy=lazy)
        self.verify()

    @rule(number=st.integers(0, 5))
    def reduce_memory_use(self, number: int) -> None:
        self.pick(number).queue.reduce_memory_use()
        self.verify()

    # -- commits --------------------------------------------------------------------------------------------------------

    def every_copy(self) -> Iterator[Copy]:
        for model in (*self.all_queues, *self.graves.values()):
            yield from model.copies.values()

    @precondition(lambda self: self.batch is None and (self.journal.has_work or self.journal.has_unpaged))
    @rule(page=st.sampled_from([inf, inf, 0, 300]))
    def cut(self, page: float = inf) -> None:
        for copy in self.every_copy():
            # what came back before the start only is not written again: the disk says how often that was
            copy.cut_returns = copy.returns if copy.disk == WRITTEN and copy.fetched else 0
            if copy.disk == NOTED:
                copy.disk = WRITING if copy.is_needed(late=self.late) else NOWHERE
            elif copy.disk == WRITTEN and copy.state == GONE and copy.death == NOWHERE:
                copy.death = WRITING
        self.writing_definitions, self.noted_definitions = self.noted_definitions, []
        self.batch = self.journal.cut(page)
        if page and self.journal.has_unpaged:
            self.note("paged little by little")
        if any(count > 1 for _, count in self.batch.paged.shared.values()):
            self.note("a transient body paged for several queues")
        self.committed = False
        self.verify()

    @precondition(lambda self: self.batch is not None and not self.committed)
    @rule(faults=st.sampled_from([(), (), (), ("store",), ("paged",), ("store", "deletions"), FAULTS]))
    def commit(self, faults: tuple[str, ...] = ()) -> None:
        assert self.batch is not None
        self.committed = True
        self.error = None
        try:
            with self.failing(faults):
                self.unlink += self.write(self.batch)
        except DiskFullError as error:
            self.error = error
            self.unlink += error.unlink
            self.note(f"disk full, {error.durable.value} done")
            if error.paged is not Done.ALL:
                self.note(f"nothing paged, {error.durable.value} done")
        done = self.done
        for copy in self.every_copy():
            if done is Done.ALL:
                copy.noted_returns = max(copy.noted_returns, copy.cut_returns)
            if done is not Done.NOTHING:
                copy.most_returns = max(copy.most_returns, copy.cut_returns)
            if copy.disk == WRITING and done is Done.ALL:
                copy.on_disk = True
            if copy.death == WRITING and done is not Done.NOTHING:
                copy.on_disk = False
        self.is_partly_deleted &= done is Done.NOTHING
        if done is not Done.ALL:
            self.keep_what_is_left()
        if done is Done.ALL:
            for qid, exists in self.writing_definitions:
                (self.definitions.add if exists else self.definitions.discard)(qid)
        self.verify_bodies()
        self.verify()

    def write(self, batch: Batch) -> list[int]:
        """Make a batch safe; returns the files that go."""
        return self.environment.commit(batch)

    def settle_batch(self) -> None:
        self.journal.settled(self.error)

    def verify_bodies(self) -> None:
        """Each body apart from its records is there while any record refers to it, and knows how many do."""
        for table in (self.environment.store, self.environment.paged):
            with table.env.begin() as txn:
                blocks, bodies, refs, acks = (
                    dict(txn.cursor(table.db[name])) for name in ("blocks", "bodies", "refs", "acks")
                )
            found = Counter(
                record.msg_id.to_bytes(8, "big")
                for key, value in blocks.items()
                for record in read_records(
                    value, read_header(key, value), read_bitmap(acks.get(key), read_header(key, value)).dead
                )
                if not isinstance(record, int) and record.msg_id
            )
            if any(count > 1 for count in found.values()):
                paged = "paged " * (table is self.environment.paged)
                self.note(f"a {paged}body with several records")
            counts = Counter({key: int.from_bytes(refs[key], "big") if key in refs else 1 for key in bodies})
            assert refs.keys() <= bodies.keys()
            assert found <= counts
            assert found == counts or self.is_partly_deleted

    @property
    def done(self) -> Done:
        """The part of the batch that the durable environment has taken."""
        return Done.ALL if self.error is None else self.error.durable

    def keep_what_is_left(self) -> None:
        """Not all of the batch is done: of what was to be deleted some is still there, and all of what has moved."""
        for model in (*self.queues.values(), *self.graves.values()):
            dying = [copy for copy in model.copies.values() if copy.death == WRITING]
            has_moved = any(copy.moved for copy in dying)
            if not has_moved and self.done is Done.DELETIONS:
                continue
            if has_moved:
                self.note(f"moved nothing{', from a deleted queue' * model.queue.deleted}")
            left = {
                record.seq_id
                for key, (value, dead) in self.stored_blocks(model.queue.qid).items()
                for header in (read_header(key, value),)
                for record in read_records(value, header, read_bitmap(dead, header).dead)
                if not isinstance(record, int)
            }
            for copy in dying:
                assert copy.seq_id in left or not copy.moved
                copy.on_disk = copy.seq_id in left
                if copy.on_disk:
                    copy.death = NOWHERE
                else:
                    self.is_partly_deleted |= self.done is Done.NOTHING

    def stored_blocks(self, qid: int) -> dict[bytes, tuple[bytes, bytes | None]]:
        """Return the blocks of a queue that are safe, with their bitmaps."""
        found = self.environment.read([Range(qid, 0, LAST_SEQ_ID)], 1 << 40)
        return {raw.key: (raw.value, raw.dead) for raw in found.blocks if not raw.paged}

    @contextmanager
    def failing(self, faults: Collection[str]) -> Iterator[None]:
        """Let tables of the environment find no room, after they have done their work."""

        def fail_after(operation: Callable[..., Any]) -> Callable[..., Any]:
            def fail(txn: Any, changes: Any) -> None:
                operation(txn, changes)
                if not isinstance(changes, LoggedChanges):  # those were logged before
                    raise lmdb.MapFullError("planted")

            return fail

        tables = self.environment.store, self.environment.paged
        for table, name in zip(tables, ("store", "paged"), strict=True):
            if name in faults:
                table.apply = fail_after(table.apply)  # type: ignore[method-assign]
            most = 0 if "deletions" in faults else LITTLE if "many deletions" in faults else inf

            def apply(txn: Any, changes: Any, table: Any = table, most: float = most) -> None:
                table_module.LmdbEnvironment.apply_deletions(table, txn, changes)
                if sum([len(getattr(changes, name)) for name in DELETIONS]) >= most:
                    raise lmdb.MapFullError("planted")

            if most < inf:
                table.apply_deletions = apply  # type: ignore[method-assign]
        try:
            yield
        finally:
            for table in tables:
                vars(table).pop("apply", None)
                vars(table).pop("apply_deletions", None)

    @precondition(lambda self: self.committed and self.batch is not None)
    @rule()
    def settle(self) -> None:
        done = self.done
        for copy in self.every_copy():
            if copy.disk == WRITING:
                if done is Done.ALL:
                    copy.disk = WRITTEN
                else:
                    copy.disk = NOTED if copy.state != GONE else NOWHERE
            if copy.death == WRITING:
                copy.death = NOWHERE if done is Done.NOTHING else WRITTEN
        if done is not Done.ALL:
            self.noted_definitions[:0] = self.writing_definitions
        self.writing_definitions = []
        self.batch = None
        self.committed = False
        self.settle_batch()
        for msg_id in self.unlink:
            self.environment.bodies.path(msg_id).unlink(missing_ok=True)
        self.unlink = []
        self.verify()

    @precondition(lambda self: self.batch is None and self.journal.has_work)
    @rule()
    def commit_at_once(self) -> None:
        self.cut()
        self.commit(())
        self.settle()

    @rule()
    def wait(self) -> None:
        """Request a notice when all that was settled so far is written down."""
        ended = [copy for copy in self.every_copy() if copy.state == GONE and not copy.moved]

        def on_stored(stored: bool) -> None:
            self.note("waited for a commit")
            assert not stored or not any(copy.on_disk for copy in ended)

        self.journal.when_all_safe(on_stored)

    @precondition(lambda self: self.journal.files)
    @rule(room=st.sampled_from([True, True, True, False]))
    def write_blob(self, room: bool) -> None:
        msg_id, (message, _) = next(iter(self.journal.files.items()))
        if not room:
            for copy in self.every_copy():
                if copy.disk == IN_BLOB and copy.name == name_of(message) and copy.state == GONE:
                    copy.disk = NOWHERE
            self.journal.file_failed(msg_id)
        else:
            self.note("file")
            path = self.environment.bodies.path(msg_id)
            path.write_bytes(self.environment.bodies.checksum(msg_id, message.content) + message.content)
            for copy in self.every_copy():
                if copy.disk == IN_BLOB and copy.name == name_of(message):
                    copy.disk = NOTED if copy.is_needed(late=self.late) else NOWHERE
            if not self.journal.file_written(msg_id):
                path.unlink()
        self.verify()

    # -- loads ----------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.requests)
    @rule(is_whole=st.booleans())
    def read(self, is_whole: bool) -> None:
        """Read the blocks, and their bodies at once or when the load is finished."""
        request = self.requests.pop(0)
        blocks = self.environment.read_blocks(request.ranges, request.limit)
        bodies = partial(self.environment.read_bodies, *blocks, request.ranges)
        found = bodies() if is_whole else None
        self.reads.append((request, lambda: found or bodies()))

    @precondition(lambda self: self.reads)
    @rule()
    def finish_load(self) -> None:
        request, read = self.reads.pop(0)
        found = read()
        is_overtaken = request.queue._loading is not request  # type: ignore[attr-defined]
        self.note("overtaken load" if is_overtaken else "load of " + request.what)
        request.queue.loaded(request, found)
        for model in self.all_queues:
            assert not model.queue.damaged
            if model.queue is request.queue and request.what == DELTA and not is_overtaken:
                model.read_to = min(found.stop, request.horizon)
        self.verify(request.queue)

    @precondition(lambda self: self.requests or self.reads)
    @rule()
    def load_at_once(self) -> None:
        while self.requests:
            self.read(is_whole=True)
        while self.reads:
            self.finish_load()

    # -- looks ----------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.looks) < 4)
    @rule(number=st.integers(0, 5), most=st.sampled_from([None, None, 1, 7]), steps=st.integers(0, 3))
    def look(self, number: int, most: int | None, steps: int) -> None:
        self.looks.append(HalfLook(self.pick(number, _ready), most))
        for _ in range(steps):
            if self.looks:
                self.look_on()
        self.verify()

    @precondition(lambda self: self.looks)
    @rule()
    def look_on(self) -> None:
        if self.looks[0].go_on():
            self.note("look with reads" if self.looks.pop(0).reads else "look into memory")

    @precondition(lambda self: self.looks)
    @rule()
    def finish_looks(self) -> None:
        while self.looks:
            self.look_on()
        self.verify()

    # -- walks ----------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.walks) < 3)
    @rule(number=st.integers(0, 5), seed=st.integers(0, 999), steps=st.integers(0, 5))
    def walk(self, number: int, seed: int, steps: int) -> None:
        self.walks.append(HalfWalk(self.pick(number, _ready), seed))
        for _ in range(steps):
            self.walk_on(0)

    @precondition(lambda self: self.walks)
    @rule(number=st.integers(0, 2))
    def walk_on(self, number: int) -> None:
        if self.walks and self.walks[number % len(self.walks)].go_on(self):
            del self.walks[number % len(self.walks)]
        self.verify()

    @precondition(lambda self: self.walks)
    @rule()
    def finish_walks(self) -> None:
        while self.walks:
            self.walk_on(0)

    @rule(number=st.integers(0, 5), most=st.sampled_from([1, 3, 100]), backwards=st.booleans())
    def read_portions(self, number: int, most: int, backwards: bool) -> None:
        model = self.pick(number, _ready)
        before = (
            model.queue.state_counts(),
            dict(model.queue.delta.blocks),
            model.queue.ram_octets,
            model.queue.loading,
        )
        for found, state in (
            (walked(model.queue, most, backwards=backwards), READY),
            (unacked_of(model.queue, most), UNACKED),
        ):
            expected = model.having(state)
            compare(expected, found)
            if state == READY:
                assert [copy.redelivered for copy in expected] == [peeked.redelivered for peeked in found]
                for copy, peeked in zip(expected, found, strict=True):
                    most_returns = 0 if copy.fetched else copy.most_returns
                    assert min(copy.noted_returns, most_returns) <= peeked.returns <= most_returns
        assert before == (
            model.queue.state_counts(),
            dict(model.queue.delta.blocks),
            model.queue.ram_octets,
            model.queue.loading,
        )
        self.note("portions from the tail" if backwards else "portions")
        self.verify()

    # -- restarts ---------------------------------------------------------------------------------------------------------

    def commit_all(self) -> None:
        while self.journal.files:
            self.write_blob(room=True)
        if self.batch is not None and not self.committed:
            self.commit(())
        if self.batch is not None:
            self.settle()
        while self.journal.has_work or self.journal.has_unpaged or has_unfinished(self.environment):
            self.cut() if self.journal.has_work else self.cut_nothing()
            self.commit(())
            self.settle()

    def cut_nothing(self) -> None:
        self.batch = self.journal.cut()

    def stop_and_start(self, *, failing: bool) -> None:
        for model in self.all_queues:  # what is withdrawn has moved before an orderly stop
            self.ack_those(model, [copy for copy in model.having(UNACKED) if copy.withdrawn])
        self.commit_all()
        assert not self.publisher.open
        self.environment.save(saved_rows([model.queue for model in self.queues.values()]))
        self.note("clean restart")
        for copy in self.every_copy():
            if copy.fetched:
                copy.noted_returns = copy.most_returns = copy.returns
        self.finish_looks()
        if failing:  # a start that ends before clients may connect
            self.environment.close()
            self.environment = Environment(self.data_dir, sync=False)
            recover(
                self.environment, {int.from_bytes(key, "big") for key, _ in self.environment.rows("defs")}
            )
        self.start(clean=True)

    @rule(
        what=st.sampled_from(["purge", "purge", "delete", "stop", "crash", "crash"]),
        number=st.integers(0, 5),
        twice=st.booleans(),
    )
    def disaster(self, what: str, number: int, twice: bool) -> None:
        if what == "purge":
            self.purge(number)
        elif what == "delete":
            self.delete(number, acks=twice)
        elif what == "stop":
            self.stop_and_start(failing=twice)
        else:
            self.crash(recovering=twice)

    def crash(self, *, recovering: bool) -> None:
        self.publisher.open.clear()
        if self.batch is not None:
            self.note("crash in flight" if not self.committed else "crash before settling")
        self.note("crash")
        self.finish_looks()
        if recovering:  # and again before anything was written
            self.environment.close()
            Environment(self.data_dir, sync=False).close()
        self.start(clean=False)

    def start(self, *, clean: bool) -> None:
        self.finish_looks()
        self.walks = []
        self.environment.close()
        before = self.graves | self.queues
        self.queues = {}
        self.graves = {}
        self.late_acks = []
        self.noted_definitions = []
        self.writing_definitions = []
        self.open()
        qids = {int.from_bytes(key, "big") for key, _ in self.environment.rows("defs")}
        assert self.definitions == qids
        assert clean is self.environment.was_clean
        found = recover(self.environment, qids)
        self.environment.begin_use()
        for qid in sorted(qids):
            queue = self.make(qid, durable=True)
            model = ModelQueue(queue)
            model.copies = {c.seq_id: c for c in before[qid].copies.values() if c.on_disk}
            for copy in model.copies.values():
                copy.redelivered = not clean or copy.redelivered or copy.fetched
                copy.fetched = False
                copy.returns = copy.most_returns
                copy.cut_returns = 0
                copy.state = READY
                copy.moved = copy.withdrawn = False
                copy.disk = WRITTEN
                copy.death = NOWHERE
            assert len(model.copies) == (found[qid].messages if qid in found else 0)
            if qid in found:
                each = found[qid]
                assert each.expiring or not any(copy.expires for copy in model.copies.values())
                if model.copies:
                    assert each.first <= min(model.copies)
                    assert max(model.copies) < each.stop
                queue.recover(each)
            self.queues[qid] = model
        self.declare_transient()
        while len(self.queues) < 2:
            self.declare()
        self.verify()

    # -- the end ----------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            self.environment.close()
            shutil.rmtree(self.data_dir)
            for what in self.seen:
                if currently_in_test_context():
                    event(what)
                SEEN[what] += 1
            SEEN["examples"] += 1

    def drain(self) -> None:
        """Consume everything: nothing may be left on disk then."""
        if self.transient is None:
            return
        self.commit_all()
        self.finish_looks()
        assert not self.publisher.open
        for model in self.all_queues:
            model.queue.ack([copy.seq_id for copy in model.having(UNACKED)])
            for copy in model.having(UNACKED):
                copy.state = GONE
            while model.queue.ready_count:
                if not self.fetch_from(model, 50, ack_required=False):
                    self.load_at_once()
            self.verify()
        self.commit_all()
        for model in self.all_queues:
            assert not model.queue.journal_returns
            assert not model.queue.stored_returns
        for table in (self.environment.store, self.environment.paged):
            with table.env.begin() as txn:
                for name in ("blocks", "acks", "bodies", "refs", "sweeps"):
                    assert not list(txn.cursor(table.db[name])), name
        assert not list(self.environment.blobs.iterdir())


ROUND = 1000
"""Examples that hypothesis keeps in mind together; more only make it slow."""


class LateMachine(Machine):
    """The state machine with queues that confirm nothing before its commit."""

    late = True


class LoggedMachine(Machine):
    """The state machine of a node whose log is replicated: batches are settled when they are logged, and applied later.

    A crash is a takeover: what is logged is applied before anything is read. Bodies have no files.
    """

    blob_threshold = 1 << 60

    def __init__(self) -> None:
        self.logged: deque[bytes] = deque()
        """Batches that are in the log, and not applied."""
        self.following: Batch | None = None
        """A batch that was cut and encoded while another one is on its way."""
        self.encoded: bytes | None = None
        """Bytes of the batch that was cut so, which may be the current one by now."""
        self.ahead_definitions: list[tuple[int, bool]] = []
        self.boots = 0
        self.place = 0
        super().__init__()

    def open_environment(self) -> ReplicaEnvironment:
        environment = ReplicaEnvironment(self.data_dir, sync=False)
        self.boots += 1
        environment.boot = self.boots
        return environment

    def open(self) -> None:
        super().open()
        self.journal.is_logged_first = True
        self.following = self.encoded = None
        self.ahead_definitions = []

    @precondition(lambda self: self.committed and self.following is None and self.journal.has_work)
    @rule()
    def cut_ahead(self) -> None:
        """The next batch is cut and encoded while the answer to the last one is awaited."""
        assert isinstance(self.environment, ReplicaEnvironment)
        for copy in self.every_copy():
            copy.cut_returns = copy.returns if copy.disk == WRITTEN and copy.fetched else 0
            if copy.disk == NOTED:
                copy.disk = AHEAD if copy.is_needed(late=self.late) else NOWHERE
            elif copy.state == GONE and copy.death == NOWHERE:
                # the end of one that was settled early is noted when its own batch is settled
                is_early = copy.disk == WRITING and copy.is_needed(late=self.late)
                if copy.disk in {WRITING, WRITTEN} and not is_early:
                    copy.death = AHEAD
        self.ahead_definitions, self.noted_definitions = self.noted_definitions, []
        self.following = self.journal.cut(0)
        self.encoded, error = self.environment.prepare(self.following)
        assert error is None
        self.note("cut ahead")
        self.verify()

    @precondition(lambda self: self.batch is not None and not self.committed)
    @rule(faults=st.sampled_from([(), (), ("paged",)]))
    def commit(self, faults: tuple[str, ...] = ()) -> None:
        assert isinstance(self.environment, ReplicaEnvironment)
        assert self.batch is not None
        self.committed = True
        octets, self.encoded, self.error = self.encoded, None, None
        if octets is None:
            with self.failing(faults):
                octets, self.error = self.environment.prepare(self.batch)
        if octets is not None:
            self.logged.append(octets)
        for copy in self.every_copy():
            copy.noted_returns = max(copy.noted_returns, copy.cut_returns)
            copy.most_returns = max(copy.most_returns, copy.cut_returns)
            copy.on_disk |= copy.disk == WRITING
            copy.on_disk &= copy.death != WRITING
        for qid, exists in self.writing_definitions:
            (self.definitions.add if exists else self.definitions.discard)(qid)
        self.verify()

    @precondition(lambda self: self.committed and self.batch is not None)
    @rule()
    def settle(self) -> None:
        super().settle()
        self.batch, self.following = self.following, None
        self.writing_definitions, self.ahead_definitions = self.ahead_definitions, []
        for copy in self.every_copy():
            copy.disk = WRITING if copy.disk == AHEAD else copy.disk
            copy.death = WRITING if copy.death == AHEAD else copy.death

    @precondition(lambda self: len(self.logged) > self.committed)
    @rule()
    def apply(self) -> None:
        if len(self.logged) > 1:
            self.note("several batches to apply")
        self.apply_next()
        self.journal.applied()
        self.verify_bodies()
        self.verify()

    def apply_next(self) -> None:
        assert isinstance(self.environment, ReplicaEnvironment)
        self.place += 1
        self.environment.apply(b"%d" % self.place, [(self.logged.popleft(), (), ())], ())

    def commit_all(self) -> None:
        while True:
            if self.following is not None:
                self.settle()
            super().commit_all()
            while self.logged:
                self.apply()
            if not (self.journal.has_work or self.journal.has_unpaged or has_unfinished(self.environment)):
                break

    def disaster(self, what: str, number: int, twice: bool) -> None:
        if what == "stop":
            for model in self.all_queues:
                self.ack_those(model, [copy for copy in model.having(UNACKED) if copy.withdrawn])
            self.commit_all()
        super().disaster("crash" if what == "stop" else what, number, twice=False)

    def crash(self, *, recovering: bool) -> None:
        if self.logged:
            self.note("crash before all was applied")
        while self.logged:
            self.apply_next()
        super().crash(recovering=recovering)


class LateLoggedMachine(LoggedMachine):
    """The state machine of a replicated log with queues that confirm nothing before its commit."""

    late = True


class RedoMachine(Machine):
    """The state machine of a broker that logs small batches, and writes them to the tables with a later one.

    A start writes there what is only logged. A fault of the log is that it has no room. Every other entry is written by
    somebody else, around the page cache, as the kernel does.
    """

    is_direct = False
    now = 0.0
    """Time by the clock of the log, in seconds: it does not depend on the machine, so that examples can be repeated."""

    def open_environment(self) -> Environment:
        return Environment(self.data_dir, sync=True)

    @precondition(lambda self: self.environment.has_logged)
    @rule()
    def wait(self) -> None:
        """Let what is only logged become due: the next commit writes it to the tables."""
        self.now += redo_log_module.MOST_SECONDS

    @precondition(lambda self: self.batch is None and (self.journal.has_work or self.journal.has_unpaged))
    @rule(page=st.sampled_from([0, 0, 0, inf]))
    def cut(self, page: float = 0) -> None:
        """A batch that pages is not logged."""
        super().cut(page)

    def write(self, batch: Batch) -> list[int]:
        self.written = Written([], is_logged=False, applied=0)
        self.is_direct = not self.is_direct
        with (
            patch.object(environment_module, "LOGGED_MESSAGES", sys.maxsize),
            patch.object(redo_log_module, "monotonic", lambda: self.now),
        ):
            entry = self.environment.begin_log(batch) if self.is_direct else None
            if entry is not None and self.is_written_directly(entry):
                self.written = self.environment.end_log(entry)
            else:
                self.written = self.environment.write(batch, entry)
        if self.written.is_logged:
            self.note("logged")
        return self.written.unlink

    def is_written_directly(self, entry: LogEntry) -> bool:
        with mmap.mmap(-1, -(-len(entry.octets) // redo_log_module.PAGE) * redo_log_module.PAGE) as octets:
            octets[: len(entry.octets)] = entry.octets
            written = os.pwrite(entry.direct, octets, entry.at) == len(octets)
        try:
            redo_log_module.sync_data(entry.direct)
        except OSError:
            written = False
        self.note("written around the page cache" if written else "no room around the page cache")
        return written

    def settle_batch(self) -> None:
        done = self.error or self.written
        if done.applied:
            self.note("several logged batches written" if done.applied > 1 else "a logged batch written")
        for _ in range(done.applied):
            self.journal.applied()
        self.journal.settled(self.error, is_logged=self.written.is_logged)

    @contextmanager
    def failing(self, faults: Collection[str]) -> Iterator[None]:
        redo = self.environment.store.redo
        before = redo.place if redo is not None else None
        with super().failing(faults):
            if "paged" not in faults:
                yield
                return
            with patch.object(redo_log_module, "sync_data", side_effect=OSError(errno.ENOSPC, "planted")):
                yield
            if redo is not None and redo.place != before:
                self.note("no room in the log")

    def stored_blocks(self, qid: int) -> dict[bytes, tuple[bytes, bytes | None]]:
        blocks = super().stored_blocks(qid)
        redo = self.environment.store.redo
        waiting = together(redo.waiting if redo is not None else ())
        blocks |= {key: (value, None) for key, value in waiting.blocks if unpack_key(key)[0] == qid}
        blocks |= {key: (blocks[key][0], bits) for key, bits in waiting.marks if key in blocks}
        return {key: block for key, block in blocks.items() if key not in waiting.deletes}

    @precondition(lambda self: self.environment.has_logged)
    @rule(is_full=st.booleans())
    def apply(self, is_full: bool) -> None:
        """Another job writes what is only logged, as a backup does; the next result tells of it."""
        store = self.environment.store
        if is_full and store.redo is not None and store.redo.waiting:
            self.note("no room for what is logged")
            with (
                patch.object(store, "apply", side_effect=lmdb.MapFullError("planted")),
                pytest.raises(StorageError, match="planted"),
            ):
                self.environment.apply_logged()
        else:
            self.environment.apply_logged()
        self.verify_bodies()
        self.verify()

    def commit_all(self) -> None:
        super().commit_all()
        while self.environment.has_logged or self.journal.has_work or self.journal.has_unpaged:
            self.cut_nothing()
            self.commit(())
            self.settle()
            super().commit_all()

    def crash(self, *, recovering: bool) -> None:
        redo = self.environment.store.redo
        if redo is not None and redo.waiting:
            self.note(f"crash with {'several' if len(redo.waiting) > 1 else 'a'} logged")
        super().crash(recovering=recovering)


class LateRedoMachine(RedoMachine):
    """The state machine of a log with queues that confirm nothing before its commit."""

    late = True


def run(machine: type[Machine], examples: int, steps: int) -> None:
    """Run a machine so often, with so many steps each at most."""
    with (
        patch.object(table_module, "SWEEP_WORK", SWEEP_WORK),
        patch.object(variable_queue_module, "UNCOUNTED", 8),
        patch.multiple(peek_module, PORTION_OCTETS=1000, READ_OCTETS=500, _WINDOW=5),
    ):
        for done in range(0, examples, ROUND):
            chosen = settings(
                max_examples=min(ROUND, examples - done), stateful_step_count=steps, deadline=None
            )
            run_state_machine_as_test(machine, settings=chosen)


MACHINES = [Machine, LateMachine, LoggedMachine, LateLoggedMachine, RedoMachine, LateRedoMachine]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("machine", MACHINES)
def test_a_queue_does_what_a_list_would(machine: type[Machine]) -> None:
    """Content, order and flags of queues, and what a crash leaves, are those of a plain list after any operations."""
    run(machine, 20, 50)


def _emptied(machine: type[Machine] = Machine, segment: int = 16) -> Machine:
    """A machine whose queues keep nothing in memory that can be on disk; the first one is empty."""
    state = machine()
    state.declare_all(messages=0, octets=0, segment=segment, mode="persistent")
    state.purge(number=0)
    return state


def _withdrawn(state: Machine, model: ModelQueue, chosen: set[int], seed: int = 1) -> None:
    """Withdraw messages of a queue in one walk."""
    walk = HalfWalk(model, seed)
    walk.share = 0.0
    walk.chosen = chosen
    state.walks.append(walk)
    state.finish_walks()


@pytest.mark.parametrize("machine", [Machine, LateMachine])
def test_a_delivery_count_that_a_crash_has_taken_is_not_written_later(machine: type[Machine]) -> None:
    """A message written after a crash has no return that was not on disk before it."""
    state = machine()
    state.declare_all(messages=0, octets=300, segment=16, mode="persistent")
    state.fetch(number=0, count=1, ack_required=True)
    state.requeue(number=0, seed=0)
    state.disaster(what="crash", number=0, twice=False)
    state.ack_in_flight(number=0, count=1, size=0)
    state.teardown()


def test_a_late_queue_confirms_what_was_acked_and_had_no_room_if_another_queue_dropped_it() -> None:
    """A publisher hears by the end of the dropped copy, though the acked one of a late queue is never written."""
    state = LateRedoMachine()
    state.declare_all(messages=0, mode="persistent", segment=16, octets=300)
    state.publish(count=40, mode="persistent", sizes=[0, 2100], chosen_queues=3, fan_out=2, expires=0)
    state.settle_without_room(number=0, count=0, size=0, seed=0, deleting=True, faults=("store",))
    state.fetch(number=0, count=1, ack_required=False)
    state.teardown()


def test_what_is_published_behind_withdrawn_messages_has_positions_of_its_own() -> None:
    """All messages but those in front of the ones on disk are withdrawn, and the queue is used as before."""
    state = LateMachine()
    state.declare_all(messages=0, octets=300, segment=16, mode="persistent")
    state.ack_in_flight(number=0, count=1, size=0)
    publish = partial(state.publish, chosen_queues=2, expires=0, fan_out=0, sizes=[0])
    publish(count=3, mode="persistent")
    model = state.pick(1, _ready)
    first = model.having(READY)[0].seq_id
    _withdrawn(state, model, {first + 1, first + 2}, seed=0)
    publish(count=40, mode="transient")
    state.fetch(number=1, count=10, ack_required=True)
    state.teardown()


@pytest.mark.parametrize("size", [400, 2100], ids=["body in the table", "body in a file"])
def test_a_load_finds_bodies_gone_whose_messages_were_withdrawn_meanwhile(size: int) -> None:
    """A message that was moved after its block was read, and before its body, is neither lost nor counted twice."""
    state = _emptied()
    for _ in range(2):
        state.publish(count=60, mode="persistent", chosen_queues=1, expires=0, fan_out=0, sizes=[size])
        state.commit_all()
    model = state.pick(0, _ready)
    while not state.requests or state.requests[0].what != DELTA:
        state.fetch(number=0, count=1, ack_required=False)
        if state.requests and state.requests[0].what != DELTA:
            state.read(is_whole=True)
            state.finish_load()
    state.read(is_whole=False)
    _withdrawn(state, model, {model.queue.delta.start, model.queue.delta.start + 2})
    state.commit_all()
    state.finish_load()
    state.teardown()


def test_a_walk_that_reads_while_its_queue_is_purged_shows_nothing_that_had_left() -> None:
    """A walk shows no message that another one had withdrawn before it began, though the purge forgets the gaps."""
    state = Machine()
    state.declare_all(messages=0, octets=0, segment=16, mode="persistent")
    state.disaster(what="stop", number=0, twice=False)
    state.ack_in_flight(count=1, number=0, size=0)
    state.walk(number=0, seed=0, steps=5)
    state.walk(number=0, seed=0, steps=5)
    state.disaster(what="purge", number=0, twice=False)
    state.finish_walks()
    state.teardown()


def _published(state: Machine, count: int, size: int) -> None:
    """Publish to the first queue, which keeps nothing in memory that can be on disk."""
    state.publish(count=count, mode="persistent", chosen_queues=1, expires=0, fan_out=0, sizes=[size])
    for _ in range(2):
        state.commit_all()
        state.reduce_memory_use(number=0)


def _read_on(state: Machine, queue: VariableQueue) -> None:
    """Read from disk as long as the queue wants to."""
    while not state.requests and queue.delta.count:
        count = len(queue.q3)
        queue._prefetch()
        state.load_at_once()
        if len(queue.q3) == count:
            break
    state.load_at_once()


def test_a_gap_is_kept_while_the_delta_may_begin_before_it() -> None:
    """A message that was withdrawn is not read again if its neighbours return to disk, however far its successors are."""
    state = _emptied()
    for count in (4, 5):
        _published(state, count, 20)
        state.commit_all()
        state.stop_and_start(failing=False)
    _published(state, 40, 20)
    model = state.queues[min(state.queues)]
    queue = model.queue
    queue.set_ram_target(inf, 1 << 40)
    for _ in range(2):
        state.fetch(number=0, count=1, ack_required=True)
        state.load_at_once()
    second = sorted({copy.seq_id >> 40 for copy in model.having(READY)})[1]
    chosen = [copy.seq_id for copy in model.having(READY) if copy.seq_id >> 40 == second][3]
    with patch.object(Machine, "moved"):  # its end is not noted yet
        _withdrawn(state, model, {chosen})
    _read_on(state, queue)
    queue.set_ram_target(0, 0)
    state.publish(count=60, mode="persistent", chosen_queues=1, expires=0, fan_out=0, sizes=[20])
    _read_on(state, queue)
    state.verify()
    state.teardown()


def test_a_block_of_withdrawn_messages_that_is_read_in_parts_is_not_damaged() -> None:
    """Records that are on disk until the next commit, though all of their block was withdrawn, are no damage."""
    state = _emptied(segment=4)
    for _ in range(2):
        _published(state, 12, 20)
    model = state.pick(0, _ready)
    queue = model.queue
    found = state.environment.read([Range(queue.qid, queue.delta.start, queue.delta.stop)], 1 << 40)
    block = min([read_header(raw.key, raw.value) for raw in found.blocks], key=attrgetter("first"))
    assert block.last - block.first > queue.read_ahead
    _withdrawn(state, model, set(range(block.first, block.last + 1)))
    state.cut()
    while queue.ready_count:
        state.fetch(number=0, count=1, ack_required=False)
        if state.requests:
            state.load_at_once()

    assert not queue.damaged
    state.teardown()


def test_what_is_read_ahead_of_a_consumer_has_a_bound_in_bytes() -> None:
    """However large messages are and however slow their consumer is, memory has few loads of them."""
    state = _emptied(segment=1024)
    _published(state, 200, 1000)
    model = state.pick(0, _ready)
    queue = model.queue
    held = 0
    while queue.ready_count:
        state.fetch(number=0, count=1, ack_required=False)
        while state.requests or state.reads:
            state.load_at_once()
        held = max(held, sum(entry.size for entry in queue.q3 if entry.message is not None))

    assert AHEAD_LOADS * LOAD_OCTETS <= held <= (AHEAD_LOADS + 1) * LOAD_OCTETS + 2000
    state.teardown()


def test_a_record_is_given_up_once() -> None:
    """A message whose body is missing is counted once, also if more is read and paged before its end is on disk."""
    state = _emptied()
    for _ in range(3):
        _published(state, 40, 400)
    model = state.pick(0, _ready)
    queue = model.queue
    found = state.environment.read([Range(queue.qid, queue.delta.start, queue.delta.stop)], 1 << 40)
    records = [
        record
        for raw in found.blocks
        for record in read_records(raw.value, read_header(raw.key, raw.value))
        if not isinstance(record, int)
    ]
    bad = sorted(records, key=attrgetter("seq_id"))[20]
    with state.environment.store.env.begin(write=True) as txn:
        txn.delete(bad.msg_id.to_bytes(8, "big"), db=state.environment.store.db["bodies"])
    ready = queue.ready_count

    def read_all() -> int:
        while state.requests:
            request = state.requests.pop(0)
            queue.loaded(request, state.environment.read(request.ranges, request.limit))
        return len(queue.fetch(1, ack_required=True).seq_ids) if queue.ready_count else 0

    queue.set_ram_target(inf, 1 << 40)
    taken = 0
    while queue.delta.start <= bad.seq_id:
        taken += read_all()
    queue.set_ram_target(0, 0)
    queue.publish([state.new([model], 20, persistent=True) for _ in range(60)], persistent=True)
    while queue.delta.count:
        taken += read_all()

    assert (1, ready - 1 + 60) == (queue.damaged, queue.ready_count + taken)
    shutil.rmtree(state.data_dir)


def main(examples: int, steps: int) -> None:
    """Run the machine long, and print the number of examples in which each thing happened."""
    logging.disable()
    for machine in MACHINES:
        run(machine, examples, steps)
    count = SEEN.pop("examples")
    for what, examples_with in SEEN.most_common():
        print(f"{100 * examples_with / count:5.1f} %  {what}")
    print(f"{count} examples of at most {steps} steps: no difference")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
