"""Recovery at start-up: finds the messages of each queue on disk.

After a clean stop the table of queues has them. After any other stop the headers of all blocks are scanned. Nothing is
lost then, but delivered messages cannot be distinguished from others, so all count as redelivered. Blocks are also
scanned if the saved state or a bitmap is damaged. The settled messages of such a bitmap come back, and the saved state
does not count them. The scan removes the bitmap, or each later start would scan again. Data that belongs to no queue or
to no record is removed, other damage is reported and left in place.

A walk over the blocks reads all of their pages, in the order of their keys, and LMDB's mapping fetches one page at a
time. From a disk that takes 40 times as long as a read of the file in large pieces first (`read_ahead`).
"""
# ruff: noqa: TRY301 - an error is raised and handled in one place

import errno
import logging
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from struct import Struct, error as StructError  # noqa: N812 - it is an exception, whatever its name
from typing import Any

from leveret.storage import delayed
from leveret.storage.damage import BITMAP, BLOCK
from leveret.storage.errors import DamagedError
from leveret.storage.journal.batch import BODIES
from leveret.storage.journal.blocks import (
    LAST_SEQ_ID,
    Header,
    is_bound,
    live_octets,
    pack_key,
    read_bitmap,
    read_header,
    read_records,
    unpack_key,
)
from leveret.storage.journal.reads import Range
from leveret.storage.journal.stream_rows import Segment
from leveret.storage.queues.backing_queue import Recovered
from leveret.storage.queues.queue_ids import queue_qid
from leveret.storage.queues.stream_log import StreamLog
from leveret.storage.queues.variable_queue import VariableQueue
from leveret.storage.store.environment import Environment
from leveret.storage.store.store_header import Saved, unseal

log = logging.getLogger("leveret.storage")

_QID = Struct(">Q")
_STATE = Struct(">QQQQQB")
_EXPIRING, _ALWAYS = 1, 2  # flags: some message expires; set in every row
_COUNT = Struct(">I")
PIECE = 1024 * 1024  # bytes per read ahead
_PAGE = 4096


def read_state(key: bytes, value: bytes, saved: Saved) -> Recovered:
    """Parse a queue's row saved by a clean stop; raises DamagedError or struct.error."""
    *numbers, flags = _STATE.unpack(unseal(key, value, saved.boot))
    return Recovered._make((*numbers, bool(flags & _EXPIRING)))


def recover(environment: Environment, qids: Collection[int]) -> dict[int, Recovered]:
    """Find the messages of these queues, those that have any, and remove data that belongs to none of them.

    Levels of priority queues are returned under their own ids, but `qids` has the ids of their queues.

    Call it before the writer's thread is started.
    """
    environment.finish_sweeps()
    damaged = _damaged_bitmaps(environment)
    saved = _saved(environment) if environment.was_clean and not damaged else None
    if saved is not None:
        found = saved
    else:
        found, references = _walk(environment, environment.segments())
        _count_delayed(environment, references)
        _repair_bodies(environment, references)
        if damaged:
            environment.forget_bitmaps(damaged)
    unknown = [qid for qid in found if queue_qid(qid) not in qids]
    if unknown:
        log.warning("storage: removing messages of %d queues that no longer exist", len(unknown))
        environment.store.unfinished += [Range(qid, 0, LAST_SEQ_ID) for qid in unknown]
        environment.finish_sweeps()
        environment.forget_streams(unknown)
    _repair_files(environment)
    return {
        qid: recovered for qid, recovered in found.items() if queue_qid(qid) in qids and recovered.messages
    }


def _saved(environment: Environment) -> dict[int, Recovered] | None:
    """Return the state of each queue saved by the clean stop; None if any of it is damaged or missing."""
    # The affected queue is unknown then, because its id may be damaged.
    saved = environment.saved
    if saved is None:  # the first start
        return {}
    found = {}
    rows = list(environment.rows("queues"))
    try:
        for key, value in rows:
            found[_QID.unpack(key)[0]] = read_state(key, value, saved)
        if len(rows) != saved.queues:
            raise DamagedError(f"{len(rows)} queues instead of {saved.queues}")
    except (DamagedError, StructError) as error:
        log.warning(
            "storage: the state saved by the clean shutdown is damaged, scanning all messages: %s", error
        )
        return None
    return {qid: recovered for qid, recovered in found.items() if recovered.messages}


def _damaged_bitmaps(environment: Environment) -> list[bytes]:
    """Return the keys of bitmaps that are not those written for their blocks."""
    store = environment.store
    with store.env.begin() as txn:
        return [key for key, bits in txn.cursor(store.db["acks"]) if not is_bound(key, bits)]


def _walk(
    environment: Environment, streams: Mapping[int, Sequence[Segment]]
) -> tuple[dict[int, Recovered], Counter[int]]:
    """Return the messages of each queue from the block headers, and the number of records that refer to each msg_id."""
    # Of streams it visits the last segment, and those that have references.
    found: dict[int, Recovered] = {}
    references: Counter[int] = Counter()
    store = environment.store
    damaged = 0
    file = store.path / "data.mdb"
    read_ahead(file, None if visits_most(file.stat().st_blocks * 512, streams) else 0)
    with store.env.begin(buffers=True) as txn:
        # both tables are in key order: bitmaps are found during the same iteration
        bitmaps = ((bytes(key), bytes(bits)) for key, bits in txn.cursor(store.db["acks"]))
        ahead, bits = next(bitmaps, (b"", b""))
        for key, value in _visited(txn.cursor(store.db["blocks"]), streams, store.span):
            while ahead and ahead < key:
                ahead, bits = next(bitmaps, (b"", b""))
            try:
                header = read_header(key, value)
            except DamagedError:
                damaged += 1
                environment.damages.note(unpack_key(key), BLOCK)
                continue
            dead, _, is_damaged = read_bitmap(bits if ahead == key else None, header)
            if is_damaged:
                environment.damages.note((header.qid, header.first), BITMAP)
            if header.qid in streams:
                _count_stream(found, header, dead, value, streams[header.qid])
            else:
                octets = live_octets(value, header, dead)
                _count(found, header, header.records - dead.bit_count(), octets)
            if header.has_references:
                for record in read_records(bytes(value), header, dead):
                    if not isinstance(record, int) and record.msg_id:
                        references[record.msg_id] += 1
    if damaged:
        log.error("storage: %d blocks are damaged; their messages are lost", damaged)
    return found, references


def _count_delayed(environment: Environment, references: Counter[int]) -> None:
    """Count the bodies to which delayed messages refer; there are none if there are no bodies."""
    store = environment.store
    with store.env.begin(buffers=True) as txn:
        if txn.stat(store.db[BODIES])["entries"]:
            for at, (key, value) in enumerate(txn.cursor(store.db[delayed.TABLE])):
                if not at % delayed.WINDOW:
                    environment.give_back()  # or a million of 1 KB take 2 GB of mapped pages
                if msg_id := delayed.reference_of(key, value):
                    references[msg_id] += 1


def visits_most(size: int, streams: Mapping[int, Sequence[Segment]]) -> bool:
    """Return whether a walk visits at least half of a file of so many bytes, given the segments of its streams."""
    skipped = sum(
        [
            following.before - row.before
            for rows in streams.values()
            for row, following in pairwise(rows)
            if not row.has_references
        ]
    )
    return 2 * skipped <= size


def _visited(
    cursor: Any, streams: Mapping[int, Sequence[Segment]], span: int
) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the keys and values of blocks without those of streams that need no visit; none spans more than `span`."""
    more = cursor.first()
    while more:
        key = bytes(cursor.key())
        qid, first = unpack_key(key)
        rows = streams.get(qid, ())
        at = bisect_right(rows, first, key=attrgetter("first")) - 1
        if at < 0 or at == len(rows) - 1 or rows[at].has_references:
            yield key, cursor.value()
            more = cursor.next()
            continue
        following = next((row for row in rows[at + 1 :] if row.has_references), rows[-1])
        target = max(key, pack_key(qid, max(0, following.first - span + 1)))
        if target > key:
            more = cursor.set_range(target)
        else:  # it may reach into that segment
            yield key, cursor.value()
            more = cursor.next()


def _count_stream(
    found: dict[int, Recovered], header: Header, dead: int, value: memoryview, rows: Sequence[Segment]
) -> None:
    """Count a block of a stream: its offsets have no gaps, and the last segment knows what came before it."""
    before = found.get(header.qid)
    first, last = rows[0].first if before is None else before.first, rows[-1]
    if header.first < first:  # the end of a segment that retention has deleted, or one whose row is damaged
        live = [each for each in read_records(bytes(value), header, dead) if not isinstance(each, int)]
        first = min([first, *[each.seq_id for each in live[:1]]])
    octets = last.before - rows[0].before if before is None else before.octets
    if header.first >= last.first:
        octets += header.octets
    elif header.last >= last.first:
        records = read_records(bytes(value), header)
        octets += sum(
            [each.size for each in records if not isinstance(each, int) and each.seq_id >= last.first]
        )
    stop = max(header.last + 1, first if before is None else before.stop)
    found[header.qid] = Recovered(stop - first, first, stop, octets, 0)


def _count(found: dict[int, Recovered], header: Header, live: int, octets: int) -> None:
    stop = header.last + 1
    before = found.get(header.qid)
    if before is None:
        found[header.qid] = Recovered(live, header.first, stop, octets, stop, header.has_expiries)
    else:
        stop = max(stop, before.stop)
        octets += before.octets
        expiring = before.expiring or header.has_expiries
        found[header.qid] = Recovered(before.messages + live, before.first, stop, octets, stop, expiring)


def _repair_bodies(environment: Environment, references: Counter[int]) -> None:
    """Remove bodies that no record or row refers to, and correct the reference counts."""
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
    log.warning("storage: removing %d bodies without a message", len(orphans))
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
    """Remove files without a row, and temporary files left by an interrupted write."""
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


def saved_rows(queues: Iterable[VariableQueue | StreamLog]) -> list[tuple[str, bytes, bytes | None]]:
    """Return the rows to write at a clean stop, after everything else is written."""
    rows: list[tuple[str, bytes, bytes | None]] = []
    for queue in queues:
        if queue.durable and not queue.deleted:
            state = queue.saved()
            if state.messages:
                row = _STATE.pack(*state[:-1], _EXPIRING * state.expiring | _ALWAYS)
                rows.append(("queues", _QID.pack(queue.qid), row))
    return rows


# -- reading ahead ----------------------------------------------------------------------------------------------------


def read_ahead(path: Path, most: int | None = None) -> int:
    """Read the parts of a file that are not in the page cache, so that they are; returns the number of bytes read.

    `most` is the number of bytes after which to stop, because memory could not keep more; half of it by default.
    Raises OSError if the file cannot be read.
    """
    if most is None:
        most = int(os.sysconf("SC_PHYS_PAGES")) * int(os.sysconf("SC_PAGE_SIZE")) // 2
    read = 0
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for begin, end in _extents(descriptor):
            for at in range(begin, end, PIECE):
                if read >= most:
                    return read
                if not _is_cached(descriptor, at):
                    read += len(os.pread(descriptor, min(PIECE, end - at), at))
    finally:
        os.close(descriptor)
    return read


def _extents(descriptor: int) -> Iterator[tuple[int, int]]:
    """Yield beginning and end of each part that is not a hole."""
    size, at = os.fstat(descriptor).st_size, 0
    if not hasattr(os, "SEEK_DATA"):
        yield 0, size
        return
    while at < size:
        try:
            begin = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: a hole up to the end
                raise
            return
        at = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, at


def _is_cached(descriptor: int, at: int) -> bool:
    """Return whether the first page of a piece is in the page cache; false where the system does not report it."""
    try:
        return os.preadv(descriptor, [bytearray(_PAGE)], at, os.RWF_NOWAIT) > 0
    except (AttributeError, OSError):  # BlockingIOError if it is not
        return False
