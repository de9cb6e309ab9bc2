"""Convert a data directory to that of version 0.1.0 (format 1)."""

from itertools import pairwise
from pathlib import Path
from struct import Struct
from zlib import crc32

import lmdb

from leveret.storage.journal.blocks import offsets_of, read_bitmap, read_header
from leveret.storage.store.compact import replay
from leveret.storage.store.tables import MAP_SIZE, body_checksum

_HEADER = Struct(">IQQQIQB")
_STATE = Struct(">QQQQQ?")
_RECORD_START = Struct(">II")
HAS_BODIES, HAS_PLACES = 4, 8


def old_block(key: bytes, value: bytes) -> bytes:
    """Return a block in format 1: without the sizes of bodies, and with records bound to their queue only."""
    header = read_header(key, value)
    if not header.has_bodies:
        return value
    count = header.records
    offsets = offsets_of(value, header)
    directory = Struct(f">{count}I").pack(*[offset - 8 * count for offset in offsets])
    _, *fields, flags = _HEADER.unpack_from(value)
    head = _HEADER.pack(0, *fields, flags & ~HAS_BODIES & ~HAS_PLACES)[4:]
    crc = crc32(directory, crc32(head)).to_bytes(4, "big")
    records = [value[start:stop] for start, stop in pairwise((*offsets, len(value)))]
    return crc + head + directory + b"".join([_old_record(header.qid, record) for record in records])


def _old_record(qid: int, record: bytes) -> bytes:
    rest = record[_RECORD_START.size :]
    return _RECORD_START.pack(crc32(rest, crc32(qid.to_bytes(8, "big"))), len(rest)) + rest


def old_bitmap(value: bytes, records: int) -> bytes:
    """Return a bitmap in format 1: without delivery counts."""
    octets = value[4 : 4 + (records + 7) // 8]
    return crc32(octets).to_bytes(4, "big") + octets


def old_state(value: bytes) -> bytes:
    """Return a queue's state saved by a clean stop; its bytes are those of contents, approximate and unreliable."""
    if len(value) == _STATE.size:  # of an earlier stop, and turned back already
        return value
    messages, first, stop, octets, below, flags = Struct(">QQQQQB").unpack(value[:-4])
    return _STATE.pack(messages, first, stop, octets + 100 * messages, below, bool(flags & 1))


def make_old(data_dir: Path) -> None:
    """Convert the data that nobody uses to those of version 0.1.0, which had neither a redo log nor an id."""
    replay(data_dir)
    (data_dir / "store" / "redo.log").unlink(missing_ok=True)
    for path in (data_dir / "blobs").iterdir():
        content = path.read_bytes()[4:]
        path.write_bytes(body_checksum(int(path.name, 16), content) + content)
    with lmdb.open(str(data_dir / "store"), map_size=MAP_SIZE, max_dbs=16, sync=False) as env:
        names = ("meta", "queues", "blocks", "acks", "sweeps")
        meta, queues, blocks, acks, sweeps = (env.open_db(name.encode()) for name in names)
        with env.begin(write=True) as txn:
            txn.put(b"format", b"1", db=meta)
            for name in (b"store", b"redo"):
                txn.delete(name, db=meta)
            for name, octets in ((b"boot", 8), (b"span", 8), (b"clean", 0)):
                row = txn.get(name, db=meta)
                if row is not None:
                    txn.put(name, row[:octets], db=meta)
            for key, value in list(txn.cursor(sweeps)):
                txn.put(key, value[:8], db=sweeps)
            for key, value in list(txn.cursor(queues)):
                txn.put(key, old_state(value), db=queues)
            for key, value in list(txn.cursor(blocks)):
                bitmap = txn.get(key, db=acks)
                if bitmap is not None and not read_bitmap(bitmap, read_header(key, value)).dead:
                    txn.delete(key, db=acks)
                elif bitmap is not None:
                    txn.put(key, old_bitmap(bitmap, read_header(key, value).records), db=acks)
                txn.put(key, old_block(key, value), db=blocks)
