"""What is on disk at the start: which messages each queue has.

After a clean stop the table of queues says it. After any other the headers of all blocks are looked through: nothing
was lost then, but what had been delivered and what had not cannot be told, so everything counts as redelivered. What
belongs to no queue or to no record is removed, what is damaged is reported and left where it is.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable
from struct import Struct
from typing import NamedTuple

from storage.blocks import LAST_SEQ_ID, Header, bits_of, is_damaged, pack_key, read_header, read_records
from storage.environment import Environment
from storage.errors import DamagedError
from storage.loading import Range
from storage.priorities import queue_qid
from storage.variable_queue import VariableQueue

log = logging.getLogger("leveret.storage")

_QID = Struct(">Q")
_STATE = Struct(">QQQQQ?")
_COUNT = Struct(">I")


class Recovered(NamedTuple):
    """The messages of one queue: how many, and from which seq_id to before which."""

    messages: int
    first: int
    stop: int
    octets: int
    redelivered_below: int
    expiring: bool = False
    """Some message expires."""


def read_state(value: bytes) -> Recovered:
    """What a clean stop has saved of a queue; raises struct.error for something else."""
    return Recovered(*_STATE.unpack(value + b"\0" * (len(value) == _STATE.size - 1)))  # it once ended earlier


def recover(environment: Environment, qids: Collection[int]) -> dict[int, Recovered]:
    """Find the messages of these queues, those that have any, and remove whatever belongs to none of them.

    Levels of priority queues are found by their own ids, those of their queues are asked for.

    Call it before the writer's thread is started.
    """
    environment.finish_sweeps()
    if environment.was_clean:
        found = {}
        for key, value in environment.rows("queues"):
            recovered = read_state(value)
            if recovered.messages:
                found[_QID.unpack(key)[0]] = recovered
    else:
        found, references = _walk(environment)
        _repair_bodies(environment, references)
    unknown = [qid for qid in found if queue_qid(qid) not in qids]
    if unknown:
        log.warning("storage: messages of %d queues that are not there any more are removed", len(unknown))
        environment.store.unfinished += [Range(qid, 0, LAST_SEQ_ID) for qid in unknown]
        environment.finish_sweeps()
    _repair_files(environment)
    return {
        qid: recovered for qid, recovered in found.items() if queue_qid(qid) in qids and recovered.messages
    }


def _walk(environment: Environment) -> tuple[dict[int, Recovered], Counter[int]]:
    """What the headers say, and how many records refer to each msg_id."""
    found: dict[int, Recovered] = {}
    references: Counter[int] = Counter()
    store = environment.store
    damaged = 0
    with store.env.begin(buffers=True) as txn:
        # both tables are in the order of their keys: bitmaps are met while walking
        bitmaps = ((bytes(key), bytes(bits)) for key, bits in txn.cursor(store.db["acks"]))
        ahead, bits = next(bitmaps, (b"", b""))
        for buffer, value in txn.cursor(store.db["blocks"]):
            key = bytes(buffer)
            while ahead and ahead < key:
                ahead, bits = next(bitmaps, (b"", b""))
            try:
                header = read_header(value)
                if key != pack_key(header.qid, header.first):
                    raise DamagedError(f"a block of queue {header.qid} is not where it belongs")
            except DamagedError as error:
                damaged += 1
                log.error("storage: %s; its messages are lost", error)  # noqa: TRY400 - no bug
                continue
            dead = bits_of(bits) if ahead == key else 0
            if ahead == key and is_damaged(bits):
                log.error("storage: a bitmap of queue %d is damaged; what was settled comes back", header.qid)
            _count(found, header, header.records - dead.bit_count())
            if header.has_references:
                for record in read_records(bytes(value), header, dead):
                    if not isinstance(record, int) and record.msg_id:
                        references[record.msg_id] += 1
    if damaged:
        log.error("storage: %d blocks are damaged", damaged)
    return found, references


def _count(found: dict[int, Recovered], header: Header, live: int) -> None:
    stop = header.last + 1
    before = found.get(header.qid)
    if before is None:
        found[header.qid] = Recovered(live, header.first, stop, header.octets, stop, header.has_expiries)
    else:
        stop = max(stop, before.stop)
        octets = before.octets + header.octets
        expiring = before.expiring or header.has_expiries
        found[header.qid] = Recovered(before.messages + live, before.first, stop, octets, stop, expiring)


def _repair_bodies(environment: Environment, references: Counter[int]) -> None:
    """Remove bodies that no record refers to, and set right how many do."""
    store = environment.store
    bodies, refs = store.db["bodies"], store.db["refs"]
    with store.env.begin(buffers=True) as txn:
        known = {_QID.unpack(key)[0] for key in txn.cursor(bodies).iternext(values=False)}
        counts = {_QID.unpack(key)[0]: _COUNT.unpack(value)[0] for key, value in txn.cursor(refs)}
    orphans = [msg_id for msg_id in known if not references[msg_id]]
    missing = sum(msg_id not in known for msg_id in references)
    wrong = {
        msg_id
        for msg_id in known | counts.keys()
        if counts.get(msg_id, 1) != max(1, references[msg_id]) or (msg_id in counts and msg_id not in known)
    }
    if missing:
        log.error("storage: %d bodies are missing; their messages are lost", missing)
    if not orphans and not wrong:
        return
    log.warning("storage: %d bodies without a message are removed", len(orphans))
    with store.env.begin(write=True) as txn:
        for msg_id in orphans:
            txn.delete(_QID.pack(msg_id), db=bodies)
        for msg_id in wrong:
            key = _QID.pack(msg_id)
            if msg_id in known and references[msg_id] > 1:
                txn.put(key, _COUNT.pack(references[msg_id]), db=refs)
            else:
                txn.delete(key, db=refs)


def _repair_files(environment: Environment) -> None:
    """Remove files that no row stands for, and what was being written when the broker ended."""
    with environment.store.env.begin() as txn:
        bodies = environment.store.db["bodies"]
        for path in environment.blobs.iterdir():
            try:
                known = txn.get(_QID.pack(int(path.name, 16)), db=bodies) is not None
            except ValueError:
                known = False
            if not known:
                log.warning("storage: removing %s, which belongs to no message", path)
                path.unlink(missing_ok=True)


def saved_rows(queues: Iterable[VariableQueue]) -> list[tuple[str, bytes, bytes | None]]:
    """What to write at a clean stop, when everything else is written."""
    rows: list[tuple[str, bytes, bytes | None]] = []
    for queue in queues:
        if queue.durable and not queue.deleted:
            state = queue.saved()
            if state[0]:
                rows.append(("queues", _QID.pack(queue.qid), _STATE.pack(*state)))
    return rows
