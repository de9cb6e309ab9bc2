"""The rows of the export as messages of a stream, for programs on other machines (docs/export.md).

A message is a row: its body is the line of a file, its type the table. Rows are dropped and counted while there is no
stream, or the disk is full; those of one sample wait for a disk that is behind, but not for long.
"""

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from leveret.broker.administration.access import AdministeredBroker, AdministrationError, BadRequestError
from leveret.broker.amqp.fastpath import content_frames, join_address
from leveret.broker.amqp.properties import PERSISTENT_MODE, build
from leveret.broker.errors import NotYet
from leveret.broker.export.tables import TELEMETRY
from leveret.broker.queue.stream_queue import StreamQueue
from leveret.broker.vhost.copies import distribute_all
from leveret.storage.message import Message

log = logging.getLogger("leveret.export")

MOST_OCTETS: Final = 1 << 30
IN_MEMORY: Final = 64 << 20  # the same of a broker without a disk
PART: Final = 256  # rows that are appended in a step of the event loop
PAUSE: Final = 0.1  # seconds between two looks at a disk that is behind
PAUSES: Final = 50  # most of them before rows are dropped
_ADDRESS: Final = join_address("", TELEMETRY)


class TelemetryStream:
    """The stream of one broker, in a virtual host; `seconds` is the age of what it keeps, 0 for no limit."""

    def __init__(self, broker: AdministeredBroker, vhost: str, seconds: float) -> None:
        self._broker = broker
        self._vhost = vhost
        octets = IN_MEMORY if broker.disk is None else MOST_OCTETS
        self._arguments: dict[str, str | int] = {"x-queue-type": "stream", "x-max-length-bytes": octets}
        if seconds:
            self._arguments["x-max-age"] = f"{round(seconds)}s"
        self.dropped = 0
        self._pauses = PAUSES  # those that are left
        self._obstacle = ""  # reason why rows are dropped; '' if they are not

    def open(self) -> None:
        """Declare the stream, with its virtual host if there is none."""
        if self._vhost not in self._broker.vhosts:
            self._broker.directory.add_vhost(self._vhost)
        self._broker.loop.run_step("export", partial(self._append, ()), TELEMETRY)

    def append(self, table: str, lines: bytes | bytearray, ts: int) -> Iterator[float]:
        """Append the lines of a round, of which `ts` is the time in epoch ms, in steps of the event loop.

        Yields the seconds to wait before the next one.
        """
        about: dict[str, str | int] = {"type": table, "content_type": "application/json"}
        about |= {"delivery_mode": PERSISTENT_MODE, "timestamp": ts // 1000}
        for rows in _parts(lines):
            messages = []
            for row in rows:
                header = build(len(row), **about)
                messages.append(Message(_ADDRESS, content_frames(1, 0, header, row), 1))
            while self._pauses and self._broker.turn.is_backlogged() and not self._broker.is_stopping:
                self._pauses -= 1
                yield PAUSE
            self._broker.loop.run_step("export", partial(self._append, messages), TELEMETRY)
            yield 0.0

    def _append(self, messages: Sequence[Message]) -> None:
        broker, before = self._broker, self._obstacle
        if broker.is_stopping:  # its data may be closed
            return
        try:
            stream = self._found()
            self._obstacle = "the disk is full or behind" if _is_behind(broker) else ""
        except (AdministrationError, NotYet) as error:
            self._obstacle = str(error) or "it is being deleted"
        if self._obstacle:
            self.dropped += len(messages)
        elif messages:
            self._pauses = PAUSES
            distribute_all((stream,), messages, persistent=True)
        broker.loop.run_and_finish_turn()
        if self._obstacle != before:
            if self._obstacle:
                log.warning("stream '%s': rows are dropped: %s", TELEMETRY, self._obstacle)
            else:
                log.info("stream '%s': rows are appended again", TELEMETRY)

    def _found(self) -> StreamQueue:
        """Return the stream, which is declared if there is no such queue; raises AdministrationError."""
        broker, name = self._broker, self._vhost
        vhost = broker.vhosts.get(name)
        if vhost is None or TELEMETRY not in vhost.queues:
            declare = broker.administration.topology.declare_queue
            declare(None, name, TELEMETRY, arguments=self._arguments)
        found = broker.vhosts[name].queues[TELEMETRY]
        if not isinstance(found, StreamQueue):
            raise BadRequestError(f"{found} is no stream")
        return found


def _is_behind(broker: AdministeredBroker) -> bool:
    """Return whether the disk is nearly full, or too many writes wait for it."""
    turn = broker.turn
    return broker.resource_monitor.disk.raised or turn.is_full() or turn.is_backlogged()


def _parts(lines: bytes | bytearray) -> Iterator[list[bytes]]:
    """Yield rows, without the ends of their lines, some at a time."""
    at, part = 0, []
    while (end := lines.find(b"\n", at)) >= 0:
        part.append(bytes(lines[at:end]))
        at = end + 1
        if len(part) == PART:
            yield part
            part = []
    if part:
        yield part
