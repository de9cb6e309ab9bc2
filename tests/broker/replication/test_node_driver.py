"""The driver: copies on disk that follow a log, are made again from a snapshot, and take over."""

import asyncio
import shutil
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event

from processes.waiting import until
from replicated.memory import MemoryDriver, MemoryEngine

from leveret.broker.replication.control import Control
from leveret.broker.replication.node_driver import NodeDriver, pack_place, unpack_place
from leveret.broker.replication.settings import Settings
from leveret.storage.journal.journal import Journal
from leveret.storage.store.replica import ReplicaEnvironment

DEADLINE = 60.0
SETTINGS = Settings(snapshot_octets=4000, trim_cap=8000, poll=0.02, report=0.05, member_lost=5.0)


@asynccontextmanager
async def keeping(path: Path, engine: MemoryEngine, *names: str):
    drivers = {}
    for name in names:
        engines = MemoryDriver(engine), MemoryDriver(engine)
        drivers[name] = NodeDriver(path / name, name, name, engines, SETTINGS, sync=False)
    try:
        for driver in drivers.values():
            driver.start()
        yield drivers
    finally:
        for driver in drivers.values():
            await driver.stop()
            driver.environment.close()


async def leading(drivers):
    await until(lambda: any(each.opened.done() for each in drivers.values()))
    return next(each for each in drivers.values() if each.opened.done())


class Author:
    """Writes rows through the log, one after the other."""

    def __init__(self, driver):
        self.driver = driver
        self.journal = Journal(1 << 40)

    async def write(self, key: bytes, value: bytes) -> None:
        self.journal.put("defs", key, value)
        octets, _ = self.driver.environment.prepare(self.journal.cut())
        self.journal.settled()
        applied = asyncio.Event()
        self.driver.submit(octets, bool, applied.set)
        async with asyncio.timeout(DEADLINE):
            await applied.wait()


def rows(path: Path) -> dict[bytes, bytes]:
    """Return the rows of a copy that nobody uses."""
    environment = ReplicaEnvironment(path, sync=False)
    found = dict(environment.rows("defs"))
    environment.close()
    return found


async def test_copies_follow(tmp_path: Path) -> None:
    """Batches, also large ones, are in the leader's copy when it is called back, and in each copy later."""
    engine = MemoryEngine()
    wanted = {b"a": b"small", b"b": b"x" * 3_000_000, b"c": b"last"}
    async with keeping(tmp_path, engine, "n1", "n2") as drivers:
        leader = await leading(drivers)
        assert leader.may_answer()
        author = Author(leader)
        for key, value in wanted.items():
            await author.write(key, value)
            assert (key, value) in list(leader.environment.rows("defs"))
        end = engine.visible.lease.last
        # an entry is settled for others with the next one, or the next renewal
        await until(lambda: all(each.node.follower.position.index == end for each in drivers.values()))

    for name in drivers:
        assert wanted == rows(tmp_path / name)


async def test_a_wiped_copy_is_made_from_the_snapshot(tmp_path: Path) -> None:
    """A log is trimmed up to a snapshot; a node that has lost its disk takes that, and the entries behind it."""
    engine = MemoryEngine()
    wanted = {}
    async with keeping(tmp_path, engine, "n1", "n2") as drivers:
        leader = await leading(drivers)
        author = Author(leader)
        number = 0
        while not engine.visible.base.index:
            number += 1
            wanted[b"%d" % number] = b"v" * 300
            await author.write(b"%d" % number, b"v" * 300)
            assert number < 5000, "nothing is trimmed"
            await asyncio.sleep(0.01)
        wanted[b"behind"] = b"it"
        await author.write(b"behind", b"it")
        lost = next(name for name, each in drivers.items() if each is not leader)
        await drivers[lost].stop()
        drivers[lost].environment.close()
        shutil.rmtree(tmp_path / lost)
        async with keeping(tmp_path, engine, lost) as others:
            end = engine.visible.lease.last
            await until(lambda: others[lost].node.follower.position.index >= end)
            assert not others[lost].failed.done()
        del drivers[lost]

    assert wanted == rows(tmp_path / lost)


async def test_a_snapshot_that_is_refused_leaves_no_file(tmp_path: Path) -> None:
    """A snapshot is a file as large as the copy, which goes also if the engine has not taken all of it."""
    async with keeping(tmp_path, MemoryEngine(), "n1") as drivers:
        driver = drivers["n1"]
        path, _ = driver.environment.copy_to_file()
        chunks = driver._chunks(path)
        assert next(chunks)
        del chunks

        await until(lambda: not path.parent.exists())


async def test_a_snapshot_of_a_copy_that_was_removed_is_not_put(tmp_path: Path) -> None:
    """A copy that was found to have another history is not put into the engine."""
    driver = NodeDriver(tmp_path, "n1", "n1", (MemoryDriver(MemoryEngine()),) * 2, SETTINGS, sync=False)
    try:
        driver.node._is_making_asked = True
        driver.node._wipe("it has another history")
        driver.node.begin_snapshot(driver.node.follower.position, iter([b"data"]))

        assert driver.node._making is None
    finally:
        await driver.stop()
        driver.environment.close()


async def test_a_handover_leaves_the_lease_to_the_other(tmp_path: Path) -> None:
    """A leader that hands over leads no more and calls back nothing; the other one goes on with all that was written."""
    engine = MemoryEngine()
    async with keeping(tmp_path, engine, "n1", "n2") as drivers:
        leader = await leading(drivers)
        other = next(each for each in drivers.values() if each is not leader)
        await Author(leader).write(b"a", b"1")
        async with asyncio.timeout(DEADLINE):
            await leader.hand_over()
            assert not leader.may_answer()
            leader.submit(b"nothing", bool, lambda: 1 / 0)
            assert leader.opened.result() < await other.opened
        await Author(other).write(b"b", b"2")
        assert {b"a": b"1", b"b": b"2"} == dict(other.environment.rows("defs"))


async def test_a_stop_while_entries_are_applied(tmp_path: Path) -> None:
    """The stop waits for what is being applied and begins with nothing more: the log has it for the next start."""
    engine, going, errors = MemoryEngine(), Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    async with keeping(tmp_path, engine, "n1", "n2") as drivers:
        leader = await leading(drivers)
        other = next(each for each in drivers.values() if each is not leader)
        follower, apply = other.node.follower, other.environment.apply
        other.environment.apply = lambda *given: (going.wait(DEADLINE), apply(*given))
        author, number = Author(leader), 0
        while not (
            follower.is_applying and follower.tail_octets and follower.settled > follower._applying.index
        ):
            number += 1
            await author.write(b"%d" % number, b"v")
            await asyncio.sleep(0.01)
            assert number < 2000, "nothing gathers"
        place = follower._applying
        stopping = asyncio.create_task(other.stop())
        await until(lambda: other._disk._shutdown)
        going.set()
        await stopping

        assert pack_place(place) == other.environment.place
    assert [] == errors


async def test_a_damaged_log_is_reported(tmp_path: Path, caplog) -> None:
    """A node that cannot follow the log, as an entry is not what its chain says, logs that once, and never leads."""
    engine = MemoryEngine()
    async with keeping(tmp_path, engine, "n1") as drivers:
        await Author(await leading(drivers)).write(b"a", b"1")
        last = engine.visible.lease.last
    entry = engine.visible.entries[last]
    engine.visible.entries[last] = replace(entry, payload=entry.payload + b"more")
    async with keeping(tmp_path, engine, "n2") as drivers:
        await until(lambda: "the log is damaged" in caplog.text)
        counter = engine.visible.members["n2"].counter
        await until(lambda: engine.visible.members["n2"].counter > counter + 2)  # it has read again, too
        assert not drivers["n2"].node.is_caught_up()
        assert not drivers["n2"].opened.done()
        (problem,) = Control(drivers["n2"], []).described()["problems"]
        assert problem in caplog.text
        assert "have it replace the primary" in problem

    assert 1 == caplog.text.count(f"the chain hash of entry {last} does not match")


def test_places() -> None:
    """A place that is packed and unpacked is the same; an empty copy has the place before the first entry."""
    place = unpack_place(b"\0" * 7 + b"\2" + b"\0" * 7 + b"\3" + b"h" * 32)

    assert (2, 3, b"h" * 32) == (place.epoch, place.index, place.hash)
    assert place == unpack_place(pack_place(place))
    assert b"" == pack_place(unpack_place(b""))
