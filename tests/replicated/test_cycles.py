"""The campaign of replicated brokers: what its cycles do, what is kept of them, and the ways that it cuts."""

import asyncio
import contextlib
import tempfile
import time
from itertools import islice
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

pytest.importorskip("psycopg", reason="the package psycopg is not installed")
from processes.short_paths import short_parent
from replicated.cycles import keep, kept, to_do
from replicated.nemeses import ANSWERED_SECONDS, MOVE, NEMESES, Field, schedule
from replicated.record import table, takeovers
from replicated.wires import DOWN, UP, Wire

SECONDS = 10.0


def entry(number, *nemeses, wrong=(), lost=0):
    counts = {"confirmed": 10, "lost": lost, "duplicates": 0, "unmarked": 0, "disordered": 0}
    return {
        "seed": 1, "number": number, "nemeses": list(nemeses), "gap": 1.0 + number, "counts": counts, "wrong": list(wrong),
        "notes": {"snapshots": 1, "restored": 0, "leaderships": 2},
    }  # fmt: skip


def test_a_seed_decides_what_cycles_do():
    """Two schedules of a seed are the same, each nemesis comes in turn, and pairs are of two parts."""
    found = list(islice(schedule(1), 2 * len(NEMESES)))

    assert list(islice(schedule(1), 2 * len(NEMESES))) == found
    assert list(islice(schedule(2), 2 * len(NEMESES))) != found
    assert {chosen[0].name for chosen in found[: len(NEMESES)]} == {each.name for each in NEMESES}
    assert {1, 2} == {len(chosen) for chosen in found}
    assert all(len({each.part for each in chosen}) == len(chosen) for chosen in found)


def test_virtual_hosts_move_beside_what_is_done_to_several_logs():
    """Each third cycle has a move, before or behind the same nemeses as with one log."""
    one, several = (list(islice(schedule(1, logs), 12)) for logs in (1, 6))

    assert [1, 4, 7, 10] == [number for number, chosen in enumerate(several) if MOVE in chosen]
    assert one == [tuple(each for each in chosen if each is not MOVE) for chosen in several]


def test_a_run_goes_on_where_it_ended(tmp_path):
    """Cycles that are kept are not run again, but those that failed if that is wanted."""
    record = tmp_path / "record.jsonl"
    keep(record, entry(0, "kill"))
    keep(record, entry(2, "kill", wrong=["O1: lost"]))

    assert [1, 3] == [number for number, _ in to_do(record, 1, 4, again=False)]
    assert [1, 2, 3] == [number for number, _ in to_do(record, 1, 4, again=True)]
    assert [0, 1] == [number for number, _ in to_do(record, 2, 2, again=False)]

    alone = [chosen for _, chosen in to_do(record, 1, 500, again=False, only="kill", alone=True)]
    assert {("kill",)} == {tuple(each.name for each in chosen) for chosen in alone}

    keep(record, entry(2, "kill"))
    assert [1, 3] == [number for number, _ in to_do(record, 1, 4, again=True)]


def test_the_table_counts_a_cycle_once(tmp_path):
    """A cycle that was repeated counts as it ended the last time; a pair counts for each of its two."""
    record = tmp_path / "record.jsonl"
    keep(record, entry(0, "kill", wrong=["O1: lost"], lost=7))
    keep(record, entry(0, "kill"))
    keep(record, entry(1, "kill", "promote"))
    keep(record, {"control": "no comparison of epochs", "wrong": ["7 are lost"]})

    found = table(kept(record))

    assert "| kill | 1 | 1 | 20 | 0 | 0 | 0 | 1.5, at most 2.0 |" in found
    assert "| promote | 0 | 1 | 10 | 0 | 0 | 0 | 2.0, at most 2.0 |" in found
    assert "2 cycles, 0 failed; 4 leaderships, 2 snapshots" in found
    assert "| no comparison of epochs | 7 are lost |" in found


def test_takeovers_are_told_of_machines_that_led_several_logs():
    """Of cycles with a kill alone that went well, each log counts."""
    logs = [
        entry(0, "kill") | {"takeovers": {"/": 6.0, "l2": 7.0}},
        entry(1, "kill") | {"takeovers": {"/": 9.0}},
        entry(2, "kill", "promote") | {"takeovers": {"/": 9.0, "l2": 9.0}},
        entry(3, "kill", wrong=["O1"]) | {"takeovers": {"/": 9.0, "l2": 9.0}},
    ]

    assert "1 cycles, 2 takeovers, median 6.5 s, at most 7.0 s" in takeovers(logs)
    assert not takeovers([entry(0, "kill")])


@pytest.mark.parametrize(
    ("sent", "answered", "is_wrong"),
    [(-0.2, 0.8, False), (-0.2, 2 * ANSWERED_SECONDS, True), (0.2, 0.3, True), (-0.2, None, False)],
)
def test_a_confirm_without_a_standby_is_an_objection(sent, answered, is_wrong):
    """A confirm that was on its way is none; that of a message sent later, or one that comes much later, is."""
    publisher = SimpleNamespace(sent=[1.0], answered=[1.1], confirmed=[1])
    field = Field(None, "n1", [publisher], Random(1))
    check = field.nothing_is_confirmed()
    now = time.monotonic()
    publisher.sent.append(now + sent)
    if answered is not None:
        publisher.answered.append(now + answered)

    check()

    assert is_wrong == bool(field.wrong)


async def _within(awaitable):
    return await asyncio.wait_for(awaitable, SECONDS)


async def _got(got, wanted):
    async with asyncio.timeout(SECONDS):
        while wanted != b"".join(got):
            await asyncio.sleep(0)


@pytest.fixture
def echoing():
    """Run a test with a wire to a server that answers what it gets, a connection through it, and what the server got."""

    def run(test):
        async def main():
            got = []
            echoes = []

            async def echo(reader, writer):
                echoes.append(asyncio.current_task())
                with contextlib.suppress(ConnectionError):
                    while data := await reader.read(100):
                        got.append(data)
                        writer.write(data)
                writer.close()

            server = await asyncio.start_unix_server(echo, folder / ".s.PGSQL.5432")
            wire = Wire([folder])
            await wire.listen()
            reader, writer = await asyncio.open_connection("127.0.0.1", wire.ports[0])
            writer.write(b"one")
            assert b"one" == await _within(reader.readexactly(3))
            try:
                await test(wire, reader, writer, got)
            finally:
                writer.close()
                wire.close()
                server.close()
                await _within(asyncio.gather(*echoes, return_exceptions=True))

        asyncio.run(main())

    with tempfile.TemporaryDirectory(dir=short_parent()) as place:
        folder = Path(place)
        yield run


def test_what_is_held_arrives_late(echoing):
    """Octets in a direction that is held arrive, in order, once it is released; even if the sender has gone."""

    async def test(wire, reader, writer, got):
        wire.hold(DOWN)
        writer.write(b"two")
        await _got(got, b"onetwo")
        wire.release()
        assert b"two" == await _within(reader.readexactly(3))

        wire.hold(UP)
        writer.write(b"three")
        writer.close()
        await writer.wait_closed()
        assert b"onetwo" == b"".join(got)
        wire.release()
        await _got(got, b"onetwothree")

    echoing(test)


def test_answers_are_lost(echoing):
    """A server gets what is sent while its answers are lost."""

    async def test(wire, reader, writer, got):
        wire.swallows = True
        writer.write(b"two")
        await _got(got, b"onetwo")
        wire.reset()
        assert b"" == await _within(_read(reader))

    echoing(test)


async def _read(reader):
    try:
        return await reader.read(100)
    except ConnectionResetError:
        return b""


def test_a_way_that_is_cut_refuses_connections(echoing):
    """A connection that is made while the way is cut ends at once."""

    async def test(wire, reader, writer, got):
        wire.is_cut = True
        other, closing = await asyncio.open_connection("127.0.0.1", wire.ports[0])
        assert b"" == await _within(_read(other))
        closing.close()

    echoing(test)
