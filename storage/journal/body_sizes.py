"""How large the bodies of messages are, in memory and on disk, without reading them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any

from leveret.storage.journal.blocks import Entry
from leveret.storage.message import HEAD_OCTETS, Message, body_octets

_MSG_ID = Struct(">Q").pack
_CHECKSUM_OCTETS = 4


_PIECE = 1024


def octets_in_pieces(items: Sequence[Message | Entry]) -> Iterator[int]:
    """Octets of the bodies of so many messages at a time; the sequence must not change meanwhile."""
    for at in range(0, len(items), _PIECE):
        yield octets_of(items[at : at + _PIECE])


def octets_of(items: Iterable[Message | Entry]) -> int:
    """Octets of the bodies of messages of a queue; entries without their message are on disk, and know it."""
    return sum([_octets_of(item) for item in items])


def _octets_of(item: Message | Entry) -> int:
    if type(item) is Entry:
        if item.message is None:
            return item.body
        item = item.message
    return body_octets(item.content)  # type: ignore[union-attr]


def stored_octets(txn: Any, bodies: Any, blobs: Path, msg_id: int) -> int:
    """Octets of the body of a content that lies apart; 0 if it is missing.

    Only its beginning is read: whether it is damaged is found out when it is served.

    Args:
        txn: a transaction.
        bodies: the table of bodies.
        blobs: where bodies have files of their own.
        msg_id: the number of the content.

    """
    octets = txn.get(_MSG_ID(msg_id), db=bodies)
    if octets is None:
        return 0
    if len(octets) == _CHECKSUM_OCTETS:  # it is in a file
        try:
            with (blobs / f"{msg_id:016x}").open("rb") as file:
                octets = file.read(_CHECKSUM_OCTETS + HEAD_OCTETS)
        except OSError:
            return 0
    return body_octets(bytes(octets[_CHECKSUM_OCTETS : _CHECKSUM_OCTETS + HEAD_OCTETS]))
