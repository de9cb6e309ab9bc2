"""Files of the export: when they become visible, their contents, and failures to write them."""

import asyncio
import errno
import json
import logging
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.wire import Client as WireClient
from doubles.fakes import Client, Node
from processes.running import serving

from leveret.broker.amqp.tables import encode_table
from leveret.broker.config.config import ExportConfig
from leveret.broker.counters.sampling import MOST_EVENTS
from leveret.broker.export import writer
from leveret.broker.export.tables import TABLES, columns
from leveret.broker.export.writer import Export, Layout, finished_name, recover, remove_old

HOUR = 3_600_000
NODE = "rabbit@test"
LAYOUT = Layout(Path("/x"), "rabbit@host")
MOMENT = 1_763_740_799_999  # 2025-11-21 15:59:59.999 UTC


def finished(directory: Path) -> list[Path]:
    """Return the files that readers see."""
    return sorted(path for path in directory.rglob("*.jsonl") if not path.name.startswith("."))


def hidden(directory: Path) -> list[Path]:
    """Return the files that are being written, or were when a broker ended."""
    return sorted(directory.rglob(".*.tmp"))


def read(directory: Path) -> dict[str, list[dict[str, Any]]]:
    """Return all visible rows, by table; each must have its table's columns and lie in the hour of its time."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for path in finished(directory):
        table, day, hour = path.relative_to(directory).parts[:3]
        for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n"):
            row = json.loads(line)
            assert list(row) == [column.name for column in columns(table)]
            assert f"{day}/{hour}" == Layout.hour(row["ts"])
            rows.setdefault(table, []).append(row)
    return rows


class Exporting:
    """A broker without sockets that is sampled when a test says so."""

    def __init__(self, directory: Path, node: str = NODE, **settings: Any) -> None:
        self.directory = directory
        self.node = Node(export=ExportConfig(dir=directory, **settings), node_name=node)
        self.export: Export = self.node.export
        self.client = Client(self.node)
        self.client.declare("q")

    async def look(self, seconds: float = 0.0) -> None:
        """Let time pass, then sample."""
        self.node.pass_time(round(seconds * 1000))
        self.client.publish("q")
        await self.export._try(self.export._look())

    async def finish(self) -> dict[str, list[dict[str, Any]]]:
        await self.export._finish(list(self.export._files))
        return read(self.directory)


async def test_a_file_is_seen_when_it_is_finished(tmp_path):
    """A file has a name that readers ignore until it is old enough, and is complete then."""
    exporting = Exporting(tmp_path)
    await exporting.look()
    await exporting.look(59)

    assert [] == finished(tmp_path)
    await exporting.look(1)
    assert [] == hidden(tmp_path)
    assert [1, 2, 3] == [row["pub"] for row in read(tmp_path)["queue_interval"]]
    assert {f"node={NODE}"} == {path.parent.name for path in finished(tmp_path)}


async def test_a_large_file_is_finished_early(tmp_path):
    """A file is finished by its size as well as by its age."""
    exporting = Exporting(tmp_path, rotate_size=1)
    await exporting.look()
    await exporting.look(1)

    assert [] == hidden(tmp_path)
    assert 2 == len([path for path in finished(tmp_path) if "queue_interval" in path.name])


async def test_a_new_hour_begins_new_files(tmp_path):
    """No file has rows of two hours, also where an event is from the hour before the sample."""
    exporting = Exporting(tmp_path)
    now = exporting.node.wall_clock()
    exporting.node.pass_time(HOUR - now % HOUR - 1000)
    await exporting.look()
    exporting.node.context.note("trap", "/", "before")
    await exporting.look(2)
    rows = await exporting.finish()

    assert 2 == len({path.parent for path in finished(tmp_path / "queue_interval")})
    assert "before" in {row["name"] for row in rows["event"]}


async def test_a_clock_that_was_set_back_stops_nothing(tmp_path):
    """A file that begins in the future is finished, and the next one begins now."""
    exporting = Exporting(tmp_path)
    await exporting.look(10)
    exporting.node.clock.now -= 5
    await exporting.look()
    await exporting.look()

    assert [] != finished(tmp_path)
    assert 3 == len((await exporting.finish())["queue_interval"])


class Failing:
    """A file on a disk that has space for a few bytes only."""

    def __init__(self, file: Any, room: int) -> None:
        self._file = file
        self._room = room

    async def write(self, octets: memoryview) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = await self._file.write(octets[: self._room])
        self._room -= written
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


async def test_a_full_disk_stops_the_export_with_one_warning(tmp_path, caplog, monkeypatch):
    """A full disk leaves whole rows readable, causes one warning, does not stop the broker, and is retried later."""
    exporting = Exporting(tmp_path)
    caplog.set_level(logging.INFO, logger="leveret.export")
    await exporting.look()
    export = exporting.export
    for file in export._files.values():
        file.file = Failing(file.file, 100)
    await exporting.look(5)
    monkeypatch.setattr(export, "_append", failing_append)
    await exporting.look(5)
    monkeypatch.undo()

    assert ["export failed, trying again every 60 s: [Errno 28] No space left on device"] == [
        record.message for record in caplog.records
    ]
    assert [] == hidden(tmp_path)
    assert [1] == [row["pub"] for row in read(tmp_path)["queue_interval"]]
    assert export.lost > 0
    await exporting.look(60)
    await exporting.look(5)
    rows = await exporting.finish()
    assert "export resumed" in caplog.records[-1].message
    assert [1, 4, 5] == [row["pub"] for row in rows["queue_interval"]]
    assert ["export_gap"] == [row["kind"] for row in rows["event"] if row["name"] == ""]
    assert export.lost == rows["node_interval"][-1]["export_lost"]


async def failing_append(*_arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_it_is_not_tried_all_the_time(tmp_path, monkeypatch, caplog):
    """After a failure the broker waits before the next sample, and stops cleanly."""
    exporting = Exporting(tmp_path / "file", interval=0.01)
    (tmp_path / "file").write_text("in the way")
    tried: list[float] = []
    look = exporting.export._look

    async def counting() -> None:
        tried.append(time.monotonic())
        await look()

    monkeypatch.setattr(exporting.export, "_look", counting)
    exporting.export.start(asyncio.get_running_loop())
    while not exporting.export.failed:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    await exporting.export.stop("shutdown")

    assert 1 == len(tried)  # at the end
    assert 1 == len([record for record in caplog.records if record.name == "leveret.export"])


async def test_a_bug_ends_the_export_and_not_the_broker(tmp_path, monkeypatch, caplog):
    """An internal error is logged with its traceback, ends the notes for the export, and stopping works."""
    exporting = Exporting(tmp_path, interval=0.01)

    def broken(*_arguments: object) -> Iterator[None]:
        raise RuntimeError("bug")

    monkeypatch.setattr(exporting.export._rows, "take", broken)
    exporting.export.start(asyncio.get_running_loop())
    while exporting.node.context.events is not None:
        await asyncio.sleep(0.01)
    await exporting.export.stop("shutdown")

    assert "internal error in the export" in caplog.text


async def test_the_loop_is_kept_busy_for_moments_only(tmp_path, monkeypatch):
    """A sample of many queues is taken in slices: others have their turns in between."""
    exporting = Exporting(tmp_path)
    for number in range(300):
        exporting.client.declare(f"q{number}")
    monkeypatch.setattr(writer, "STEP_SECONDS", 0.0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.get_running_loop().create_task(others())
    await exporting.look()
    task.cancel()

    assert turns > 300
    assert 301 == len((await exporting.finish())["queue_interval"])


def test_what_a_crash_has_left_is_finished(tmp_path):
    """Whole rows are kept, a torn one is cut off, a file without any is removed; other nodes' files stay unchanged."""
    mine, other = Layout(tmp_path, NODE), Layout(tmp_path, "other")
    left = {
        mine.unfinished("event", Layout.hour(0), 0, 1): b'{"a":1}\n{"a":2}\n{"a"',
        mine.unfinished("event", Layout.hour(0), 0, 2): b'{"a"',
        other.unfinished("event", Layout.hour(0), 0, 3): b'{"a":3}\n',
    }
    for path, octets in left.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(octets)
    recover(mine)
    whole, empty, foreign = left

    assert b'{"a":1}\n{"a":2}\n' == finished_name(whole).read_bytes()
    assert [foreign] == hidden(tmp_path)
    assert not finished_name(empty).exists()


def test_old_days_are_removed(tmp_path):
    """Files of this node up to a day are removed with their directories; those of other nodes and tables stay."""
    mine, other = Layout(tmp_path, NODE), Layout(tmp_path, "other")
    day = 24 * HOUR
    for layout in (mine, other):
        for number in range(4):
            path = finished_name(layout.unfinished("event", Layout.hour(number * day), number * day, 1))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}\n")
    (tmp_path / "mine.txt").write_text("kept")
    remove_old(mine, Layout.day(1 * day))

    assert Counter({f"node={NODE}": 2, "node=other": 4}) == Counter(
        path.parent.name for path in finished(tmp_path)
    )
    remove_old(other, Layout.day(1 * day))
    assert ["dt=1970-01-03", "dt=1970-01-04"] == sorted(path.name for path in (tmp_path / "event").iterdir())
    assert (tmp_path / "mine.txt").exists()


def test_what_others_have_put_there_is_left_alone(tmp_path):
    """Only the export's own files are removed, and a directory in their place is no failure."""
    layout = Layout(tmp_path, NODE)
    folder = tmp_path / "event" / "dt=1970-01-01" / "hour=00" / layout.node_folder
    (folder / "_temporary").mkdir(parents=True)
    (folder / "event-1.jsonl").write_text("{}\n")
    remove_old(layout, "dt=1970-01-01")

    assert ["_temporary"] == [path.name for path in folder.iterdir()]


async def test_retention_is_kept_to_the_day(tmp_path):
    """Files beyond the retention are removed while the broker runs."""
    exporting = Exporting(tmp_path, retention=86_400.0)
    await exporting.look()
    await exporting.finish()
    await exporting.look(2 * 86_400)
    exporting.export._tidy_at = 0.0
    await exporting.look(86_400)
    rows = await exporting.finish()

    assert [2, 3] == [row["pub"] for row in rows["queue_interval"]]


@pytest.mark.parametrize("where", ["file", "file/below"])
async def test_a_directory_that_is_none_is_reported_at_the_start(tmp_path, where, caplog):
    """An unusable directory is named in one warning before the first sample, and is retried later."""
    (tmp_path / "file").write_text("in the way")
    exporting = Exporting(tmp_path / where)
    exporting.export.start(asyncio.get_running_loop())
    while not exporting.export.failed:
        await asyncio.sleep(0.01)
    (tmp_path / "file").unlink()
    await exporting.look()
    await exporting.export.stop("shutdown")

    (warning,) = [record.message for record in caplog.records if "WARNING" == record.levelname]
    assert "export failed, trying again every 60 s: " in warning
    assert str(tmp_path / "file") in warning
    assert [1] == [row["pub"] for row in read(tmp_path / where)["queue_interval"]]


async def test_a_directory_that_is_removed_is_made_again(tmp_path, caplog):
    """Rows of files in a removed directory count as lost; later all rows are written again, and the gap is noted."""
    directory = tmp_path / "export"
    exporting = Exporting(directory)
    await exporting.look()
    shutil.rmtree(directory)
    await exporting.look(5)
    await exporting.look(60)

    assert exporting.export.failed
    assert exporting.export.lost >= 3  # rows of the queue alone
    await exporting.look(60)
    await exporting.look(1)
    rows = await exporting.finish()
    assert [4, 5] == [row["pub"] for row in rows["queue_interval"]]
    assert ["export_gap"] == [row["kind"] for row in rows["event"]]
    assert exporting.export.lost == rows["node_interval"][-1]["export_lost"]
    assert 1 == len([record for record in caplog.records if "WARNING" == record.levelname])


async def test_two_brokers_write_into_one_directory(tmp_path):
    """Brokers with different node names do not see each other's files."""
    one, other = Exporting(tmp_path), Exporting(tmp_path, node="other/é")
    for exporting in (one, other, other):
        await exporting.look()
    await one.finish()
    rows = await other.finish()

    assert {NODE: 1, "other/é": 2} == Counter(row["node"] for row in rows["queue_interval"])
    assert {f"node={NODE}", "node=other%2F%C3%A9"} == {path.parent.name for path in finished(tmp_path)}


async def test_two_brokers_of_one_name_do_not_write_into_one_directory(tmp_path, caplog):
    """A second broker of one name reports it and leaves the files unchanged; it takes over when the first stops."""
    first, second = Exporting(tmp_path), Exporting(tmp_path)
    await first.look()
    being_written = hidden(tmp_path)
    await second.look()

    assert second.export.failed
    assert "directory in use by another broker with this node name" in caplog.text
    assert being_written == hidden(tmp_path)
    first.export.start(asyncio.get_running_loop())
    await first.export.stop("shutdown")
    await second.look(60)
    assert not second.export.failed
    assert Counter({2: 1, 1: 1}) == Counter(row["pub"] for row in (await second.finish())["queue_interval"])


async def test_names_that_are_no_text_are_written_so_that_they_can_be_read(tmp_path):
    """A client's bytes that are not UTF-8 spoil neither the row nor the export; other names are kept as they are."""
    exporting = Exporting(tmp_path)
    properties = {"product": ("longstr", "caf\udce9"), "version": ("longstr", "1")}
    exporting.client.connection.client_properties = encode_table(properties)
    exporting.node.context.note("auth_failed", "", "\udcffx", peer="\udcfe")
    names = ['a"b\\c', "\u2028", "é𝄞", " ", "../..", "a=b/c%2F"]
    for name in names:
        exporting.client.declare(name)
    await exporting.look()
    rows = await exporting.finish()

    assert {"q", *names} == {row["queue"] for row in rows["queue_interval"]}
    assert ["caf\\udce9 1"] == [row["client"] for row in rows["conn_interval"]]
    assert [("\\udcffx", {"peer": "\\udcfe"})] == [
        (row["name"], row["detail"]) for row in rows["event"] if row["kind"] == "auth_failed"
    ]


async def test_events_that_nobody_kept_are_counted_as_lost(tmp_path):
    """Events above the limit between two samples are counted in `export_lost`."""
    exporting = Exporting(tmp_path)
    exporting.node.context.events.take()
    for _ in range(MOST_EVENTS + 5):
        exporting.node.context.note("trap", "/", "q")
    await exporting.look()

    assert [5] == [row["export_lost"] for row in (await exporting.finish())["node_interval"]]


def test_a_broker_writes_down_what_clients_do(tmp_path):
    """A real broker's export has its client's counts and latencies from start to stop, and no unfinished file."""
    directory = tmp_path / "export"
    settings = [
        f"export.dir={directory}",
        "export.interval=1s",
        "confirm.mode=consumer-ack",
        f"node_name={NODE}",
    ]
    with serving(tmp_path, *[word for each in settings for word in ("--set", each)]) as running:
        client = WireClient(running.address, timeout=10.0).login()
        channel = client.channel()
        channel.queue("q", durable=True)
        channel.call("confirm.select")
        for _ in range(100):
            channel.publish("", "q", b"x" * 10, delivery_mode=2)
            channel.get("q")
            channel.receive("basic.ack")
        client.call(0, "connection.close", reply_code=200)
        client.close_socket()
        code, _, err = running.stopped_by(signal.SIGTERM)
    rows = read(directory)
    last = [row for row in rows["queue_interval"] if "q" == row["queue"]][-1]
    node = rows["node_interval"][-1]

    assert (0, "") == (code, err)
    assert [] == hidden(directory)
    assert (100, 100, 100, 0) == (last["pub"], last["got"], last["accepted"], last["ready"])
    assert (100, 100, 100) == (node["published"], node["delivered"], node["confirmed"])
    assert ["start", "connection_opened", "queue_created", "connection_closed", "stop"] == [
        row["kind"] for row in rows["event"]
    ]
    written = {"queue_interval", "exchange_interval", "node_interval", "event", "latency_hist"}
    assert written == set(rows) - {"conn_interval"}  # a connection that no look met has events only
    assert {"confirm", "deliver", "commit"} <= {row["metric"] for row in rows["latency_hist"]}
    assert set(rows) < set(TABLES)


# -- paths ----------------------------------------------------------------------------------------------------------


def test_a_file_lies_in_its_hour():
    """Table, day, hour and node are directories, in UTC."""
    path = LAYOUT.unfinished("event", Layout.hour(MOMENT), MOMENT, 7)

    assert ".event-1763740799999-7.jsonl.tmp" == path.name
    assert Path(
        "/x/event/dt=2025-11-21/hour=15/node=rabbit@host/event-1763740799999-7.jsonl"
    ) == finished_name(path)


def test_hours_end_on_the_millisecond():
    """A file of the next millisecond lies in the next hour."""
    assert "dt=2025-11-21/hour=16" == Layout.hour(MOMENT + 1)


@pytest.mark.parametrize(
    ("node", "folder"),
    [
        ("rabbit@a-b.c_d", "node=rabbit@a-b.c_d"),
        ("../x", "node=..%2Fx"),
        ("a=b c", "node=a%3Db%20c"),
        ("é", "node=%C3%A9"),
    ],
)
def test_no_name_of_a_node_leaves_its_folder(node, folder):
    """Characters with a meaning in paths or for readers of partitions are percent-encoded."""
    assert folder == Layout(Path("/x"), node).node_folder


def test_days_are_in_order():
    """The directory of an earlier day sorts before that of a later one."""
    assert Layout.day(MOMENT - 86_400_000) < Layout.day(MOMENT)
    assert "dt=2025-11-21" == Layout.day(MOMENT)
