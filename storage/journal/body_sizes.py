"""Body sizes of messages in memory and on disk, computed without reading the bodies."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any

from leveret.storage.journal.blocks import Entry
from leveret.storage.message import HEAD_OCTETS, Message, body_octets
from leveret.storage.regular_files import open_regular

_MSG_ID = Struct(">Q").pack
_CHECKSUM_OCTETS = 4


_PIECE = 1024


def octets_in_pieces(items: Sequence[Message | Entry]) -> Iterator[int]:
    """Yield the body bytes of several messages at a time; the sequence must not change meanwhile."""
    for at in range(0, len(items), _PIECE):
        yield octets_of(items[at : at + _PIECE])


def octets_of(items: Iterable[Message | Entry]) -> int:
    """Return the total body bytes of queued messages; entries whose message is on disk store their size."""
    return sum([_octets_of(item) for item in items])


def _octets_of(item: Message | Entry) -> int:
    if type(item) is Entry:
        if item.message is None:
            return item.body
        item = item.message
    return body_octets(item.content)  # type: ignore[union-attr]


def stored_octets(txn: Any, bodies: Any, blobs: Path, msg_id: int) -> int:
    """Return the body size in bytes of a content stored apart; 0 if it is missing.

    Only its beginning is read: damage is detected when it is delivered.

    Args:
        txn: a transaction.
        bodies: the table of bodies.
        blobs: the directory of body files.
        msg_id: the id of the content.
    """
    octets = txn.get(_MSG_ID(msg_id), db=bodies)
    if octets is None:
        return 0
    if len(octets) == _CHECKSUM_OCTETS:  # it is in a file
        try:
            with os.fdopen(open_regular(blobs / f"{msg_id:016x}"), "rb") as file:
                octets = file.read(_CHECKSUM_OCTETS + HEAD_OCTETS)
        except OSError:
            return 0
    return body_octets(bytes(octets[_CHECKSUM_OCTETS : _CHECKSUM_OCTETS + HEAD_OCTETS]))
