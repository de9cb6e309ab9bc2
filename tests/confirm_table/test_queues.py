"""Cells of the table: queues that go, are emptied, change their mode, or fail."""

import pytest
from confirm_table.cells import ACK, LIGHT, STANDARD, Scenario, cell
from doubles.fakes import set_policy

from leveret.broker.administration.transfers import Chosen
from leveret.broker.amqp.commands import Basic, Channel, Queue, make
from leveret.broker.queue.queue import Queue as BrokerQueue


def delete(name: str = "q") -> object:
    """Return the method that deletes a queue, empty or not."""
    return make(Queue.Delete, 0, name, False, False, False)


def one_delivered_of_three(scenario: Scenario, **options: object) -> None:
    """A queue with one message unacked and two ready."""
    scenario.declare(**options)
    scenario.prefetch(1)
    scenario.consume()
    scenario.publish_many(3)
    scenario.stored()
    assert ["1"] == scenario.deliveries()


@cell("queue-deleted")
def test_a_queue_is_deleted(scenario: Scenario) -> None:
    """Ready messages of a deleted queue are given up; standard mode acks them, written or not."""
    scenario.declare()
    scenario.publish_many(2)
    assert [] == scenario.verdicts()

    assert ["1 queue.delete-ok message_count=2"] == scenario.ask(delete())

    assert (scenario.late("nack 1", "nack 2") or ["ack 1", "ack 2"]) == scenario.verdicts()
    assert 0 == scenario.written()


@cell("queue-deleted-delivered")
def test_a_queue_is_deleted_after_deliveries(scenario: Scenario) -> None:
    """Delivered messages are given up with a queue that has them; else their consumer decides as always."""
    scenario.declare()
    scenario.consume()
    scenario.delivered(4)

    scenario.ask(delete())
    assert (
        [] if scenario.mode == LIGHT else scenario.late("nack 1", "nack 2", "nack 3", "nack 4")
    ) == scenario.verdicts()

    verdicts = []
    scenario.ack(1)
    verdicts += scenario.verdicts()
    scenario.nack(2, requeue=False)
    verdicts += scenario.verdicts()
    scenario.nack(3, requeue=True)
    verdicts += scenario.verdicts()
    scenario.consumer.send(make(Channel.Close, 200, "", 0, 0))
    verdicts += scenario.verdicts()
    assert (["ack 1", "ack 2", "nack 3", "nack 4"] if scenario.mode == LIGHT else []) == verdicts
    assert [] == scenario.deliveries()


@cell("queue-expired")
def test_a_queue_expires(scenario: Scenario) -> None:
    """A queue that expires unused gives up its messages, and they are confirmed when that is safe."""
    scenario.declare(arguments={"x-expires": ("signedint", 1000)})
    scenario.publish_many(2)
    assert [] == scenario.verdicts()

    scenario.node.pass_time(1000)

    assert "q" not in scenario.node.vhosts["/"].queues
    assert scenario.late("nack 1", "nack 2") == scenario.verdicts()
    scenario.node.commit()
    assert ([] if scenario.is_late else ["ack 1", "ack 2"]) == scenario.verdicts()


@cell("exclusive-gone")
def test_an_exclusive_queue_goes(scenario: Scenario) -> None:
    """An exclusive queue goes with its connection, and its messages with it, delivered or not."""
    scenario.consumer.declare("q", exclusive=True)
    scenario.prefetch(1)
    scenario.consume()
    scenario.publish_many(2)
    scenario.stored()

    scenario.consumer.connection.lost()
    scenario.node.run_turn()

    assert "q" not in scenario.node.vhosts["/"].queues
    assert scenario.late("nack 1", "nack 2") == scenario.verdicts()


@cell("purge")
def test_a_queue_is_purged(scenario: Scenario) -> None:
    """Ready messages of a purged queue are given up; delivered ones are not affected."""
    one_delivered_of_three(scenario)

    assert ["1 queue.purge-ok message_count=2"] == scenario.ask(make(Queue.Purge, 0, "q", False))

    assert scenario.late("nack 2", "nack 3") == scenario.verdicts()
    assert (0, 1) == scenario.counts()
    scenario.ack(1)
    assert scenario.late("ack 1") == scenario.verdicts()


def set_mode(scenario: Scenario, mode: str) -> None:
    """Give the queue another mode by a policy."""
    set_policy(scenario.node.vhosts["/"].policies, "p", "^q$", {"confirm-mode": mode})
    scenario.node.run_turn()
    scenario.commit()


@cell("mode-changed")
def test_a_policy_changes_the_mode(scenario: Scenario) -> None:
    """Messages in the queue keep the mode they were published in; later ones go by the new mode."""
    one_delivered_of_three(scenario)

    set_mode(scenario, ACK if scenario.mode == STANDARD else STANDARD)
    scenario.publish()
    scenario.commit()

    assert scenario.late("ack 4") == scenario.verdicts()
    is_light = scenario.mode == LIGHT
    scenario.nack(1, requeue=True)
    assert (["nack 1"] if is_light else []) == scenario.verdicts()
    first = "2" if is_light else "1*"
    assert [first] == scenario.deliveries()
    scenario.nack(2, requeue=True)
    assert [] == scenario.verdicts()
    assert [first.rstrip("*") + "*"] == scenario.deliveries()
    other = scenario.connect()
    scenario.consume(client=other)
    assert (["3", "4"] if is_light else ["2", "3", "4"]) == scenario.deliveries(other)
    scenario.ack(3)
    other.send(make(Basic.Ack, 0, True))

    rest = {STANDARD: ["ack 4"], ACK: ["ack 1", "ack 2", "ack 3"], LIGHT: ["ack 2", "ack 3"]}
    assert rest[scenario.mode] == scenario.verdicts()
    assert (0, 0) == scenario.counts()


@cell("queue-error")
def test_an_internal_error(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages that the queue answers for are given up, though they stay and are delivered; the next one fares well."""
    one_delivered_of_three(scenario)

    with monkeypatch.context() as patched:
        patched.setattr(BrokerQueue, "take_in", broken)
        scenario.publish()

    assert "internal error" in caplog.text
    refused = {STANDARD: (4,), ACK: (1, 2, 3, 4), LIGHT: (2, 3, 4)}
    assert [f"nack {number}" for number in refused[scenario.mode]] == scenario.verdicts()
    scenario.commit()
    scenario.publish()
    assert [] == scenario.verdicts()
    verdicts = []
    for tag, number in enumerate((1, 2, 3, 5), start=1):
        scenario.ack(tag)
        verdicts += scenario.verdicts()
        assert (0 if number == 5 else 1) == len(scenario.deliveries())
    assert (["ack 1", "ack 5"] if scenario.mode == LIGHT else ["ack 5"]) == verdicts


def broken(*_args: object, **_options: object) -> None:
    raise RuntimeError("a bug")


def transferred(scenario: Scenario, number: int) -> None:
    """Let a transfer come to its end, which is when what it has done is on disk."""
    scenario.node.clock.run()
    scenario.commit()
    scenario.node.clock.run()
    assert "done" == scenario.node.administration.transfers.transfer(None, number)["state"]


@cell("moved")
def test_a_message_is_moved(scenario: Scenario) -> None:
    """The promise goes with the message: to a consumer of the other queue, or to the disk if that is standard."""
    scenario.declare()
    scenario.declare("late")
    scenario.declare("on-disk", {"x-confirm-mode": ("longstr", STANDARD)})
    scenario.publish_many(2)
    start = scenario.node.administration.transfers.start_move

    transferred(scenario, start(None, "/", "q", "late", chosen=Chosen(limit=1)))
    verdicts = scenario.verdicts()
    assert ([] if scenario.is_late else ["ack 1", "ack 2"]) == verdicts
    transferred(scenario, start(None, "/", "q", "on-disk"))
    assert scenario.late("ack 2") == scenario.verdicts()

    scenario.consume("late", no_ack=True)
    assert ["1"] == scenario.deliveries()
    assert scenario.late("ack 1") == scenario.verdicts()


@cell("discarded")
def test_a_message_is_discarded(scenario: Scenario) -> None:
    """Nobody has consumed what an operator discards."""
    scenario.declare()
    scenario.publish_many(2)
    scenario.stored()
    start = scenario.node.administration.transfers.start_discard

    transferred(scenario, start(None, "/", "q", Chosen(limit=1)))
    assert scenario.late("nack 1") == scenario.verdicts()
    scenario.consume(no_ack=True)
    assert ["2"] == scenario.deliveries()
    assert scenario.late("ack 2") == scenario.verdicts()
