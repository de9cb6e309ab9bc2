"""A look at the delayed messages of an exchange, without taking any of them.

What is in memory was copied when the look began; what is on disk only is read from a snapshot of that moment.
"""

from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from leveret.broker.amqp.properties import Properties
from leveret.broker.vhost.publish_route import Special
from leveret.exchanges.base import Exchange
from leveret.exchanges.delayed import due_headers
from leveret.exchanges.errors import TooManyHopsError
from leveret.exchanges.router import Router
from leveret.storage.delayed import DelayedRows, Due, pack_key, unpack_row
from leveret.storage.errors import DamagedError
from leveret.storage.message import Message

PIECE = 256
"""Messages that are decoded between two checks of the time."""

DelayLook = Generator[Callable[[], DelayedRows] | None, Any, list[tuple[int, Message]]]
"""A look in steps (see `storage.queues.backing_queue.Peeking`).

It returns the messages with the times at which they are due (epoch ms), in that order; damaged ones are left out.
"""


class DelaySnapshot(Protocol):
    """The rows on disk at one moment; released with the last reference to it."""

    def read_delayed(self, line: int, start: Due) -> DelayedRows:
        """Read messages of a line, in a thread that may wait for the disk."""


Pieces = Generator[list[tuple[int, Message]] | Callable[[], DelayedRows], Any, None]
"""A look piece by piece: it yields messages with the times at which they are due, or a read."""


def look(
    line: int,
    rows: dict[Due, bytes],
    snapshot: DelaySnapshot | None = None,
    start: Due | None = None,
    gone: Collection[Due] = (),
) -> DelayLook:
    """Look at the messages of a line; the arguments are those of `pieces`."""
    found: list[tuple[int, Message]] = []
    steps = pieces(line, rows, snapshot, start, gone)
    answer: Any = None
    while True:
        try:
            piece = steps.send(answer)
        except StopIteration:
            return found
        if isinstance(piece, list):
            found += piece
            answer = yield None
        else:
            answer = yield piece


def pieces(
    line: int,
    rows: dict[Due, bytes],
    snapshot: DelaySnapshot | None = None,
    start: Due | None = None,
    gone: Collection[Due] = (),
) -> Pieces:
    """Look at the messages of a line, in the order in which they are due.

    Args:
        line: number of the line.
        rows: the rows in memory; changed here.
        snapshot: the rows on disk; None if all are in memory.
        start: due time from which on there are others in the snapshot.
        gone: rows of the snapshot that are no longer wanted.

    """
    while start is not None and snapshot is not None:
        yield from _decoded(line, rows, start)
        found: DelayedRows = yield partial(snapshot.read_delayed, line, start)
        for due, value in found.rows:
            if due not in gone:
                rows[due] = value
            start = due[0], due[1] + 1
        if not found.more:
            break
    yield from _decoded(line, rows, None)


def _decoded(line: int, rows: dict[Due, bytes], until: Due | None) -> Pieces:
    """Yield the messages that are due before a time, all for None, and remove their rows."""
    ready = sorted(due for due in rows if until is None or due < until)
    for at in range(0, len(ready), PIECE):
        messages = []
        for due in ready[at : at + PIECE]:
            with suppress(DamagedError):
                address, content = unpack_row(pack_key(line, due), rows.pop(due))
                messages.append((due[0], Message(address, content, content[1] << 8 | content[2])))
        yield messages


def destinations(router: Router, exchange: Exchange, message: Message) -> Collection[Any]:
    """Return the queues to which a delayed message of an exchange would be routed now."""
    special = Special(Properties(message.header))
    address = message.address
    key = address[address[0] + 2 :].decode("utf-8", "surrogateescape")
    try:
        return router.route(exchange, (key, *special.extra_keys), due_headers(special.headers))
    except TooManyHopsError as error:
        return error.reached
