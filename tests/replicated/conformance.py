"""The suite that the driver of any engine must pass: ordering, fencing, gaps, lost answers, retries, stale epochs.

A test module defines a fixture `setup` with a `Setup`, and imports all tests from here.
"""

import asyncio
from hashlib import sha256
from typing import Any, Protocol

from leveret.broker.replication import engine as protocol
from leveret.broker.replication.chain import BATCHES, CHUNK, EMPTY, make_entry

DEADLINE = 60.0
HOLDER = b"h" * 16
OTHER = b"o" * 16


class Setup(Protocol):
    """An engine under test."""

    async def connect(self) -> protocol.Engine:
        """Return a new driver of the same engine, which starts empty."""

    async def save(self) -> Any:
        """Make a backup of the engine."""

    async def restore(self, backup: Any) -> None:
        """Replace the engine's content by a backup; drivers may have to connect again."""

    async def lose_answer(self, engine: protocol.Engine, request: Any) -> None:
        """Have a request performed by a driver whose connection breaks before the answer."""


async def ask(engine: protocol.Engine, request: Any) -> Any:
    """Perform a request with a deadline; a connection that was lost is made again."""
    async with asyncio.timeout(DEADLINE):
        while True:
            try:
                return await engine.perform(request)
            except protocol.NoAnswerError:
                assert not isinstance(request, protocol.Append | protocol.Take), (
                    "an answer was lost that nobody has lost"
                )


async def seen(engine: protocol.Engine) -> protocol.Lease:
    found = await ask(engine, protocol.Read(0, 0))
    return found.lease


async def take(engine: protocol.Engine, holder: bytes = HOLDER, name: str = "a") -> protocol.Lease:
    answer = await ask(engine, protocol.Take(await seen(engine), holder, name, f"{name}:5672"))
    assert isinstance(answer, protocol.Taken), answer
    return answer.lease


def follow(
    before: protocol.Position, lease: protocol.Lease, payload: bytes = b"", settled: int = 0
) -> protocol.Entry:
    return make_entry(before, lease.epoch, lease.holder, settled, BATCHES if payload else EMPTY, payload)


async def append(
    engine: protocol.Engine, before: protocol.Position, lease: protocol.Lease, payload: bytes
) -> protocol.Entry:
    entry = follow(before, lease, payload)
    answer = await ask(engine, protocol.Append(entry))
    assert isinstance(answer, protocol.Appended), answer
    return entry


async def fill(
    engine: protocol.Engine, lease: protocol.Lease, count: int, before: protocol.Position = protocol.ORIGIN
) -> list[protocol.Entry]:
    entries = []
    for number in range(count):
        entry = await append(engine, before, lease, b"payload %d" % number)
        entries.append(entry)
        before = entry.position
    return entries


async def keep_snapshot(
    engine: protocol.Engine, position: protocol.Position, log_octets: int = 0, id_: bytes = b"s" * 16
) -> protocol.Snapshot:
    """Put a complete snapshot of two chunks into the engine."""
    chunks = [b"first" * 100, b"last"]
    for number, data in enumerate(chunks):
        assert (await ask(engine, protocol.PutChunk(id_, number, data))) == protocol.Kept(kept=True)
    chain = sha256(b"".join(sha256(each).digest() for each in chunks)).digest()
    snapshot = protocol.Snapshot(id_, position, 2, sum(map(len, chunks)), chain, log_octets)
    assert (await ask(engine, protocol.Complete(snapshot))) == protocol.Kept(kept=True)
    return snapshot


async def test_a_new_log_is_empty_and_free(setup: Setup):
    """A new engine has a lease that nobody holds, no entries, no snapshot and no members."""
    engine = await setup.connect()

    found = await ask(engine, protocol.Read(0, 1000))

    assert isinstance(found, protocol.Found)
    assert (protocol.FREE, protocol.ORIGIN, (), 0) == (
        found.lease,
        found.previous,
        found.entries,
        found.trimmed,
    )
    assert protocol.Known(None) == await ask(engine, protocol.FindSnapshot())


async def test_the_lease_is_taken_once(setup: Setup):
    """Of two nodes that saw the same lease one takes it; the other is told who has."""
    one, two = await setup.connect(), await setup.connect()
    lease = await seen(one)

    answers = await asyncio.gather(
        ask(one, protocol.Take(lease, HOLDER, "a", "a:5672")),
        ask(two, protocol.Take(lease, OTHER, "b", "b:5672")),
    )

    (taken,) = [each for each in answers if isinstance(each, protocol.Taken)]
    (refused,) = [each for each in answers if isinstance(each, protocol.Refused)]
    assert 1 == taken.lease.epoch
    assert refused.lease == taken.lease == await seen(one)


async def test_entries_are_read_in_order_as_they_were_appended(setup: Setup):
    """Entries come back with every field, from any index on, with the place before them."""
    engine = await setup.connect()
    lease = await take(engine)
    entries = await fill(engine, lease, 5)
    chunk = make_entry(entries[-1].position, lease.epoch, HOLDER, 4, CHUNK, bytes(range(256)) * 5000)
    assert isinstance(await ask(engine, protocol.Append(chunk)), protocol.Appended)

    for after in range(7):
        found = await ask(engine, protocol.Read(after, 10_000_000))
        assert [*entries, chunk][after:] == list(found.entries)
        assert ([protocol.ORIGIN] + [each.position for each in [*entries, chunk]])[after] == found.previous
    lease = await seen(engine)
    assert (6, 4) == (lease.last, lease.settled)
    assert sum(len(each.payload) for each in [*entries, chunk]) == lease.octets


async def test_a_read_is_limited_in_bytes(setup: Setup):
    """A read returns at least one entry, and no further one once it has enough bytes."""
    engine = await setup.connect()
    entries = await fill(engine, await take(engine), 4)

    assert entries[:1] == list((await ask(engine, protocol.Read(0, 0))).entries)
    assert entries[1:3] == list((await ask(engine, protocol.Read(1, len(entries[1].payload) + 1))).entries)


async def test_a_read_behind_the_end_finds_no_place(setup: Setup):
    """A copy that is ahead of the log learns that its place is not there."""
    engine = await setup.connect()
    await fill(engine, await take(engine), 2)

    found = await ask(engine, protocol.Read(5, 100))

    assert (None, (), 2) == (found.previous, found.entries, found.lease.last)


async def test_an_append_leaves_no_gap(setup: Setup):
    """An entry whose index is not the next one is refused, and changes nothing."""
    engine = await setup.connect()
    lease = await take(engine)
    first = await append(engine, protocol.ORIGIN, lease, b"1")
    second = follow(first.position, lease, b"2")
    third = follow(second.position, lease, b"3")
    before = await seen(engine)

    assert protocol.Refused(before) == await ask(engine, protocol.Append(third))
    assert before == await seen(engine)


async def test_an_append_is_not_repeated(setup: Setup):
    """An entry that is in the log is refused, and the lease shows that it is there; so is another one of its index."""
    engine = await setup.connect()
    lease = await take(engine)
    entry = await append(engine, protocol.ORIGIN, lease, b"1")

    for again in (entry, follow(protocol.ORIGIN, lease, b"other")):
        refused = await ask(engine, protocol.Append(again))
        assert isinstance(refused, protocol.Refused)
        assert (1, lease.epoch, HOLDER) == (refused.lease.last, refused.lease.epoch, refused.lease.holder)
    assert [entry] == list((await ask(engine, protocol.Read(0, 1000))).entries)


async def test_a_former_leader_appends_nothing(setup: Setup):
    """After a takeover, entries, renewals, releases and trims of the epoch before are refused."""
    one, two = await setup.connect(), await setup.connect()
    old = await take(one)
    entry = await append(one, protocol.ORIGIN, old, b"1")
    new = await take(two, OTHER, "b")

    assert new.epoch > old.epoch
    for request in (
        protocol.Append(follow(entry.position, old, b"2")),
        protocol.Renew(old.epoch, HOLDER, 1),
        protocol.Release(old.epoch, HOLDER, 1, ""),
        protocol.Trim(old.epoch, HOLDER, 1),
    ):
        assert protocol.Refused(new) == await ask(one, request)
    assert [entry] == list((await ask(one, protocol.Read(0, 1000))).entries)


async def test_an_epoch_of_another_holder_is_refused(setup: Setup):
    """An epoch alone is not enough: the holder's random id must be right."""
    engine = await setup.connect()
    lease = await take(engine)

    for request in (
        protocol.Append(make_entry(protocol.ORIGIN, lease.epoch, OTHER, 0, EMPTY, b"")),
        protocol.Renew(lease.epoch, OTHER, 0),
    ):
        assert isinstance(await ask(engine, request), protocol.Refused)
    assert 0 == (await seen(engine)).last


async def test_a_takeover_fails_if_the_lease_has_moved(setup: Setup):
    """A candidate whose view is older than an append or a renewal does not get the lease."""
    one, two = await setup.connect(), await setup.connect()
    lease = await take(one)
    await append(one, protocol.ORIGIN, lease, b"1")

    assert isinstance(await ask(two, protocol.Take(lease, OTHER, "b", "")), protocol.Refused)

    stale = await seen(two)
    assert isinstance(await ask(one, protocol.Renew(lease.epoch, HOLDER, 0)), protocol.Renewed)
    assert isinstance(await ask(two, protocol.Take(stale, OTHER, "b", "")), protocol.Refused)


async def test_a_renewal_moves_the_lease_and_what_is_settled(setup: Setup):
    """A renewal raises the counter and the settled index, which never falls."""
    engine = await setup.connect()
    lease = await take(engine)
    await fill(engine, lease, 3)
    before = await seen(engine)

    for settled, expected in ((3, 3), (2, 3)):
        assert isinstance(await ask(engine, protocol.Renew(lease.epoch, HOLDER, settled)), protocol.Renewed)
        assert expected == (await seen(engine)).settled
    assert before.counter + 2 == (await seen(engine)).counter


async def test_a_released_lease_names_its_successor(setup: Setup):
    """After a release nobody holds the lease, the wanted successor is seen, and entries of its epoch are refused."""
    engine = await setup.connect()
    lease = await take(engine)

    assert isinstance(await ask(engine, protocol.Release(lease.epoch, HOLDER, 0, "b")), protocol.Renewed)

    free = await seen(engine)
    assert (lease.epoch, b"", "b") == (free.epoch, free.holder, free.name)
    assert isinstance(await ask(engine, protocol.Append(follow(protocol.ORIGIN, lease))), protocol.Refused)
    assert lease.epoch + 1 == (await take(engine, OTHER, "b")).epoch


async def test_who_listens_is_told_of_a_released_lease(setup: Setup):
    """While no request is under way, and again after the next one."""
    engine, listening = await setup.connect(), await setup.connect()
    told = asyncio.Event()
    listening.listen(told.set)
    await seen(listening)
    for _ in range(2):
        lease = await take(engine)
        assert not told.is_set()
        await ask(engine, protocol.Release(lease.epoch, lease.holder, 0, "b"))
        async with asyncio.timeout(DEADLINE):
            await told.wait()
        assert not (await seen(listening)).holder
        await seen(listening)
        told.clear()


async def test_many_appends_at_once_are_one_after_the_other(setup: Setup):
    """Of entries that several connections append under one index, exactly one is taken."""
    engines = [await setup.connect() for _ in range(4)]
    lease = await take(engines[0])
    place = protocol.ORIGIN
    for number in range(5):
        entries = [follow(place, lease, b"%d %d" % (number, each)) for each in range(4)]
        answers = await asyncio.gather(
            *(ask(engine, protocol.Append(entry)) for engine, entry in zip(engines, entries, strict=True))
        )
        (winner,) = [
            entry
            for entry, answer in zip(entries, answers, strict=True)
            if isinstance(answer, protocol.Appended)
        ]
        place = winner.position

    assert 5 == (await seen(engines[0])).last
    assert place == (await ask(engines[0], protocol.Read(4, 100))).entries[0].position


async def test_takeovers_and_appends_at_once_leave_one_history(setup: Setup):
    """While a leader appends and others try to take the lease, each entry is of the epoch that held it."""
    leader, *candidates = [await setup.connect() for _ in range(3)]
    lease = await take(leader)

    async def lead() -> int:
        place, count = protocol.ORIGIN, 0
        for number in range(30):
            entry = follow(place, lease, b"%d" % number)
            if not isinstance(await ask(leader, protocol.Append(entry)), protocol.Appended):
                break
            place, count = entry.position, count + 1
        return count

    async def rival(engine: protocol.Engine, holder: bytes) -> int:
        for _ in range(30):
            if isinstance(
                await ask(engine, protocol.Take(await seen(engine), holder, "r", "")), protocol.Taken
            ):
                return 1
        return 0

    count, *_ = await asyncio.gather(lead(), rival(candidates[0], OTHER), rival(candidates[1], b"z" * 16))

    found = await ask(leader, protocol.Read(0, 1_000_000))
    assert count == len(found.entries) == found.lease.last
    assert {lease.epoch} >= {each.epoch for each in found.entries}


async def test_an_append_without_an_answer_is_found(setup: Setup):
    """After an append whose connection broke before the answer, the same entry is refused and in the log, and the next one follows."""
    engine = await setup.connect()
    lease = await take(engine)
    entry = follow(protocol.ORIGIN, lease, b"lost answer")

    await setup.lose_answer(engine, protocol.Append(entry))

    again = await ask(await setup.connect(), protocol.Append(entry))
    assert isinstance(again, protocol.Refused)
    assert (entry.index, HOLDER) == (again.lease.last, again.lease.holder)
    await append(await setup.connect(), entry.position, lease, b"next")


async def test_an_answer_has_its_proof(setup: Setup):
    """Takeovers, appends and renewals return the engine's setting of standbys and a timeline, as reads do."""
    engine = await setup.connect()
    taken = await ask(engine, protocol.Take(await seen(engine), HOLDER, "a", ""))
    appended = await ask(engine, protocol.Append(follow(protocol.ORIGIN, taken.lease)))
    renewed = await ask(engine, protocol.Renew(taken.lease.epoch, HOLDER, 0))

    assert taken.proof == appended.proof == renewed.proof
    assert isinstance(taken.proof.standbys, str)
    assert taken.proof.timeline == (await ask(engine, protocol.Read(0, 0))).timeline >= 1


async def test_a_restored_backup_admits_no_leader_of_before(setup: Setup):
    """Entries that follow what a restored backup lacks are refused, in the same epoch and in one that it repeats."""
    engine = await setup.connect()
    lease = await take(engine)
    first = await append(engine, protocol.ORIGIN, lease, b"1")
    backup = await setup.save()
    second = await append(engine, first.position, lease, b"2")
    later = await take(engine, OTHER, "b")
    third = await append(engine, second.position, later, b"3")

    await setup.restore(backup)

    engine = await setup.connect()
    assert 1 == (await seen(engine)).last
    assert isinstance(
        await ask(engine, protocol.Append(follow(second.position, lease, b"3"))), protocol.Refused
    )
    repeated = await take(engine, b"n" * 16, "c")
    assert later.epoch == repeated.epoch
    assert isinstance(
        await ask(engine, protocol.Append(follow(third.position, later, b"4"))), protocol.Refused
    )
    assert isinstance(await ask(engine, protocol.Renew(later.epoch, OTHER, 3)), protocol.Refused)


async def test_no_clock_of_the_engine_matters(setup: Setup):
    """A lease does not expire by itself: whoever has seen it moves it, however much later."""
    engine = await setup.connect()
    lease = await take(engine)
    await asyncio.sleep(0)

    assert isinstance(await ask(engine, protocol.Append(follow(protocol.ORIGIN, lease))), protocol.Appended)
    assert not {"expires", "time", "until"} & set(protocol.Lease._fields)


async def test_a_snapshot_counts_when_all_of_it_is_there(setup: Setup):
    """A snapshot whose chunks lack one, or differ, does not count; a whole one does, and is read back."""
    engine = await setup.connect()
    entries = await fill(engine, await take(engine), 2)
    chunks = [b"a" * 1000, b"b"]
    chain = sha256(b"".join(sha256(each).digest() for each in chunks)).digest()
    snapshot = protocol.Snapshot(b"s" * 16, entries[0].position, 2, 1001, chain, 77)

    await ask(engine, protocol.PutChunk(snapshot.id, 0, chunks[0]))
    assert protocol.Kept(kept=False) == await ask(engine, protocol.Complete(snapshot))
    await ask(engine, protocol.PutChunk(snapshot.id, 1, b"c"))
    assert protocol.Kept(kept=False) == await ask(engine, protocol.Complete(snapshot))
    assert protocol.Known(None) == await ask(engine, protocol.FindSnapshot())
    await ask(engine, protocol.PutChunk(snapshot.id, 1, chunks[1]))
    assert protocol.Kept(kept=True) == await ask(engine, protocol.Complete(snapshot))

    assert protocol.Known(snapshot) == await ask(engine, protocol.FindSnapshot())
    assert [protocol.Chunk(each) for each in (*chunks, None)] == [
        await ask(engine, protocol.GetChunk(snapshot.id, number)) for number in range(3)
    ]


async def test_a_snapshot_of_another_history_does_not_count(setup: Setup):
    """A snapshot is kept only if the log has, or had, its place; and a newer one is not replaced by an older one."""
    engine = await setup.connect()
    entries = await fill(engine, await take(engine), 3)
    kept = await keep_snapshot(engine, entries[1].position)

    for id_, position in (
        (b"1" * 16, protocol.Position(1, 9, b"x" * 32)),
        (b"2" * 16, protocol.Position(1, 3, b"x" * 32)),
        (b"3" * 16, entries[0].position),
    ):
        await ask(engine, protocol.PutChunk(id_, 0, b""))
        foreign = protocol.Snapshot(id_, position, 1, 0, sha256(sha256(b"").digest()).digest(), 0)
        assert protocol.Kept(kept=False) == await ask(engine, protocol.Complete(foreign))
    assert protocol.Known(kept) == await ask(engine, protocol.FindSnapshot())


async def test_a_newer_snapshot_replaces_the_one_before(setup: Setup):
    """Chunks of other snapshots are removed when one is complete."""
    engine = await setup.connect()
    entries = await fill(engine, await take(engine), 3)
    old = await keep_snapshot(engine, entries[0].position)
    new = await keep_snapshot(engine, entries[2].position, id_=b"t" * 16)

    assert protocol.Known(new) == await ask(engine, protocol.FindSnapshot())
    assert protocol.Chunk(None) == await ask(engine, protocol.GetChunk(old.id, 0))


async def test_a_snapshot_that_another_one_overtakes_is_given_up(setup: Setup):
    """Once another snapshot is complete, no further chunk of one that was begun before is kept, nor does it count."""
    engine, slower = await setup.connect(), await setup.connect()
    entries = await fill(engine, await take(engine), 3)
    assert protocol.Kept(kept=True) == await ask(slower, protocol.PutChunk(b"o" * 16, 0, b"first"))
    new = await keep_snapshot(engine, entries[2].position)

    assert protocol.Kept(kept=False) == await ask(slower, protocol.PutChunk(b"o" * 16, 1, b"second"))
    chain = sha256(sha256(b"first").digest()).digest()
    overtaken = protocol.Snapshot(b"o" * 16, entries[0].position, 1, 5, chain, 0)
    assert protocol.Kept(kept=False) == await ask(slower, protocol.Complete(overtaken))
    assert protocol.Known(new) == await ask(engine, protocol.FindSnapshot())


async def test_a_chunk_is_kept_again_when_its_answer_was_lost(setup: Setup):
    """Each chunk may be put twice, the first one, too: the snapshot is as if there had been one answer."""
    engine = await setup.connect()
    entries = await fill(engine, await take(engine), 1)
    for number, data in ((0, b"a"), (0, b"a"), (1, b"b"), (1, b"b")):
        assert protocol.Kept(kept=True) == await ask(engine, protocol.PutChunk(b"s" * 16, number, data))
    chain = sha256(sha256(b"a").digest() + sha256(b"b").digest()).digest()

    snapshot = protocol.Snapshot(b"s" * 16, entries[0].position, 2, 2, chain, 0)
    assert protocol.Kept(kept=True) == await ask(engine, protocol.Complete(snapshot))


async def test_a_trim_goes_no_further_than_the_snapshot(setup: Setup):
    """Without a snapshot, or beyond it, nothing is trimmed; what remains is read, with its place, as before."""
    engine = await setup.connect()
    lease = await take(engine)
    entries = await fill(engine, lease, 6)

    assert protocol.Trimmed(0) == await ask(engine, protocol.Trim(lease.epoch, HOLDER, 3))
    await keep_snapshot(engine, entries[3].position)
    assert protocol.Trimmed(0) == await ask(engine, protocol.Trim(lease.epoch, HOLDER, 5))
    trimmed = await ask(engine, protocol.Trim(lease.epoch, HOLDER, 4))

    assert isinstance(trimmed, protocol.Trimmed)
    assert 0 <= trimmed.through <= 4
    found = await ask(engine, protocol.Read(4, 10_000))
    assert (entries[3].position, tuple(entries[4:])) == (found.previous, found.entries)
    if trimmed.through:
        assert None is (await ask(engine, protocol.Read(0, 100))).previous
        assert trimmed.through == found.trimmed
    last = await append(engine, entries[-1].position, lease, b"after the trim")
    assert (last,) == (await ask(engine, protocol.Read(6, 100))).entries


async def test_members_are_listed_as_they_report(setup: Setup):
    """Each report is counted and read by all; a member can be forgotten."""
    engine = await setup.connect()
    one = protocol.Member("a", "a:5672", protocol.Position(1, 3, b"x" * 32))
    two = protocol.Member("b", "b:5672", protocol.ORIGIN)

    assert protocol.Members((one._replace(counter=1),)) == await ask(engine, protocol.Report(one))
    await ask(engine, protocol.Report(two))
    both = protocol.Members((one._replace(counter=1), two._replace(counter=2)))
    assert both == await ask(engine, protocol.Report(two))
    assert protocol.Members((one._replace(counter=1),)) == await ask(engine, protocol.Forget("b"))
