"""A broker without sockets, event loop or clock, shared by the tests of the pure core.

Frames are shown as text, one line each: channel, method, the fields that are not empty, the body. A test compares
a list of such lines, and a golden transcript has the same lines in a file.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from leveret.broker.amqp.codec import decode_method, encode_method
from leveret.broker.amqp.commands import Basic, Channel, Connection as Wire, Queue, make
from leveret.broker.amqp.errors import MalformedMethod
from leveret.broker.amqp.fastpath import FRAME_OVERHEAD, content_frames, unpack_frame
from leveret.broker.amqp.properties import Properties, build
from leveret.broker.amqp.tables import Table
from leveret.broker.config.config import Config, StorageConfig
from leveret.broker.connection.connection import Connection
from leveret.broker.connection.handshake import PROTOCOL_HEADER
from leveret.broker.counters.histogram import Latency
from leveret.broker.counters.totals import Sizes
from leveret.broker.persistence.data_store import DataStore, paging
from leveret.broker.scheduling.loop import Loop
from leveret.broker.scheduling.time_slices import SLICE, TimeSlices
from leveret.broker.scheduling.time_source import TimeSource
from leveret.broker.scheduling.turn import Turn
from leveret.broker.server.server import Server
from leveret.broker.vhost.policies import Policies
from leveret.storage.delayed import DelayedRows, Start
from leveret.storage.errors import DiskFullError
from leveret.storage.journal.reads import LoadRequest
from leveret.storage.store.recovery import saved_rows

CAPABILITIES: Table = {"consumer_cancel_notify": ("bool", True), "connection.blocked": ("bool", True)}


WITH_CONTENT = {Basic.Deliver.index, Basic.GetOk.index, Basic.Return.index}


class Clock:
    """An event loop whose time passes when a test says so, and that runs nothing by itself."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.soon: list[Callable[[], object]] = []
        self.later: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.soon.append(callback)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> "Timer":
        timer = Timer(self, (self.now + seconds, partial(callback, *args) if args else callback))
        self.later.append(timer.entry)
        return timer

    def run(self) -> None:
        """Run the calls that are due soon, and those that they cause."""
        while self.soon:
            self.soon.pop(0)()


class Timer:
    """A call of a `Clock` that is due later."""

    def __init__(self, clock: Clock, entry: tuple[float, Callable[[], object]]) -> None:
        self._clock = clock
        self.entry = entry

    def cancel(self) -> None:
        if self.entry in self._clock.later:
            self._clock.later.remove(self.entry)


class ClockTime(TimeSource):
    """The time of a `Clock`, for the wall clock, too."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.attach(clock)  # type: ignore[arg-type]

    def wall(self) -> int:  # type: ignore[override]
        return round(self._clock.now * 1000)


class ClockLoop(Loop):
    """The loop of a broker that runs on a `Clock`."""

    def monotonic(self) -> int:  # type: ignore[override]
        return round(self.time_source.now() * 1_000_000_000)


class Node(Server):
    """A server without listeners."""

    loop_class = ClockLoop

    def __init__(self, disk: DataStore | None = None, **settings: Any) -> None:
        self.clock = Clock()
        super().__init__(Config(**settings), disk, ClockTime(self.clock))
        self.settings = settings
        self.loop.attach(self.clock)  # type: ignore[arg-type]
        self.resource_monitor._loop = self.clock
        self.turn.slices = TimeSlices()  # no step is over because a test lets time pass; see `hurry`
        self.turn.slices.on_waiting = self.loop.schedule_jobs
        self.run_turn, self.finish_turn = self.loop.run_turn, self.loop.finish_turn

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass, and run the calls that have become due."""
        self.clock.now += milliseconds / 1000
        self.context.timers.run(self.wall_clock())
        self.run_turn()


class ReadTransport:
    """A transport that is open, and is read until that is paused."""

    def __init__(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


def configure(node: Server, section: str = "", **values: Any) -> None:
    """Change settings of the configuration, or of a section of it, of a node that has been made."""
    changed = msgspec.structs.replace(getattr(node.config, section), **values) if section else None
    node.config = msgspec.structs.replace(node.config, **({section: changed} if section else values))


def set_policy(
    policies: Policies,
    name: str,
    pattern: str,
    definition: Mapping[str, Any],
    priority: float = 0,
    apply_to: str = "all",
    *,
    operator: bool = False,
) -> None:
    """Set a policy of a vhost; a turn must run then."""
    term = {"pattern": pattern, "definition": definition, "priority": priority, "apply-to": apply_to}
    policies.set_term(name, term, operator=operator)


def hurry(node: Node, *, looks: int) -> None:
    """End each step of the loop after so many looks at the clock from now on."""
    node.turn.slices = slices = TimeSlices(itertools.count(0, SLICE // looks).__next__)
    slices.on_waiting = node.loop.schedule_jobs


def work(node: Node) -> None:
    """Run turns until nothing is left to do."""
    for _ in range(10_000):
        node.run_turn()
        node.turn.resume_unfinished()
        node.clock.run()
        if not node.turn.queues and not node.turn.unfinished and not node.clock.soon:
            return
    raise AssertionError("the turns do not end")


class ManualJournal:
    """A journal whose commits happen when a test says so; `rows` are those on disk."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.pending: list[tuple[bytes, bytes | None]] = []
        self.waiters: list[Callable[[bool], object]] = []
        self.busy = False
        """True while other changes are being written, for which replies have to wait too."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        assert "defs" == table
        self.pending.append((key, value))

    def delete(self, table: str, key: bytes) -> None:
        assert "defs" == table
        self.pending.append((key, None))

    def when_safe(self, callback: Callable[[bool], object]) -> None:
        if self.pending or self.waiters or self.busy:
            self.waiters.append(callback)
        else:
            callback(True)

    when_all_safe = when_safe

    def commit(self) -> None:
        """Commit everything so far."""
        for key, value in self.pending:
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
        self.pending.clear()
        self.busy = False
        self._tell(stored=True)

    def fail(self) -> None:
        """Fail for lack of space: nothing was written, and all of it will be tried again."""
        self._tell(stored=False)

    def _tell(self, *, stored: bool) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter(stored)


class StoringNode(Node):
    """A server that has just started on the rows that an earlier one has stored.

    Args:
        rows: those on disk.
        settings: the configuration.

    """

    def __init__(self, rows: Mapping[bytes, bytes] | None = None, **settings: Any) -> None:
        self.store = ManualJournal()
        self.store.rows |= rows or {}
        super().__init__(**settings)
        self.restored = self._recovered
        if not rows:
            self.commit()

    def _make_journal(self) -> tuple[ManualJournal, Callable[[], int]]:
        boot = max(
            (int.from_bytes(key[1:5], "big") for key in self.store.rows if key[:1] in b"VEQ"), default=0
        )
        return self.store, itertools.count((boot + 1) << 32).__next__

    def _stored_rows(self) -> Iterable[tuple[bytes, bytes]]:
        return self.store.rows.items()

    def commit(self) -> None:
        """Commit, and do what the loop does after it."""
        self.store.commit()
        self._go_on()

    def fail(self) -> None:
        """Let a commit find the disk full."""
        self.store.fail()
        self._go_on()

    def _go_on(self) -> None:
        self.run_turn()
        self.clock.run()

    def restarted(self) -> "StoringNode":
        """Return the next server on the same disk; changes that were not committed are lost."""
        return StoringNode(self.store.rows, **self.settings)


class Cranked:
    """Tasks between the journal and the disk that do nothing unless a test says so."""

    def __init__(self) -> None:
        self.is_full = self.backlogged = self.overloaded = self.is_held = False
        self.is_ended = True
        self.slowest = 0.0
        self.files = 0
        self.duration = Latency()
        self.sizes = Sizes()

    def wake(self, *, is_alone: bool = False) -> None:
        """Leave the commit to the test."""
        del is_alone


class CrankedDisk(DataStore):
    """A real data directory without threads. `loads` has the reads for queues, `reads` those for delay lines."""

    def __init__(self, data_dir: Path, config: StorageConfig) -> None:
        super().__init__(data_dir, config, ram_limit=64 * 1024 * 1024)
        self.loads: list[LoadRequest] = []
        self.reads: list[tuple[int, Start, Callable[[DelayedRows], None]]] = []
        self.commits = Cranked()

    def start(self, host: Loop, loop: object, report_full: object) -> None:
        """Start no threads."""

    def _load(self, request: LoadRequest) -> None:
        self.loads.append(request)

    def run_read(self, read: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Read at once."""
        done(read(), None)

    def read_delayed(self, line: int, start: Start, done: Callable[[DelayedRows], None]) -> None:
        self.reads.append((line, start, done))


class Host:
    """A host of a data store with threads of its own, which records its calls."""

    def __init__(self) -> None:
        self.turn = Turn()
        self.full: list[bool] = []
        self.cleared = asyncio.Event()
        self.times_cleared = 0

    def run_turn(self) -> None:
        """Run nothing: no queue is touched."""

    def run_step(self, _kind: str, work: Callable[[], object], _whom: object = None) -> None:
        self.turn.slices.begin()
        work()

    def storage_failed(self, error: BaseException) -> None:
        raise error

    def backlog_cleared(self) -> None:
        self.times_cleared += 1
        self.cleared.set()


class DiskNode(Node):
    """A server that has just started on a data directory. Its changes are on disk after `commit`, not before.

    Args:
        data_dir: its path; no other process may use it.
        settings: the configuration.

    """

    disk: CrankedDisk

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        config = settings.setdefault("storage", StorageConfig(sync=False, check_invariants=True))
        super().__init__(CrankedDisk(data_dir, config), **settings)
        self.data_dir = data_dir
        self.disk.recover([store for queue in self._recovered for store in queue.stores])
        for queue in self._recovered:
            queue.recovered()
        self._recovered = []
        self.disk.recover_delayed(self.vhosts.values())
        self.commit()

    def commit(self) -> None:
        """Commit, and do what the loop does after it."""
        disk = self.disk
        self.remove_files(disk.environment.commit(disk.journal.cut()))
        self._settled(None)

    def write_files(self) -> None:
        """Write every body that waits for a file of its own, then commit."""
        self.end_files()
        self.commit()

    def end_files(self) -> None:
        """Write every body that waits for a file of its own."""
        for msg_id, (message, _) in list(self.disk.journal.files.items()):
            self.disk.environment.bodies.write(msg_id, message.content)
            if not self.disk.journal.file_written(msg_id):
                self.remove_files([msg_id])
            self._go_on()

    def remove_files(self, msg_ids: Iterable[int]) -> None:
        for msg_id in msg_ids:
            self.disk.environment.bodies.path(msg_id).unlink(missing_ok=True)

    def fail(self) -> None:
        """Let a commit find the disk full: nothing of it was written but ends of ids."""
        self.disk.environment.commit_ends(self.disk.journal.cut().rows)
        self._settled(DiskFullError("no room"))

    def _settled(self, error: DiskFullError | None) -> None:
        self.disk.journal.settled(error)
        was_full, self.disk.commits.is_full = self.disk.commits.is_full, error is not None
        if was_full is not self.disk.commits.is_full:
            self.resource_monitor.report_full(not was_full)
        self._go_on()

    def read(self) -> None:
        """Read everything that queues and delay lines have asked for, and do what the loop does then."""
        reads, self.disk.reads = self.disk.reads, []
        for line, start, done in reads:
            done(self.disk.environment.read_delayed(line, start))
        loads, self.disk.loads = self.disk.loads, []
        for request in loads:
            request.queue.loaded(request, self.disk.environment.read(request.ranges, request.limit))
        self._go_on()

    def _go_on(self) -> None:
        self.run_turn()
        self.clock.run()

    def killed(self) -> "DiskNode":
        """Return the next server on the same disk; changes that were not committed are lost."""
        self.disk.close()
        following = DiskNode(self.data_dir, **self.settings)
        following.clock.now = self.clock.now
        return following

    def restarted(self) -> "DiskNode":
        """Return the next server after this one was stopped; its clients must be gone."""
        while self.disk.journal.has_work:
            self.commit()
        backings = [
            store
            for vhost in self.vhosts.values()
            for queue in vhost.queues.values()
            for store in queue.stores
        ]
        self.disk.environment.save(saved_rows(paging(backings)))
        return self.killed()


@contextlib.contextmanager
def node_in(place: str, data_dir: Path) -> Iterator[Node]:
    """Yield a server that has its messages in `memory`, or on `disk`."""
    node = Node() if place == "memory" else DiskNode(data_dir)
    yield node
    if isinstance(node, DiskNode):
        node.disk.close()


def settle(node: Node) -> None:
    """Commit what the last steps have noted and read what they have asked for, if there is a disk."""
    if isinstance(node, DiskNode):
        node.commit()
        node.read()
        node.commit()


class Driver:
    """A driver that keeps what a connection sends."""

    connection: Connection

    unsent = 0
    heard = True

    def __init__(self) -> None:
        self.octets = bytearray()
        self.closed: float | None = None
        self._pauses = 0

    @property
    def reading(self) -> bool:
        return not self._pauses

    def admitted(self) -> None:
        pass

    def is_heard(self) -> bool:
        return self.heard

    def flush(self) -> None:
        outbox = self.connection.outbox
        if outbox.frames:
            self.octets += b"".join(outbox.frames)
            outbox.frames.clear()
            self.connection.sent += 1
        outbox.drained()

    def close(self, delay: float = 0.0) -> None:
        if self.closed is None:
            self.closed = delay

    def pause_reading(self) -> None:
        self._pauses += 1

    def resume_reading(self) -> None:
        self._pauses -= 1

    def limit_reads(self, pace: Any) -> None:
        pass

    def process_buffered(self) -> None:
        self.connection.node.clock.call_soon(self._process_buffered)

    def _process_buffered(self) -> None:
        self.connection.node.turn.slices.begin()
        self.connection.receive(b"")
        self.connection.node.finish_turn()
        if self.connection.stalled:
            self.wait()
        else:
            self.resume_reading()

    def wait(self) -> None:
        """Continue when others have had their turn."""
        self.connection.node.turn.when_caught_up(self.process_buffered)


class Sent(NamedTuple):
    """A method with its content, if any, or a heartbeat."""

    channel: int
    method: Any
    header: bytes = b""
    body: bytes = b""

    def __str__(self) -> str:
        if self.method is None:
            return f"{self.channel} heartbeat"
        name = wire_name(self.method)
        fields = [
            shown
            for field in self.method.__slots__
            if (shown := _field(field.rstrip("_"), getattr(self.method, field)))
        ]
        if self.header:
            fields += [f"{key}={value}" for key, value in Properties(self.header).present().items()]
            fields.append(repr(self.body)[1:])
        text = " ".join([str(self.channel), name, *fields])
        return text.encode(
            "utf-8", "backslashreplace"
        ).decode()  # a report of a failure must be able to show it


class Malformed:
    """A method whose texts are not UTF-8."""

    __slots__ = ("octets",)
    name = "Malformed.Method"
    index = 0

    def __init__(self, octets: bytes) -> None:
        self.octets = octets


def wire_name(method: Any) -> str:
    """Return the method's name as in the specification: `basic.consume-ok`."""
    class_name, _, name = method.name.partition(".")
    return class_name.lower() + "." + "".join("-" + c.lower() if c.isupper() else c for c in name).lstrip("-")


def _field(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else ""
    if not value:
        return ""
    return f'{name}="{value}"' if isinstance(value, str) and " " in value else f"{name}={value}"


def frames_of(octets: bytes) -> list[tuple[int, int, bytes]]:
    """Cut octets into frames: type, channel, payload."""
    frames, at = [], 0
    while at < len(octets):
        kind, number, length = unpack_frame(octets, at)
        end = at + length + FRAME_OVERHEAD
        assert 0xCE == octets[end - 1]
        frames.append((kind, number, octets[at + 7 : end - 1]))
        at = end
    return frames


def parse(octets: bytes) -> list[Sent]:
    """Parse what a broker sent; content must follow its method without a gap, as in RabbitMQ."""
    sent: list[Sent] = []
    missing = 0
    for kind, number, payload in frames_of(octets):
        if kind == 1:
            assert 0 == missing
            try:
                method: Any = decode_method(payload, 0, len(payload))
            except MalformedMethod:  # a text repeats octets of the client's that are no text
                method = Malformed(payload)
            sent.append(Sent(number, method))
            missing = -1 if method.index in WITH_CONTENT else 0
        elif kind == 2:
            assert (-1, sent[-1].channel) == (missing, number)
            missing = int.from_bytes(payload[4:12], "big")
            sent[-1] = sent[-1]._replace(header=payload)
        elif kind == 3:
            assert missing >= len(payload)
            assert sent[-1].channel == number
            missing -= len(payload)
            sent[-1] = sent[-1]._replace(body=sent[-1].body + payload)
        else:
            assert (8, b"", 0) == (kind, payload, missing)
            sent.append(Sent(number, None))
    assert 0 == missing
    return sent


def publish_frames(
    key: str = "",
    body: bytes = b"",
    *,
    exchange: str = "",
    channel: int = 1,
    mandatory: bool = False,
    frame_max: int = 131072,
    **properties: Any,
) -> bytes:
    method = make(Basic.Publish, 0, exchange, key, mandatory, False)
    header = build(len(body), **properties)
    return encode_method(channel, method) + content_frames(channel, frame_max, header, body)


class Client:
    """A client, and the connection that serves it.

    Args:
        node: the broker.
        connect: go through the handshake and open channel 1.

    """

    connection_class = Connection
    driver_class = Driver

    def __init__(
        self,
        node: Node | None = None,
        *,
        connect: bool = True,
        vhost: str = "/",
        user: str = "guest",
        capabilities: Table = CAPABILITIES,
        frame_max: int = 131072,
        heartbeat: int = 0,
        port: int = 50000,
    ) -> None:
        self.node = node or Node()
        self.driver = self.driver_class()
        now = self.node.now()
        self.connection = self.connection_class(
            self.node, self.driver, ("127.0.0.1", port), ("127.0.0.1", 5672), now
        )
        self.driver.connection = self.connection
        if connect:
            self.receive(PROTOCOL_HEADER)
            properties: Table = {"capabilities": ("table", capabilities)}
            self.send(make(Wire.StartOk, properties, "PLAIN", f"\0{user}\0{user}", "en_US"), channel=0)
            self.send(make(Wire.TuneOk, 2047, frame_max, heartbeat), channel=0)
            self.send(make(Wire.Open, vhost, "", False), channel=0)
            self.send(Channel.Open())
            assert self.sent()[-1].startswith("1 channel.open-ok")

    def receive(self, octets: bytes) -> None:
        """Receive one read of the connection, with the work of a driver around it, until it is all done."""
        self.node.turn.slices.begin()
        self.node.context.now = self.node.loop.monotonic()
        self.connection.receive(octets)
        self.node.finish_turn()
        if self.connection.stalled:
            self.driver.pause_reading()
            self.driver.wait()
            while self.connection.stalled:
                self.node.clock.soon.pop(0)()
        self.node.turn.slices.end("read", "")

    def send(self, method: Any, channel: int = 1) -> None:
        self.receive(encode_method(channel, method))

    def ask(self, method: Any, channel: int = 1) -> list[str]:
        """Send one method; returns all that was sent to this client since the last call."""
        self.send(method, channel)
        return self.sent()

    def publish(self, key: str = "", body: bytes = b"", **options: Any) -> None:
        """Publish one message (see `publish_frames`)."""
        self.receive(publish_frames(key, body, **options))

    def take(self) -> list[Sent]:
        """Return what was sent to this client since the last call."""
        octets = bytes(self.driver.octets)
        self.driver.octets.clear()
        return parse(octets)

    def sent(self) -> list[str]:
        """Return what was sent to this client since the last call, as text."""
        return [str(item) for item in self.take()]

    def declare(self, name: str, **options: Any) -> list[str]:
        """Declare a queue; the options are the bits and `arguments`."""
        return self.ask(queue_declare(name, **options))

    def consume(self, queue: str, tag: str = "", channel: int = 1, **options: Any) -> list[str]:
        """Consume; the options are the bits and `arguments`."""
        return self.ask(basic_consume(queue, tag or f"c-{queue}", **options), channel)


def verdicts(client: Client) -> tuple[set[tuple[str, int]], list[str]]:
    """Return the verdicts that a client got, and the errors."""
    found, last = set(), 0
    items = [each.method for each in client.take()]
    for each in items:
        if isinstance(each, Basic.Ack | Basic.Nack):
            first = last + 1 if each.multiple else each.delivery_tag
            found |= {(type(each).__name__, number) for number in range(first, each.delivery_tag + 1)}
            last = max(last, each.delivery_tag)
    return found, [each.reply_text for each in items if isinstance(each, Channel.Close)]


def queue_declare(
    name: str,
    *,
    passive: bool = False,
    durable: bool = False,
    exclusive: bool = False,
    auto_delete: bool = False,
    arguments: Table | None = None,
) -> Any:
    return make(Queue.Declare, 0, name, passive, durable, exclusive, auto_delete, False, arguments or {})


def basic_consume(
    queue: str, tag: str, *, no_ack: bool = False, exclusive: bool = False, arguments: Table | None = None
) -> Any:
    """Return a method that starts a consumer."""
    return make(Basic.Consume, 0, queue, tag, False, no_ack, exclusive, False, arguments or {})
