"""Cells of the table: a broker that is short of memory or disk, is stopped, or dies."""

from pathlib import Path

from confirm_table.cells import LIGHT, Stage, cell

from leveret.broker.config.config import StorageConfig
from leveret.broker.persistence.data_store import paging
from leveret.broker.server.shutdown_flush import ShutdownFlush
from leveret.storage.journal.reads import Loaded


@cell("disk-full")
def test_a_commit_finds_no_room(stage: Stage) -> None:
    """A commit without room concerns publishers that wait for it; consumers answer as always."""
    stage.declare()
    stage.consume()
    stage.publish()

    stage.node.fail()

    assert ([] if stage.is_late else ["nack 1"]) == stage.verdicts()
    assert ["1"] == stage.deliveries()
    stage.ack(1)
    assert stage.late("ack 1") == stage.verdicts()


@cell("memory-pressure")
def test_memory_is_short(stage: Stage) -> None:
    """Waiting messages are paged out, without a place among those that are kept, and come back to be consumed."""
    stage.declare()
    stage.publish_many(300)
    stage.stored()
    (backing,) = paging([stage.node.vhosts["/"].queues["q"].store])

    backing.set_ram_target(0, 0)
    stage.commit()

    assert 0 == backing.ram_msg_count
    assert [] == stage.verdicts()
    assert stage.is_late is (0 == stage.written())
    stage.consume()
    found = stage.deliveries()
    while stage.node.disk.loads:
        stage.node.read()
        found += stage.deliveries()
    assert [str(number) for number in range(1, 301)] == found
    stage.ack(0, multiple=True)
    assert stage.late(*[f"ack {number}" for number in range(1, 301)]) == stage.verdicts()


@cell("damaged")
def test_what_is_out_of_memory_is_damaged(tmp_path: Path, mode: str) -> None:
    """Damaged messages cannot be consumed or identified; the others are delivered."""
    stage = Stage(tmp_path, mode, storage=StorageConfig(sync=False, check_invariants=True, segment=64))
    stage.declare()
    stage.publish_many(200)
    stage.stored()
    stage.node.vhosts["/"].queues["q"].store.set_ram_target(0, 0)
    stage.commit()
    stage.consume()
    assert [] == stage.verdicts()

    (lost,) = stage.node.disk.loads
    stage.node.disk.loads = []
    lost.queue.loaded(lost, Loaded([], max(each.stop for each in lost.ranges), {}))
    stage.node.run_turn()
    found = stage.deliveries()
    while stage.node.disk.loads:
        stage.node.read()
        found += stage.deliveries()

    assert 0 < len(found) < 200
    assert [str(number) for number in range(201 - len(found), 201)] == found
    assert stage.late(*[f"nack {number}" for number in range(1, 201)]) == stage.verdicts()
    stage.ack(0, multiple=True)
    assert [] == stage.verdicts()
    stage.end()


def one_delivered_of_two(stage: Stage) -> None:
    """A message that is unacked, and one that is ready."""
    stage.declare()
    stage.prefetch(1)
    stage.consume()
    stage.publish_many(2)
    stage.stored()
    assert ["1"] == stage.deliveries()
    stage.left_open = stage.open


def found_after(stage: Stage) -> list[str]:
    """Return the deliveries to the next consumer after the broker's end."""
    stage.node.run_turn()
    stage.node.read()
    stage.consume()
    found = stage.deliveries()
    stage.node.read()
    return found + stage.deliveries()


@cell("crash")
def test_the_broker_is_killed(stage: Stage) -> None:
    """Confirmed messages are there, or were consumed; all others are lost, and their publisher has no confirm."""
    one_delivered_of_two(stage)
    stage.restarted(stage.node.killed())

    assert ([] if stage.is_late else ["1*", "2*"]) == found_after(stage)


def flush_promised(stage: Stage) -> None:
    """Do what a stopping broker does when its clients are gone."""
    for queue in stage.node.vhosts["/"].queues.values():
        for moving in ShutdownFlush.all_of(queue, stage.node.config.storage.blob_threshold):
            while moving.left:
                if moving.step():
                    stage.commit()
                else:
                    stage.node.read()


@cell("graceful-stop")
def test_the_broker_is_stopped(stage: Stage) -> None:
    """A persistent message survives the stop in every mode, unless only a consumer had it."""
    one_delivered_of_two(stage)
    for client in (stage.publisher, stage.consumer):
        client.connection.lost()
    stage.node.run_turn()
    flush_promised(stage)
    stage.restarted(stage.node.restarted())

    assert (["2"] if stage.mode == LIGHT else ["1*", "2"]) == found_after(stage)
