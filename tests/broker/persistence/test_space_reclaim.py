"""Free space of the data file is returned to the file system while a broker runs, once there is much for a while."""

import asyncio
import errno

from doubles.fakes import Host

from leveret.broker.config.config import StorageConfig
from leveret.broker.persistence import space_reclaim as module
from leveret.broker.persistence.data_store import DataStore
from leveret.broker.persistence.space_reclaim import PATIENCE, SpaceReclaim
from leveret.storage.message import Persistent
from leveret.storage.store.hole_punching import Given

WORTH = 1_000_000


class Loop:
    """A loop whose delayed calls are made when a test says so."""

    def __init__(self):
        self.later = []

    def call_later(self, _seconds, function, *arguments):
        self.later.append((function, arguments))

    def run(self):
        later, self.later = self.later, []
        for function, arguments in later:
            function(*arguments)


class Watched:
    """A file whose free space is set by a test."""

    def __init__(self, monkeypatch, *results, fraction=0.5):
        self.calls = []
        results = list(results)

        def give(_table, after):
            self.calls.append(after)
            result = results.pop(0)
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(module, "give_back", give)
        monkeypatch.setattr(module, "keep_reserve", lambda _table, kept: kept)
        self.loop = Loop()
        self.reclaim = SpaceReclaim(None, self.submit, self.loop, fraction=fraction, worth=WORTH)

    @staticmethod
    def submit(job, done):
        try:
            result = job()
        except OSError as error:
            done(None, error)
        else:
            done(result, None)


def test_ten_minutes_of_too_much_garbage_are_waited_for(monkeypatch):
    """Space is returned only of a large file with too much free space all the time, in steps to the end."""
    watched = Watched(monkeypatch, Given(5, 7, more=True), Given(6, 9, more=False))
    much, little, small = (2 * WORTH, 0.6), (2 * WORTH, 0.5), (WORTH, 0.9)
    for now, usage in (
        (0, much),
        (500, little),
        (501, much),
        (900, small),
        (1000, much),
        (999 + PATIENCE, much),
    ):
        watched.reclaim.update(*usage, float(now))
    early = list(watched.calls)
    watched.reclaim.update(*much, 1000 + PATIENCE)
    watched.loop.run()
    watched.loop.run()

    assert ([], [-1, 7]) == (early, watched.calls)


def test_what_cannot_be_given_back_is_tried_once(monkeypatch, caplog):
    """A file system without holes is logged once, and the file shrinks at a start."""
    watched = Watched(monkeypatch, OSError(errno.EOPNOTSUPP, "not supported"))
    for now in range(0, 5000, 100):
        watched.reclaim.update(2 * WORTH, 0.9, float(now))

    assert [-1] == watched.calls
    assert 1 == caplog.text.count("it shrinks at the next start only")


def test_a_fraction_of_one_gives_nothing_back(monkeypatch):
    """A fraction of 1 disables reclaiming, as at a start."""
    watched = Watched(monkeypatch, fraction=1.0)
    for now in (0.0, PATIENCE):
        watched.reclaim.update(2 * WORTH, 1.0, now)

    assert [] == watched.calls


def test_a_drained_broker_gives_its_disk_back(tmp_path, monkeypatch):
    """A drained broker's file ends up small on disk, beside commits, and whole; its free space is counted once."""
    monkeypatch.setattr("leveret.broker.persistence.data_store.WORTH_OCTETS", WORTH)
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    monkeypatch.setattr(module, "PAUSE", 0.0)
    monkeypatch.setattr("leveret.storage.store.hole_punching.RESERVE", 1_000_000)

    async def run():
        disk = DataStore(tmp_path, StorageConfig(sync=False), ram_limit=1 << 30)
        disk.start(Host(), asyncio.get_running_loop(), lambda _: None)
        queue = disk.make_backing(disk.next_id(), {})

        async def commit():
            safe = asyncio.get_running_loop().create_future()
            disk.journal.when_safe(safe.set_result)
            disk.commits.wake()
            assert await asyncio.wait_for(safe, 10)

        for _ in range(100):
            queue.publish([Persistent(b"\0\0", bytes(300_000), 1, None, 0, 1)], persistent=True)
            await commit()
        queue.purge()
        rooms = []
        while not rooms or rooms[-1].file > 3_000_000:
            await commit()
            measured = asyncio.get_running_loop().create_future()
            disk.measure(lambda room, _error, measured=measured: measured.set_result(room))
            rooms.append(await asyncio.wait_for(measured, 10))
        await disk.stop([queue])
        return rooms

    rooms = asyncio.run(asyncio.wait_for(run(), 40))

    assert rooms[0].file > 25_000_000
    assert abs(rooms[0].free - rooms[-1].free) < 500_000_000  # others use the disk, too
    again = DataStore(tmp_path, StorageConfig(sync=False), ram_limit=1 << 30)
    assert 1 == again.environment.was_clean
    again.close()
