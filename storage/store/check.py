"""Checks the data directory of a stopped broker, and reports its contents.

Every row is read and compared with the others: blocks with their bitmaps, references with bodies and these with files,
everything with the ids assigned so far. Errors are `Finding`s; leftovers that the next start removes are findings that
are no damage.

LMDB has no checksums, so its own pages cannot be trusted here: a torn one may end the process (SIGBUS, SIGSEGV, an LMDB
assertion) or lead in circles. So keys must ascend, and no more rows are read than a table claims to have. A caller that
must survive the rest runs this module as a program of its own, as `leveret store check` does (through
`broker.cli.store_reader`, which knows the format of AMQP tables). The program writes a line of JSON for each finding
and for each table it is about to read.
"""
# ruff: noqa: TRY301 - an error is raised and handled in one place

import contextlib
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from struct import Struct, error as StructError  # noqa: N812 - it is an exception, whatever its name
from typing import Any, NamedTuple

import lmdb

from leveret.storage import delayed, message_ids
from leveret.storage.errors import DamagedError, StorageError
from leveret.storage.files import open_regular
from leveret.storage.journal.batch import body_checksum
from leveret.storage.journal.blocks import (
    IN_BLOB,
    RETURN_OCTETS,
    Header,
    Record,
    bodies_of,
    offsets_of,
    read_bitmap,
    read_header,
    read_records,
)
from leveret.storage.journal.stream_rows import (
    OFFSETS,
    SEGMENT_KEY_OCTETS,
    SEGMENTS,
    Segment,
    read_offset,
    read_segment,
)
from leveret.storage.message import body_octets
from leveret.storage.queues.queue_ids import is_retained, owner_qid, queue_qid, retained_qid
from leveret.storage.store.bodies import Bodies, is_in_file
from leveret.storage.store.lmdb_environment import TABLES, unused_octets
from leveret.storage.store.lmdb_file import DataFile, refuse_cut_off, refuse_links
from leveret.storage.store.metadata_rows import (
    BindingRow,
    EntityRow,
    ExchangeRow,
    QueueRow,
    Row,
    VHostRow,
    decode,
)
from leveret.storage.store.read_only import has_data, open_environment
from leveret.storage.store.recovery import read_state
from leveret.storage.store.redo_log import CUT_OFF, NAME as REDO_LOG, left_behind
from leveret.storage.store.store_header import (
    BOOT,
    CLEAN,
    FORMAT_KEY,
    Saved,
    fault_of,
    read_owner,
    read_saved,
    unpack_number,
)

_U64 = Struct(">Q")
_PAIR = Struct(">QQ")
_NEWER = (message_ids.TABLE, SEGMENTS, OFFSETS)
"""Tables that data of earlier versions do not have."""
_COUNT = Struct(">I")
_ROOT_PAGES = 2


class Finding(NamedTuple):
    """One inconsistency in the data."""

    where: str
    text: str
    damage: bool = True  # False for leftovers that the next start removes


class QueueStats(NamedTuple):
    """Contents of one queue on disk."""

    qid: int
    vhost: str
    name: str
    messages: int
    octets: int  # bytes of content, including bodies stored apart
    blocks: int
    dead: int  # records that are settled and still take space
    dead_octets: int
    retained: bool = False  # True if these are the messages that the queue retains after their acks


class Stats(NamedTuple):
    """Contents of a data directory; sizes in bytes."""

    queues: list[QueueStats]
    messages: int
    octets: int
    blocks: int
    bodies: int
    files: int
    definitions: int
    delayed: int  # delayed messages that are not due yet
    starts: int
    clean: bool
    file_size: int
    unused: int  # bytes of the file in free pages
    dead_octets: int
    garbage_fraction: float


_COUNTED = QueueStats._fields[3:-1]


class _Queue:
    """Counters of one queue, or of one level of a priority queue."""

    __slots__ = ("blocks", "dead", "dead_octets", "messages", "octets", "reach", "seen")

    def __init__(self) -> None:
        self.messages = self.octets = self.blocks = self.dead = self.dead_octets = 0
        self.reach = -1  # the highest seq_id so far
        self.seen: set[int] = set()  # seq_ids of blocks that overlap the one with the highest seq_id


class Check:
    """One check of one data directory."""

    def __init__(
        self,
        data_dir: Path,  # must not be in use
        found: Callable[[Finding], object],  # called with each finding
        # called with the name of each table before it is read
        reading: Callable[[str], object] = lambda _: None,
        # describes the error in an exchange's, a queue's or a binding's arguments; "" if none
        fault_of_arguments: Callable[[bytes], str] = lambda _: "",
    ) -> None:
        self._data_dir = data_dir
        self._store = data_dir / "store"
        self._found = found
        self._reading = reading
        self._fault_of_arguments = fault_of_arguments
        self._txn: Any = None
        self._db: dict[str, Any] = {}
        self._boot = 0
        self._bodies = Bodies(data_dir / "blobs", b"")
        self._store_id = b""
        self._span = 0
        self._saved: Saved | None = None
        self._rows: list[Row] = []
        self._queues: dict[int, _Queue] = {}
        self._references: Counter[int] = Counter()
        self._in_blobs: set[int] = set()
        self._sweeps: list[tuple[int, int, int]] = []
        self._files = 0
        self._delayed = 0

    def run(self) -> Stats | None:
        """Check everything; returns None if nothing could be read."""
        self._reading("the file")
        what = "cannot be opened"
        try:
            refuse_links(self._data_dir)
            if not has_data(self._data_dir):
                raise StorageError("there is no data")
            refuse_cut_off(self._store / "data.mdb")
            with open_environment(self._store) as env:
                what = "cannot be read"
                self._open_tables(env)
                with env.begin() as self._txn:
                    self._check_tables()
                    self._check_pages()
                    return self._stats(env)
        except StorageError as error:
            self._report("store", str(error))
        except lmdb.Error as error:
            self._report("store", f"{what}: {error}")
        return None

    def _report(self, where: str, text: str, *, damage: bool = True) -> None:
        self._found(Finding(where, text, damage))

    @contextlib.contextmanager
    def _reporting(self, where: str, what: str = "") -> Iterator[None]:
        """Report the damage of a row that cannot be parsed, and go on with the next one."""
        try:
            yield
        except (DamagedError, StructError) as error:
            self._report(where, f"{what}{error}")

    def _open_tables(self, env: Any) -> None:
        for name in TABLES:
            try:
                self._db[name] = env.open_db(name.encode(), create=False)
            except lmdb.Error as error:
                if not (name in _NEWER and isinstance(error, lmdb.NotFoundError)):  # older data
                    self._report(name, f"cannot be opened: {error}")

    def _check_tables(self) -> None:
        for name, check in (
            ("meta", self._check_meta),
            ("defs", self._check_definitions),
            ("sweeps", self._check_sweeps),
            ("blocks", self._check_blocks),
            ("acks", self._check_acks),
            ("queues", self._check_queues),
            (delayed.TABLE, self._check_delayed),
            ("bodies", self._check_bodies),
            ("refs", self._check_refs),
            (message_ids.TABLE, self._check_ids),
            (SEGMENTS, self._check_segments),
            (OFFSETS, self._check_offsets),
        ):
            self._reading(name)
            if name in self._db:
                check()
        self._reading("blobs")
        self._check_files()

    def _table(self, name: str, key_octets: int = 0) -> Iterator[tuple[bytes, bytes]]:
        """Yield the readable rows of a table; those with keys of another length are findings."""
        left = int(self._txn.stat(self._db[name])["entries"])
        before = b""
        for key, value in self._txn.cursor(self._db[name]):
            if key <= before and before:
                text = f"key {key.hex()} follows {before.hex()}: keys out of order, the rest was not checked"
                self._report(name, text)
                return
            if not left:
                self._report(name, "more rows than the table counts: the rest was not checked")
                return
            left -= 1
            before = key
            if key_octets and len(key) != key_octets:
                self._report(name, f"key {key.hex()} has {len(key)} bytes instead of {key_octets}")
                continue
            yield key, value
        if left:
            self._report(name, f"{left} rows fewer than the table counts")

    def _row(self, name: str, key: bytes) -> bytes | None:
        return self._txn.get(key, db=self._db[name]) if name in self._db else None

    # -- one table each -----------------------------------------------------------------------------------------------

    def _check_meta(self) -> None:
        rows = dict(self._table("meta"))
        fault = fault_of(rows.get(FORMAT_KEY))
        if fault:
            self._report("meta", f"the data has {fault}")
        numbers = {}
        for name in (BOOT, b"span"):
            if name in rows:
                with self._reporting("meta"):
                    numbers[name] = unpack_number(name, rows[name])
        if BOOT not in rows:
            self._report("meta", "the counter of starts is missing")
        self._boot, self._span = numbers.get(BOOT, 0), numbers.get(b"span", 0)
        self._check_log()
        with self._reporting("meta"):
            self._saved = read_saved(rows[CLEAN]) if CLEAN in rows else None

    def _check_log(self) -> None:
        left = None
        with self._reporting("meta"):
            try:
                left = left_behind(self._store, self._txn, self._db["meta"])
                self._store_id = read_owner(self._txn, self._db["meta"]).store
            except OSError as error:
                self._report(REDO_LOG, f"cannot be read: {error.strerror}")
        if left is not None and left.is_cut_off:
            self._report(REDO_LOG, CUT_OFF, damage=False)
        if left is not None and left.batches:
            text = f"{len(left.batches)} commits, which the next start writes to the tables"
            self._report(REDO_LOG, text, damage=False)

    def _check_definitions(self) -> None:
        for key, value in self._table("defs"):
            with self._reporting("defs"):
                self._rows.append(decode(key, value))
        vhosts, exchanges, queues = (self._ids_of(kind) for kind in (VHostRow, ExchangeRow, QueueRow))
        destinations = queues | exchanges
        for row in self._rows:
            if isinstance(row, ExchangeRow | QueueRow | BindingRow):
                fault = self._fault_of_arguments(row.arguments)
                if fault:
                    self._report(
                        "defs", f"definition {row.key().hex()} is damaged: invalid arguments: {fault}"
                    )
            if isinstance(row, EntityRow):
                self._not_ahead("defs", "the id of a definition", row.id, 32)
            if isinstance(row, ExchangeRow | QueueRow) and row.vhost not in vhosts:
                self._report("defs", f"{_text(row.name)} is in vhost {row.vhost}, which does not exist")
            elif isinstance(row, BindingRow) and not (
                row.source in exchanges and row.destination in destinations
            ):
                text = f"from {row.source} to {row.destination} does not exist"
                self._report("defs", f"the source or destination of a binding {text}", damage=False)

    def _ids_of(self, kind: type[EntityRow]) -> set[int]:
        return {row.id for row in self._rows if isinstance(row, kind)}

    def _not_ahead(self, where: str, what: str, number: int, bits: int) -> None:
        """Report an id that a later start might assign again."""
        if number >> bits > self._boot:
            self._report(where, f"{what}, {number}, was never assigned")

    def _check_sweeps(self) -> None:
        for key, value in self._table("sweeps", _PAIR.size):
            qid, first = _PAIR.unpack(key)
            try:
                stop = unpack_number(key, value)
            except DamagedError:
                stop = -1
            if stop < first:
                self._report("sweeps", f"a sweep of queue {qid} from {first} has an invalid end")
            else:
                self._sweeps.append((qid, first, stop))

    def _check_blocks(self) -> None:
        known = self._ids_of(QueueRow)
        unknown = Counter[int]()
        for key, value in self._table("blocks", _PAIR.size):
            qid, first = _PAIR.unpack(key)
            where = f"blocks {qid}/{first}"
            with self._reporting(where):
                header = read_header(key, value)
                self._check_block(where, header, value, read_bitmap(self._row("acks", key), header).dead)
                if owner_qid(qid) not in known and not any(
                    swept == qid and start <= first and header.last < stop
                    for swept, start, stop in self._sweeps
                ):
                    unknown[qid] += 1
        for qid, count in unknown.items():
            self._report("blocks", f"{count} blocks of queue {qid}, which does not exist", damage=False)

    def _check_block(self, where: str, header: Header, value: bytes, dead: int) -> None:
        if not header.records or header.last < header.first:
            self._report(where, f"{header.records} records from {header.first} to {header.last}")
            return
        self._not_ahead(where, "the queue's id", owner_qid(header.qid), 32)
        self._not_ahead(where, "its last seq_id", header.last, 40)
        if self._span and header.last - header.first >= self._span:
            self._report(where, f"it spans more than {self._span} seq_ids, the maximum of a block")
        queue = self._queues.setdefault(header.qid, _Queue())
        queue.blocks += 1
        if header.first > queue.reach:
            queue.seen.clear()
        self._check_lengths(where, header, value)
        before = header.first - 1
        octets = 0
        found: Counter[int] = Counter()  # body sizes by the place of their record
        try:
            bodies = bodies_of(value, header)
            for record in read_records(value, header):
                if isinstance(record, int):
                    self._report(where, f"record {record} is damaged")
                    continue
                if not before < record.seq_id <= header.last:
                    self._report(where, f"record {record.place} has seq_id {record.seq_id} after {before}")
                before = record.seq_id
                octets += record.size
                found[record.place] += self._body_size(record) or bodies[record.place] * bool(record.msg_id)
                self._count(where, header, queue, record, is_dead=bool(dead >> record.place & 1))
        except StructError:
            self._report(where, "a record is shorter than its length field")
            return
        self._compare_bodies(where, found, bodies)
        if before != header.last or octets != header.octets:
            text = f"its records end at seq_id {before} and have {octets} bytes"
            self._report(where, f"{text}, the header has {header.last} and {header.octets}")
        queue.reach = max(queue.reach, header.last)

    def _compare_bodies(self, where: str, found: Mapping[int, int], listed: Sequence[int]) -> None:
        for place, has in found.items():
            if has != listed[place]:
                self._report(
                    where, f"record {place} has a body of {has} bytes, {listed[place]} in the directory"
                )

    def _body_size(self, record: Record) -> int:
        """Return the size of a body in bytes; 0 if it is stored elsewhere, and missing."""
        if record.content is None:
            return self._bodies.size(record.msg_id, self._row("bodies", _U64.pack(record.msg_id)))
        return body_octets(record.content)

    def _check_lengths(self, where: str, header: Header, value: bytes) -> None:
        """Check that each record ends where the next one begins, which readers of records do not."""
        for place, (start, stop) in enumerate(pairwise((*offsets_of(value, header), len(value)))):
            if start + 8 > stop or start + 8 + _COUNT.unpack_from(value, start + 4)[0] != stop:
                self._report(where, f"record {place} does not reach from {start} to {stop}")

    def _count(self, where: str, header: Header, queue: _Queue, record: Record, *, is_dead: bool) -> None:
        if is_dead:
            queue.dead += 1
            queue.dead_octets += len(record.address) + len(record.content or b"") + 32
            return
        queue.messages += 1
        queue.octets += record.size
        if record.seq_id in queue.seen:
            self._report(where, f"duplicate seq_id {record.seq_id}")
        queue.seen.add(record.seq_id)
        if record.msg_id:
            self._references[record.msg_id] += 1
            if record.kind == IN_BLOB:
                self._in_blobs.add(record.msg_id)
            if not header.has_references:
                self._report(where, "it has a reference, but its header says that it has none")

    def _check_acks(self) -> None:
        for key, value in self._table("acks", _PAIR.size):
            qid, first = _PAIR.unpack(key)
            where = f"acks {qid}/{first}"
            block = self._row("blocks", key)
            if block is None:
                self._report(where, "a bitmap without a block")
                continue
            try:
                header = read_header(key, block)
            except (DamagedError, StructError):
                continue  # reported already
            records = header.records
            dead, counts, is_damaged = read_bitmap(value, header)
            octets = 4 + (records + 7) // 8
            if is_damaged:
                self._report(where, "a bitmap is damaged: wrong checksum")
            elif len(value) != octets + len(counts) * RETURN_OCTETS or dead.bit_length() > records:
                self._report(where, f"a bitmap of {len(value)} bytes for {records} records")
            elif any(place >= records or dead >> place & 1 for place in counts):
                self._report(where, "a delivery count of a record that does not exist")
            elif dead.bit_count() == records:
                self._report(where, "all records are settled, but the block was not deleted")

    def _check_queues(self) -> None:
        """Check the state saved by a clean stop; it is ignored after any other stop, and without an intact mark."""
        if self._saved is None:
            return
        saved: dict[int, int] = {}
        for key, value in self._table("queues", _U64.size):
            qid = _U64.unpack(key)[0]
            with self._reporting(f"queues {qid}", "the saved state is damaged: "):
                state = read_state(key, value, self._saved)
                saved[qid] = state.messages
                if state.first > state.stop:
                    self._report(f"queues {qid}", f"invalid range from {state.first} to {state.stop}")
        for qid in saved.keys() | self._queues.keys():
            queue = self._queues.get(qid)
            messages = 0 if queue is None else queue.messages
            swept = any(qid == each for each, _, _ in self._sweeps)
            if saved.get(qid, 0) != messages and not swept:
                self._report(f"queues {qid}", f"{messages} messages, {saved.get(qid, 0)} in the saved state")

    def _check_bodies(self) -> None:
        found = set()
        for key, value in self._table("bodies", _U64.size):
            msg_id = _U64.unpack(key)[0]
            where = f"bodies {msg_id}"
            found.add(msg_id)
            self._not_ahead(where, "the id", msg_id, 40)
            if len(value) < _COUNT.size:
                self._report(where, "it is too short")
            elif value[:4] != body_checksum(msg_id, value[4:]):
                self._report(where, "it is damaged")
            elif is_in_file(value):
                self._check_file(where, msg_id)
            if not self._references[msg_id]:
                self._report(where, "no record refers to it")
        for msg_id in self._references:
            if msg_id not in found:
                text = f"missing, and {self._references[msg_id]} records refer to it"
                self._report(f"bodies {msg_id}", text)
        self._in_blobs &= found

    def _check_file(self, where: str, msg_id: int) -> None:
        try:
            with os.fdopen(open_regular(self._bodies.path(msg_id)), "rb") as file:
                octets = file.read()
        except OSError as error:
            self._report(where, f"cannot read its file: {error.strerror}")
            return
        if octets[:4] != body_checksum(msg_id, octets[4:], self._store_id):
            self._report(where, "its file is damaged")

    def _check_refs(self) -> None:
        counts = {}
        for key, value in self._table("refs", _U64.size):
            msg_id = _U64.unpack(key)[0]
            if len(value) == _COUNT.size:
                counts[msg_id] = _COUNT.unpack(value)[0]
            else:
                self._report(f"refs {msg_id}", "not a number")
        for msg_id in counts.keys() | self._references.keys():
            records, count = self._references[msg_id], counts.get(msg_id, 1)
            if not records:
                self._report(f"refs {msg_id}", "no record refers to it")
            elif records != count:
                self._report(f"refs {msg_id}", f"{records} records refer to it, but the count is {count}")

    def _check_delayed(self) -> None:
        exchanges, queues = self._ids_of(ExchangeRow), self._ids_of(QueueRow)
        queues |= set(map(retained_qid, queues))
        counted: dict[int, int] = {}
        lines = Counter[int]()
        for key, value in self._table(delayed.TABLE):
            line = int.from_bytes(key[: delayed.LINE_SIZE], "big")
            with self._reporting(f"{delayed.TABLE} {key.hex()}"):
                if delayed.is_line(key):
                    counted[line] = delayed.unpack_count(line, value)
                    continue
                delayed.unpack_key(key)
                lines[line] += 1
                _, _, msg_id = delayed.unpack_row(key, value)
                if msg_id:
                    self._references[msg_id] += 1
        stored = {line: b"there" if line in counted else b"" for line in lines.keys() | counted.keys()}
        known = delayed.current_lines(stored, exchanges, queues)
        for line in stored:
            where, count = f"{delayed.TABLE} {line}", lines[line]
            if line not in known:
                self._report(
                    where,
                    f"{count} delayed messages of an exchange or queue that does not exist",
                    damage=False,
                )
            elif counted.get(line, -1) != count:
                text = f"{count} delayed messages, but the count is {counted.get(line, 'missing')}"
                self._report(where, text)
        self._delayed = sum(lines.values())

    def _check_ids(self) -> None:
        owners = self._ids_of(QueueRow) | self._ids_of(ExchangeRow)
        for key, value in self._table(message_ids.TABLE):
            with self._reporting(f"{message_ids.TABLE} {key.hex()}"):
                line = int.from_bytes(key[: delayed.LINE_SIZE], "big")
                if delayed.is_line(key):
                    delayed.unpack_count(line, value)
                else:
                    delayed.unpack_key(key)
                    delayed.checked(key, value, "row")
                if delayed.queue_of(line) not in owners:
                    text = "ids of messages of a queue or exchange that does not exist"
                    self._report(f"{message_ids.TABLE} {line}", text, damage=False)

    def _check_segments(self) -> None:
        queues = self._ids_of(QueueRow)
        before: tuple[int, Segment] | None = None
        for key, value in self._table(SEGMENTS, SEGMENT_KEY_OCTETS):
            with self._reporting(SEGMENTS):
                qid, segment = read_segment(key, value)
                where = f"{SEGMENTS} {qid}/{segment.first}"
                if owner_qid(qid) not in queues:
                    self._report(where, "a segment of a stream that does not exist", damage=False)
                if before is not None and before[0] == qid and before[1].before > segment.before:
                    self._report(where, "fewer bytes come before it than before an older one")
                before = qid, segment

    def _check_offsets(self) -> None:
        queues = self._ids_of(QueueRow)
        for key, value in self._table(OFFSETS):
            with self._reporting(OFFSETS):
                qid, tag, _ = read_offset(key, value)
                if qid not in queues:
                    text = "the offset of a consumer of a stream that does not exist"
                    self._report(f"{OFFSETS} {qid}/{tag}", text, damage=False)

    def _check_files(self) -> None:
        blobs = self._data_dir / "blobs"
        if not blobs.is_dir():
            return
        for path in sorted(blobs.iterdir()):
            self._files += 1
            try:
                known = int(path.name, 16) in self._in_blobs
            except ValueError:
                known = False
            if not known:
                self._report(f"blobs/{path.name}", "no message refers to it", damage=False)

    # -- the sum ------------------------------------------------------------------------------------------------------

    def _check_pages(self) -> None:
        """Check that each page is either in one table or free: LMDB overwrites free pages."""
        self._reading("pages")
        try:
            with DataFile(self._store / "data.mdb") as file:
                takers = [bytearray(1 + file.meta.last_page) for _ in ("tables", "free pages")]
                for taker, found in zip(takers, (file.used_pages(), _free_pages(file)), strict=True):
                    for first, count in found:
                        if not 0 <= first <= first + count <= len(taker):
                            raise DamagedError(f"page {first} is outside the file")
                        if any(taker[first : first + count]):
                            raise DamagedError(f"page {first} is used twice")
                        taker[first : first + count] = b"\1" * count
        except DamagedError as error:
            self._report("pages", str(error))
            return
        used, free = takers
        for page in range(_ROOT_PAGES, len(used)):
            if used[page] == free[page]:
                how = "both free and in use" if used[page] else "neither free nor in use"
                self._report("pages", f"page {page} is {how}")
                return

    def _stats(self, env: Any) -> Stats:
        vhosts = {row.id: _text(row.name) for row in self._rows if isinstance(row, VHostRow)}
        names = {row.id: row for row in self._rows if isinstance(row, QueueRow)}
        levels = defaultdict[int, list[_Queue]](list)
        for qid, queue in self._queues.items():
            levels[queue_qid(qid)].append(queue)
        queues = []
        for qid in sorted(levels.keys() | names.keys()):
            row, own = names.get(owner_qid(qid)), levels[qid]
            vhost, name = ("", "") if row is None else (vhosts.get(row.vhost, ""), _text(row.name))
            counted = (sum(getattr(queue, what) for queue in own) for what in _COUNTED)
            stats = QueueStats(qid, vhost, name, *counted)
            queues.append(stats._replace(retained=is_retained(qid)))
        size = (self._store / "data.mdb").stat().st_size
        unused = unused_octets(env, self._txn, self._db.values())
        dead = sum(queue.dead_octets for queue in queues)
        is_clean = self._row("meta", CLEAN) is not None
        return Stats(
            queues,
            sum(queue.messages for queue in queues),
            sum(queue.octets for queue in queues),
            sum(queue.blocks for queue in queues),
            self._txn.stat(self._db["bodies"])["entries"] if "bodies" in self._db else 0,
            self._files,
            len(self._rows),
            self._delayed,
            self._boot,
            is_clean,
            size,
            unused,
            dead,
            round(min(1.0, (unused + dead) / size), 4) if size else 0.0,
        )


def _free_pages(file: DataFile) -> Iterator[tuple[int, int]]:
    return ((page, 1) for _, pages in file.free_pages() for page in pages)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def main(data_dir: str, fault_of_arguments: Callable[[bytes], str] = lambda _: "") -> None:
    """Check a data directory and write the findings to standard output, a line of JSON each."""

    def write(kind: str, value: object) -> None:
        sys.stdout.write(json.dumps({kind: value}) + "\n")
        sys.stdout.flush()

    stats = Check(
        Path(data_dir),
        lambda finding: write("finding", finding._asdict()),
        lambda name: write("reading", name),
        fault_of_arguments,
    ).run()
    if stats is None:
        write("stats", None)
    else:
        write("stats", stats._asdict() | {"queues": [queue._asdict() for queue in stats.queues]})


if __name__ == "__main__":
    main(sys.argv[1])
