"""Snapshots on their way into the engine: pieces, pauses between them, and what they are checked by."""

from hashlib import sha256

from leveret.broker.replication.engine import Complete, Position, PutChunk
from leveret.broker.replication.snapshots import HURRIED, PAUSES, Making

PLACE = Position(1, 1, b"h" * 32)


def begun(pieces: int, log_octets: int = 1000) -> Making:
    """Return a snapshot in pieces of a hundred bytes."""
    return Making(b"s" * 16, PLACE, iter([b"%100d" % number for number in range(pieces)]), log_octets)


def test_a_snapshot_leaves_the_engine_to_the_log_most_of_the_time():
    """Behind each chunk comes a pause of twice the time that the engine took for it, in which nothing is asked for."""
    making = begun(3)
    assert isinstance(making.request(10.0), PutChunk)
    making.kept(10.3, 1000)

    assert making.request(10.3 + PAUSES * 0.29) is None
    request = making.request(10.3 + PAUSES * 0.31)
    assert isinstance(request, PutChunk)
    assert (1, b"%100d" % 1) == (request.number, request.data)


def test_a_chunk_without_an_answer_is_asked_for_again():
    """Until the engine has a chunk the same one is put, and the pause counts from the last attempt."""
    making = begun(2)
    assert making.request(1.0) == making.request(7.0)
    making.kept(7.5, 1000)

    assert 7.5 + PAUSES * 0.5 == making.next_put


def test_a_snapshot_keeps_up_with_a_log_that_grows_faster():
    """While the log has grown by more than was put, chunks are larger and follow each other without a pause."""
    making = begun(2 * HURRIED)
    first = making.request(1.0)
    assert isinstance(first, PutChunk)
    assert 100 == len(first.data)
    making.kept(1.1, 1000 + 101)

    second = making.request(1.1)
    assert isinstance(second, PutChunk)
    assert 100 * HURRIED == len(second.data)
    making.kept(1.2, 1000 + 101)
    assert making.request(1.2) is None


def test_a_snapshot_is_told_with_its_hash_once_all_was_put():
    """The last request completes it: number and size of the chunks, and the hash over their hashes."""
    making = begun(HURRIED + 2)
    hashes = []
    now = 0.0
    while isinstance(request := making.request(now), PutChunk):
        hashes.append(sha256(request.data).digest())
        making.kept(now, 10_000)
        now = making.next_put

    assert isinstance(request, Complete)
    assert (3, 100 * (HURRIED + 2)) == (request.snapshot.chunks, request.snapshot.octets)
    assert (sha256(b"".join(hashes)).digest(), PLACE) == (request.snapshot.hash, request.snapshot.position)
