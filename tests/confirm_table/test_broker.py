"""Cells of the table: a broker that is short of memory or disk, is stopped, or dies."""

from pathlib import Path

from confirm_table.cells import LIGHT, Scenario, cell

from leveret.broker.config.config import StorageConfig
from leveret.broker.persistence.data_store import paging
from leveret.broker.server.shutdown import ShutdownFlush
from leveret.storage.journal.reads import Loaded


@cell("disk-full")
def test_a_commit_finds_no_room(scenario: Scenario) -> None:
    """A commit without room concerns publishers that wait for it; consumers answer as always."""
    scenario.declare()
    scenario.consume()
    scenario.publish()

    scenario.node.fail()

    assert ([] if scenario.is_late else ["nack 1"]) == scenario.verdicts()
    assert ["1"] == scenario.deliveries()
    scenario.ack(1)
    assert scenario.late("ack 1") == scenario.verdicts()


@cell("memory-pressure")
def test_memory_is_short(scenario: Scenario) -> None:
    """Waiting messages are paged out, without a place among those that are kept, and come back to be consumed."""
    scenario.declare()
    scenario.publish_many(300)
    scenario.stored()
    (backing,) = paging([scenario.node.vhosts["/"].queues["q"].store])

    backing.set_ram_target(0, 0)
    scenario.commit()

    assert 0 == backing.ram_msg_count
    assert [] == scenario.verdicts()
    assert scenario.is_late is (0 == scenario.written())
    scenario.consume()
    found = scenario.deliveries()
    while scenario.node.disk.loads:
        scenario.node.read()
        found += scenario.deliveries()
    assert [str(number) for number in range(1, 301)] == found
    scenario.ack(0, multiple=True)
    assert scenario.late(*[f"ack {number}" for number in range(1, 301)]) == scenario.verdicts()


@cell("damaged")
def test_what_is_out_of_memory_is_damaged(tmp_path: Path, mode: str) -> None:
    """Damaged messages cannot be consumed or identified; the others are delivered."""
    scenario = Scenario(tmp_path, mode, storage=StorageConfig(sync=False, check_invariants=True, segment=64))
    scenario.declare()
    scenario.publish_many(200)
    scenario.stored()
    scenario.node.vhosts["/"].queues["q"].store.set_ram_target(0, 0)
    scenario.commit()
    scenario.consume()
    assert [] == scenario.verdicts()

    (lost,) = scenario.node.disk.loads
    scenario.node.disk.loads = []
    lost.queue.loaded(lost, Loaded([], max(each.stop for each in lost.ranges), {}))
    scenario.node.run_turn()
    found = scenario.deliveries()
    while scenario.node.disk.loads:
        scenario.node.read()
        found += scenario.deliveries()

    assert 0 < len(found) < 200
    assert [str(number) for number in range(201 - len(found), 201)] == found
    assert scenario.late(*[f"nack {number}" for number in range(1, 201)]) == scenario.verdicts()
    scenario.ack(0, multiple=True)
    assert [] == scenario.verdicts()
    scenario.end()


def one_delivered_of_two(scenario: Scenario) -> None:
    """A message that is unacked, and one that is ready."""
    scenario.declare()
    scenario.prefetch(1)
    scenario.consume()
    scenario.publish_many(2)
    scenario.stored()
    assert ["1"] == scenario.deliveries()
    scenario.left_open = scenario.open


def found_after(scenario: Scenario) -> list[str]:
    """Return the deliveries to the next consumer after the broker's end."""
    scenario.node.run_turn()
    scenario.node.read()
    scenario.consume()
    found = scenario.deliveries()
    scenario.node.read()
    return found + scenario.deliveries()


@cell("crash")
def test_the_broker_is_killed(scenario: Scenario) -> None:
    """Confirmed messages are there, or were consumed; all others are lost, and their publisher has no confirm."""
    one_delivered_of_two(scenario)
    scenario.restarted(scenario.node.killed())

    assert ([] if scenario.is_late else ["1*", "2*"]) == found_after(scenario)


def flush_promised(scenario: Scenario) -> None:
    """Do what a stopping broker does when its clients are gone."""
    for queue in scenario.node.vhosts["/"].queues.values():
        for moving in ShutdownFlush.all_of(queue, scenario.node.config.storage.blob_threshold):
            while moving.left:
                if moving.step():
                    scenario.commit()
                else:
                    scenario.node.read()


@cell("graceful-stop")
def test_the_broker_is_stopped(scenario: Scenario) -> None:
    """A persistent message survives the stop in every mode, unless only a consumer had it."""
    one_delivered_of_two(scenario)
    for client in (scenario.publisher, scenario.consumer):
        client.connection.lost()
    scenario.node.run_turn()
    flush_promised(scenario)
    scenario.restarted(scenario.node.restarted())

    assert (["2"] if scenario.mode == LIGHT else ["1*", "2"]) == found_after(scenario)
