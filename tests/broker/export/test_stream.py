"""The stream of the export: its rows are those of the files, and nothing waits for it."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from doubles.fakes import Client, Node, basic_consume, queue_declare

from leveret.broker.amqp.commands import Basic, make
from leveret.broker.amqp.properties import Properties
from leveret.broker.config.config import ExportConfig
from leveret.broker.export import stream
from leveret.broker.export.tables import TELEMETRY, columns
from leveret.broker.queue.stream_queue import StreamQueue

VHOST = "/"


def exporting(directory: Path | None = None, vhost: str = VHOST, **settings: Any) -> Node:
    """A broker with a stream and a queue, whose export is not started: a test takes the samples."""
    node = Node(export=ExportConfig(dir=directory, stream_vhost=vhost, **settings))
    node.export._stream.open()
    Client(node).declare("q")
    return node


async def look(node: Node, seconds: int = 5) -> None:
    node.pass_time(1000 * seconds)
    await node.export._try(node.export._look())


def consumed(node: Node, vhost: str = VHOST) -> list[tuple[str, dict[str, Any]]]:
    """Return the tables and rows of all messages of the stream."""
    client = Client(node, vhost=vhost)
    client.send(make(Basic.Qos, 0, 1000, False))
    client.send(basic_consume(TELEMETRY, "c", arguments={"x-stream-offset": ("longstr", "first")}))
    node.run_turn()
    return [
        (Properties(each.header).type, json.loads(each.body))
        for each in client.take()
        if isinstance(each.method, Basic.Deliver)
    ]


async def test_its_rows_are_those_of_the_files(tmp_path):
    """Each line of a file is the body of one message, whose type is the table; events are among them."""
    node = exporting(tmp_path)
    for _ in range(3):
        await look(node)
    await node.export._finish(list(node.export._files))
    lines = {
        (path.relative_to(tmp_path).parts[0], line)
        for path in tmp_path.rglob("*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    }

    found = consumed(node)

    assert lines == {
        (table, json.dumps(row, separators=(",", ":"), ensure_ascii=False)) for table, row in found
    }
    assert {"event", "queue_interval", "node_interval", "exchange_interval"} <= {table for table, _ in found}
    assert all([each.name for each in columns(table)] == list(row) for table, row in found)


async def test_no_files_are_written_for_it_alone(tmp_path, monkeypatch):
    """With the key alone there is a stream, bounded by size and age, in a virtual host that is made for it."""
    monkeypatch.chdir(tmp_path)
    node = exporting(vhost="telemetry", retention=86_400.0)
    await look(node)

    made = node.vhosts["telemetry"].queues[TELEMETRY]
    assert isinstance(made, StreamQueue)
    assert (stream.IN_MEMORY, 86_400_000) == (made.settings.max_octets, made.settings.max_age)
    assert 0 < made.backing.ready_count
    assert [] == list(tmp_path.iterdir())
    assert (None, 0) == (Node().export, node.export.lost)


async def test_a_queue_in_its_place_costs_rows_only(caplog):
    """While a queue of another type has its name rows are dropped and counted, with one line of the log; then they come."""
    caplog.set_level(logging.INFO, logger="leveret.export")
    node = exporting()
    node.vhosts[VHOST].delete_queue(node.vhosts[VHOST].queues[TELEMETRY])
    Client(node).send(queue_declare(TELEMETRY))
    for _ in range(3):
        await look(node)

    assert 0 < node.export.lost
    assert 0 == node.vhosts[VHOST].queues[TELEMETRY].backing.ready_count
    node.vhosts[VHOST].delete_queue(node.vhosts[VHOST].queues[TELEMETRY])
    await look(node)
    rows = [row for table, row in consumed(node) if table == "node_interval"]
    assert [0 < rows[0]["export_lost"] == node.export.lost] == [True] * len(rows)
    assert ["rows are dropped", "rows are appended again"] == [
        part for each in caplog.records for part in each.message.split(": ") if part.startswith("rows ")
    ]


@pytest.mark.parametrize("cause", ["alarm", "full", "backlogged", "stopping", "no vhost"])
async def test_no_row_waits(cause, monkeypatch):
    """A disk that is full or behind, a missing virtual host and the end of the broker keep no row in memory."""
    monkeypatch.setattr(stream, "PAUSE", 0.0)
    node = exporting()
    await look(node)
    queue = node.vhosts[VHOST].queues[TELEMETRY]
    before = queue.published
    if cause == "alarm":
        node.resource_monitor.disk.raised = True
    elif cause == "stopping":
        node.is_stopping = True
    elif cause == "no vhost":
        monkeypatch.setattr(node.export._stream, "_vhost", "elsewhere")
    else:
        monkeypatch.setattr(node.turn, f"is_{cause}", lambda: True)
    await look(node)

    assert before == queue.published + len(queue.inbox)
    assert (cause == "stopping") == (node.export.lost == 0)


async def test_rows_wait_for_a_disk_that_is_behind_for_a_moment(monkeypatch):
    """None is lost, unless it is behind for seconds: then all are dropped until it is not, without more waits."""
    monkeypatch.setattr(stream, "PAUSE", 0.0)
    node = exporting()
    answers = [True] * (stream.PAUSES - 1)
    monkeypatch.setattr(node.turn, "is_backlogged", lambda: bool(answers and answers.pop()))
    await look(node)
    assert 0 == node.export.lost

    asked = []
    monkeypatch.setattr(node.turn, "is_backlogged", lambda: not asked.append(1))
    await look(node)
    first = len(asked)
    await look(node)
    assert stream.PAUSES < first
    assert len(asked) - first < stream.PAUSES
    assert 0 < node.export.lost


async def test_files_that_fail_do_not_stop_it(tmp_path):
    """While files cannot be written, which is tried once a minute, the stream has the rows of each sample."""
    (tmp_path / "file").write_text("in the way")
    node = exporting(tmp_path / "file")
    await look(node)
    assert node.export.failed
    await node.export._try(node.export._look(writes=False))

    assert "node_interval" in dict(consumed(node))


async def test_many_rows_are_appended_in_steps(monkeypatch):
    """A step of the event loop appends a bounded number of rows."""
    monkeypatch.setattr(stream, "PART", 3)
    node = exporting()
    for number in range(10):
        Client(node).declare(f"q{number}")
    steps = []
    run_step = node.loop.run_step
    monkeypatch.setattr(
        node.loop, "run_step", lambda kind, *rest: (steps.append(kind), run_step(kind, *rest))
    )
    await look(node)

    queues = [row["queue"] for table, row in consumed(node) if table == "queue_interval"]
    assert len(queues) / 3 < steps.count("export")
    assert {f"q{number}" for number in range(10)} < set(queues)
