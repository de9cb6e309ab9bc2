"""A broker whose steps of the event loop end early, with the committer and the flow control that the real one has.

Nothing happens by itself: a test says when a commit begins and ends, when a file has been written, and when
the loop takes its next step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

from doubles.fakes import Client, Cranked, DiskNode, Driver

from leveret.broker.channel import channel
from leveret.broker.connection.flow_control import FlowControl
from leveret.broker.vhost import copies
from leveret.storage.journal.batch import Batch
from leveret.storage.message import Persistent


@contextmanager
def small_pieces() -> Iterator[None]:
    """Have messages to four queues or more delivered in several steps, two queues at a time."""
    with (
        patch.object(channel, "AT_ONCE", 4),
        patch.object(copies, "AT_ONCE", 4),
        patch.object(copies, "PIECE", 2),
    ):
        yield


class ManualCommitter(Cranked):
    """Replacement of `broker.persistence.committer.Committer` without threads and timers.

    A commit that begins while queues are deferred is held, and begins as soon as none are. It is in flight until
    `end_commit`, and so is a file until `end_file`.
    """

    def __init__(self, node: "HurriedNode") -> None:
        super().__init__()
        self._node = node
        self._batch: Batch | None = None
        self._files: dict[int, Persistent] = {}
        """Bodies that are being written to files."""
        self._is_slow = False

    @property
    def is_idle(self) -> bool:
        """True if neither a commit nor a file is being written."""
        return self._batch is None and not self._files

    def wake(self, *, is_alone: bool = False) -> None:
        """Begin what can begin at the end of a turn; commits begin when the test says so."""
        del is_alone
        journal = self._node.disk.journal
        if len(journal.files) > len(self._files) and self._is_whole():
            self._files = {msg_id: message for msg_id, (message, _) in journal.files.items()}
        if self.is_held and not self._node.turn.is_split:
            if journal.has_work and not any(queue.has_input for queue in self._node.turn.queues):
                self._cut()
            self._hold(is_held=False)
            self._node.loop.backlog_cleared()

    def begin_commit(self) -> None:
        """Begin a commit, unless one is in flight or held."""
        if self._batch is None and not self.is_held:
            self._node.loop.run_step("begin of a commit", self._begin_commit, "")

    def _begin_commit(self) -> None:
        if self._node.turn.queues:
            self._node.turn.run()
        if self._is_whole():
            self._cut()

    def _is_whole(self) -> bool:
        if self._node.turn.is_split:
            self._hold(is_held=True)
            return False
        return True

    def _cut(self) -> None:
        if self._batch is None:
            self._batch = self._node.disk.journal.cut()

    def end_commit(self) -> None:
        """Have the commit that is in flight on disk, and do what the loop does then."""
        if self._batch is not None:
            self._node.loop.run_step("commit", self._end_commit, "")

    def _end_commit(self) -> None:
        was_backlogged = self.backlogged
        unlink = self.write_batch()
        self._node.disk.journal.settled(None)
        for msg_id in unlink:
            self._unlink(msg_id)
        if was_backlogged and not self.backlogged:
            self._node.loop.backlog_cleared()
        self._node.run_turn()

    def write_batch(self) -> list[int]:
        """Write the commit in flight, if there is one, without reporting it; returns the files that are unreferenced."""
        batch, self._batch = self._batch, None
        return [] if batch is None else self._node.disk.environment.commit(batch)

    def end_file(self) -> None:
        """Have the first body on disk whose file is being written, and do what the loop does then."""
        if self._files:
            self._node.loop.run_step("file of a body", self._end_file, "")

    def _end_file(self) -> None:
        msg_id = next(iter(self._files))
        message = self._files.pop(msg_id)
        self._node.disk.environment.bodies.write(msg_id, message.content)
        if not self._node.disk.journal.file_written(msg_id):
            self._unlink(msg_id)
        self._node.run_turn()

    def _unlink(self, msg_id: int) -> None:
        self._node.disk.environment.bodies.path(msg_id).unlink(missing_ok=True)

    def set_slow(self, *, is_slow: bool) -> None:
        """Have too much wait for the disk from now on, or no longer."""
        self._node.loop.run_step("change of the backlog", lambda: self._set_slow(is_slow=is_slow), "")

    def _set_slow(self, *, is_slow: bool) -> None:
        was_backlogged, self._is_slow = self.backlogged, is_slow
        self._count_backlog()
        if was_backlogged and not self.backlogged:
            self._node.loop.backlog_cleared()
            self._node.run_turn()

    def _hold(self, *, is_held: bool) -> None:
        self.is_held = is_held
        self._count_backlog()

    def _count_backlog(self) -> None:
        self.backlogged = self.overloaded = self.is_held or self._is_slow


class HurriedNode(DiskNode):
    """A server that has just started on a data directory, with a committer that decides what is written when.

    Args:
        data_dir: its path; no other process may use it.
        settings: the configuration.

    """

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        super().__init__(data_dir, **settings)
        self.committer = self.disk.commits = ManualCommitter(self)
        self.loop.commit = self.committer.wake

    def _go_on(self) -> None:
        self.run_turn()

    def end_reads(self) -> None:
        """Read everything that queues and delay lines have asked for."""
        self.loop.run_step("read from disk", self.read, "")

    def step(self) -> None:
        """Take the next step of the loop, and run the timers that are due."""
        clock = self.clock
        if clock.soon:
            clock.soon.pop(0)()
        for timer in [timer for timer in clock.later if timer[0] <= clock.now]:
            clock.later.remove(timer)
            timer[1]()

    @property
    def is_waiting(self) -> bool:
        """True if something can be done for it: a step, a commit, a file or a read."""
        disk = self.disk
        return bool(
            self.clock.soon
            or not self.committer.is_idle
            or disk.loads
            or disk.reads
            or self.turn.queues
            or disk.journal.has_work
            or disk.journal.has_unpaged
            or disk.environment.has_unfinished_durable
        )

    def advance(self) -> None:
        """Do the next thing that can be done: steps first, then what is in flight, then reads and commits."""
        if self.clock.soon:
            self.step()
        elif not self.committer.is_idle:
            self.committer.end_commit()
            self.committer.end_file()
        elif self.disk.loads or self.disk.reads:
            self.end_reads()
        else:
            self.committer.begin_commit()


class PacedDriver(Driver):
    """A driver with flow control, as that of a socket."""

    read_limit = 65536

    @cached_property
    def flow(self) -> FlowControl:
        return FlowControl(self.connection.node, self)

    def _process_buffered(self) -> None:
        node = self.connection.node
        node.context.now = node.turn.slices.renew()
        self.connection.receive(b"")
        node.finish_turn()
        self.flow.after_rest()


class PacedClient(Client):
    """A client whose reads are no longer than one step, and that is not read while it has to wait."""

    driver_class = PacedDriver

    def receive(self, octets: bytes) -> None:
        """Receive one read, as far as the step has time; the rest follows in steps of the loop."""
        node, connection = self.node, self.connection
        node.context.now = node.turn.slices.begin()
        connection.receive(octets)
        node.finish_turn()
        if connection.stalled or connection.published:
            self.driver.flow.after_read(len(octets))
        node.turn.slices.end("read", "")

    @property
    def is_waiting(self) -> bool:
        """True if it is not read now, or waits for an answer that waits for the disk."""
        return not self.driver.reading or self.connection.pending_reply is not None
