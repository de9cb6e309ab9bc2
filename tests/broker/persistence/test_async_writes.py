"""Writes that no thread waits for, by the kernel, to a real file."""

import asyncio
import contextlib
import errno
import gc
import os
import platform
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest
import uvloop
from checks.internals import descriptors
from crash.judged import needs_power_cuts
from crash.loopdisk import LoopDisk

from leveret.broker.persistence import async_writes
from leveret.broker.persistence.async_writes import PAGE, AsyncWrites

SIZE = 4 * PAGE
HELD_NS = async_writes.HELD_NS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


@pytest.fixture(autouse=True)
def is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no submission count as long because the machine is busy."""
    monkeypatch.setattr(async_writes, "HELD_NS", 10**11)


@contextlib.contextmanager
def opened(path: Path, flags: int = os.O_WRONLY) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_DIRECT | os.O_DSYNC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file of a few pages on a file system that can be written around the page cache."""
    file = tmp_path / "file"
    file.write_bytes(bytes(8 * PAGE))
    try:
        with opened(file):
            return file
    except OSError:
        pytest.skip("no O_DIRECT on this file system")


def with_writes(work: Callable[[AsyncWrites], Coroutine[None, None, None]]) -> None:
    """Run something in a loop of the broker's kind, and close the writes at its end."""

    async def run() -> None:
        writes = AsyncWrites.open(asyncio.get_running_loop(), SIZE)
        if writes is None:
            pytest.skip("no asynchronous writes here")
        try:
            async with asyncio.timeout(20):
                await work(writes)
        finally:
            writes.close()

    uvloop.run(run())


async def written(writes: AsyncWrites, descriptor: int, octets: bytes, offset: int) -> OSError | None:
    done = asyncio.get_running_loop().create_future()
    assert writes.start(descriptor, octets, offset, done.set_result)
    assert not writes.is_ready
    assert not done.done()
    error: OSError | None = await done
    assert writes.is_ready
    return error


def test_bytes_are_written_at_their_places_one_after_the_other(path: Path) -> None:
    """The callback comes later, with no error, and the file has the bytes then, and its size."""

    async def work(writes: AsyncWrites) -> None:
        with opened(path) as descriptor:
            for number in range(6):
                octets = b"%d" % number * (PAGE + 1)
                assert await written(writes, descriptor, octets, number % 3 * 2 * PAGE) is None
                at = number % 3 * 2 * PAGE
                assert path.read_bytes()[at : at + len(octets)] == octets

    with_writes(work)
    assert 8 * PAGE == path.stat().st_size


@pytest.mark.parametrize("size", [SIZE, SIZE + 1])
def test_more_than_the_buffer_is_refused(path: Path, size: int) -> None:
    """A write that does not fit is not begun, and the next one is."""

    async def work(writes: AsyncWrites) -> None:
        calls: list[object] = []
        with opened(path) as descriptor:
            fits = writes.start(descriptor, b"x" * size, 0, calls.append)
            assert (size <= SIZE) is fits
            while fits and not calls:
                await asyncio.sleep(0.001)
            assert await written(writes, descriptor, b"y", 0) is None

    with_writes(work)


def test_a_descriptor_that_cannot_be_written_is_refused_for_a_while(path, monkeypatch):
    """A write that the kernel does not accept is not begun, and nothing is submitted for a minute."""
    now = [0]
    monkeypatch.setattr(async_writes, "monotonic_ns", lambda: now[0])

    async def work(writes: AsyncWrites) -> None:
        with opened(path, os.O_RDONLY) as descriptor:
            assert not writes.start(descriptor, b"x", 0, lambda _: pytest.fail("called"))
        assert not writes.is_ready
        now[0] = async_writes.REFUSED_NS
        with opened(path) as descriptor:
            assert await written(writes, descriptor, b"y", 0) is None

    with_writes(work)


def test_a_refusal_by_the_file_system_comes_later_and_counts_for_a_while(path: Path) -> None:
    """A place that the file system does not allow is refused when the write is done, and so may be tried by others."""

    async def work(writes: AsyncWrites) -> None:
        done = asyncio.get_running_loop().create_future()
        with opened(path) as descriptor:
            assert writes.start(descriptor, b"x", 1, done.set_result)
            error = await done
        assert error is not None
        assert error.errno in async_writes.REFUSED
        assert not writes.is_ready

    with_writes(work)


def test_what_cannot_be_opened_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without descriptors, or a loop that refuses, keeps no context of the kernel and no descriptor."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "planted")

    def lack(*_: object) -> None:
        raise NotImplementedError

    async def run() -> None:
        loop = asyncio.get_running_loop()
        gc.collect()  # otherwise descriptors of the tests before may be closed meanwhile
        before = descriptors(), contexts()
        monkeypatch.setattr(loop, "add_reader", lack)
        for _ in range(20):
            assert AsyncWrites.open(loop, SIZE) is None
        monkeypatch.undo()
        monkeypatch.setattr(os, "eventfd", refuse)
        for _ in range(20):
            assert AsyncWrites.open(loop, SIZE) is None
        assert before == (descriptors(), contexts())

    asyncio.run(run())


def contexts() -> int:
    """Return the number of contexts for asynchronous writes that the process has."""
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("[aio]")


def test_a_close_ends_it(path: Path) -> None:
    """After a close nothing is to be submitted, and another close does nothing."""

    async def work(writes: AsyncWrites) -> None:
        with opened(path) as descriptor:
            assert await written(writes, descriptor, b"y", 0) is None
        writes.close()
        assert not writes.is_ready

    with_writes(work)


def test_a_submission_that_waits_for_the_disk_is_not_repeated_for_a_while(path, monkeypatch):
    """A file system that waits for the disk holds the loop a twentieth of the time at most; the write itself counts."""
    monkeypatch.setattr(async_writes, "HELD_NS", HELD_NS)
    times = [0, HELD_NS + 1]
    monkeypatch.setattr(async_writes, "monotonic_ns", lambda: times.pop(0) if len(times) > 1 else times[0])

    async def work(writes: AsyncWrites) -> None:
        done = asyncio.get_running_loop().create_future()
        with opened(path) as descriptor:
            assert writes.start(descriptor, b"x", 0, done.set_result)
            assert await done is None
        times[0] += 20 * (HELD_NS + 1) - 1
        assert not writes.is_ready
        times[0] += 1
        assert writes.is_ready

    with_writes(work)
    assert b"x" == path.read_bytes()[:1]


def test_a_close_waits_for_the_write_and_does_not_call_back(path: Path) -> None:
    """A write that has begun is done, as if the process were killed, and nobody hears of it."""
    calls: list[object] = []

    async def work(writes: AsyncWrites) -> None:
        with opened(path) as descriptor:
            assert writes.start(descriptor, b"last", 0, calls.append)

    with_writes(work)
    assert ([], b"last") == (calls, path.read_bytes()[:4])


@needs_power_cuts
def test_an_error_of_the_disk_is_told(tmp_path: Path) -> None:
    """A write to a disk without power fails with EIO."""

    async def work(writes: AsyncWrites) -> None:
        with opened(disk.mount_point / "file") as descriptor:
            assert await written(writes, descriptor, b"x", 0) is None
            disk.cut()
            error = await written(writes, descriptor, b"y", 0)
            assert error is not None
            assert errno.EIO == error.errno

    with LoopDisk(tmp_path, 16) as disk:
        (disk.mount_point / "file").write_bytes(bytes(PAGE))
        with_writes(work)


def test_less_than_was_to_be_written_is_a_lack_of_space() -> None:
    """A file system that finds room for a part of a write has none for the rest."""
    assert errno.ENOSPC == async_writes._error(PAGE).errno
    assert errno.EDQUOT == async_writes._error(-errno.EDQUOT).errno


def test_a_kernel_that_does_not_tell_results_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox that allows writes and not their results is found out before anything is written."""
    if (calls := async_writes._CALLS.get(platform.machine())) is None:
        pytest.skip("no asynchronous writes here")
    monkeypatch.setattr(async_writes, "_CALLS", {platform.machine(): (calls[0], calls[1], -1, calls[3])})
    before = contexts()
    loop = asyncio.new_event_loop()
    try:
        assert AsyncWrites.open(loop, SIZE) is None
    finally:
        loop.close()
    assert before == contexts()


def test_other_systems_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system whose calls are unknown is refused before anything is done."""
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    loop = asyncio.new_event_loop()
    try:
        assert AsyncWrites.open(loop, SIZE) is None
    finally:
        loop.close()


def test_a_kernel_that_has_no_more_of_them_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox or a limit that refuses is no error of the broker."""
    monkeypatch.setattr(async_writes, "_CALLS", {platform.machine(): (-1, -1, -1, -1)})
    loop = asyncio.new_event_loop()
    try:
        assert AsyncWrites.open(loop, SIZE) is None
    finally:
        loop.close()
