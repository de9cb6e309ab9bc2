"""What is on disk at the start: which messages each queue has."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from storage.blocks import read_header
from storage.environment import Environment
from storage.variable_queue import VariableQueue


class Recovered(NamedTuple):
    """The messages of one queue: how many, and from which seq_id to before which."""

    messages: int
    first: int
    stop: int
    octets: int
    redelivered_below: int


def recover(environment: Environment, qids: Collection[int]) -> dict[int, Recovered]:
    """Find the messages of these queues."""
    found: dict[int, Recovered] = {}
    acks = dict(environment.rows("acks"))
    for key, value in environment.rows("blocks"):
        header = read_header(value)
        live = header.records - int.from_bytes(acks.get(key, b""), "little").bit_count()
        if header.qid not in qids:
            continue
        before = found.get(header.qid)
        stop = header.last + 1
        if before is None:
            found[header.qid] = Recovered(live, header.first, stop, header.octets, stop)
        else:
            stop = max(stop, before.stop)
            found[header.qid] = Recovered(
                before.messages + live, before.first, stop, before.octets + header.octets, stop
            )
    return found


def saved_rows(queues: Iterable[VariableQueue]) -> list[tuple[str, bytes, bytes | None]]:
    """What to write at a clean stop."""
    del queues
    return []
