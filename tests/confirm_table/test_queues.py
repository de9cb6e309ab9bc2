"""Cells of the table: queues that go, are emptied, change their mode, or fail."""

import pytest
from confirm_table.cells import ACK, LIGHT, STANDARD, Stage, cell

from leveret.broker.amqp.commands import Basic, Channel, Queue, make
from leveret.broker.queue.queue import Queue as BrokerQueue


def delete(name: str = "q") -> object:
    """Return the method that deletes a queue, empty or not."""
    return make(Queue.Delete, 0, name, False, False, False)


def one_delivered_of_three(stage: Stage, **options: object) -> None:
    """A queue with one message unacked and two ready."""
    stage.declare(**options)
    stage.prefetch(1)
    stage.consume()
    stage.publish_many(3)
    stage.stored()
    assert ["1"] == stage.deliveries()


@cell("queue-deleted")
def test_a_queue_is_deleted(stage: Stage) -> None:
    """Ready messages of a deleted queue are given up; standard mode acks them, written or not."""
    stage.declare()
    stage.publish_many(2)
    assert [] == stage.verdicts()

    assert ["1 queue.delete-ok message_count=2"] == stage.ask(delete())

    assert (stage.late("nack 1", "nack 2") or ["ack 1", "ack 2"]) == stage.verdicts()
    assert 0 == stage.written()


@cell("queue-deleted-delivered")
def test_a_queue_is_deleted_after_deliveries(stage: Stage) -> None:
    """Delivered messages are given up with a queue that has them; else their consumer decides as always."""
    stage.declare()
    stage.consume()
    stage.delivered(4)

    stage.ask(delete())
    assert (
        [] if stage.mode == LIGHT else stage.late("nack 1", "nack 2", "nack 3", "nack 4")
    ) == stage.verdicts()

    verdicts = []
    stage.ack(1)
    verdicts += stage.verdicts()
    stage.nack(2, requeue=False)
    verdicts += stage.verdicts()
    stage.nack(3, requeue=True)
    verdicts += stage.verdicts()
    stage.consumer.send(make(Channel.Close, 200, "", 0, 0))
    verdicts += stage.verdicts()
    assert (["ack 1", "ack 2", "nack 3", "nack 4"] if stage.mode == LIGHT else []) == verdicts
    assert [] == stage.deliveries()


@cell("queue-expired")
def test_a_queue_expires(stage: Stage) -> None:
    """A queue that expires unused gives up its messages."""
    stage.declare(arguments={"x-expires": ("signedint", 1000)})
    stage.publish_many(2)
    assert [] == stage.verdicts()

    stage.node.pass_time(1000)

    assert "q" not in stage.node.vhosts["/"].queues
    assert (stage.late("nack 1", "nack 2") or ["ack 1", "ack 2"]) == stage.verdicts()


@cell("exclusive-gone")
def test_an_exclusive_queue_goes(stage: Stage) -> None:
    """An exclusive queue goes with its connection, and its messages with it, delivered or not."""
    stage.consumer.declare("q", exclusive=True)
    stage.prefetch(1)
    stage.consume()
    stage.publish_many(2)
    stage.stored()

    stage.consumer.connection.lost()
    stage.node.run_turn()

    assert "q" not in stage.node.vhosts["/"].queues
    assert stage.late("nack 1", "nack 2") == stage.verdicts()


@cell("purge")
def test_a_queue_is_purged(stage: Stage) -> None:
    """Ready messages of a purged queue are given up; delivered ones are not affected."""
    one_delivered_of_three(stage)

    assert ["1 queue.purge-ok message_count=2"] == stage.ask(make(Queue.Purge, 0, "q", False))

    assert stage.late("nack 2", "nack 3") == stage.verdicts()
    assert (0, 1) == stage.counts()
    stage.ack(1)
    assert stage.late("ack 1") == stage.verdicts()


def set_mode(stage: Stage, mode: str) -> None:
    """Give the queue another mode by a policy."""
    stage.node.vhosts["/"].policies.set("p", "^q$", {"confirm-mode": mode})
    stage.node.run_turn()
    stage.commit()


@cell("mode-changed")
def test_a_policy_changes_the_mode(stage: Stage) -> None:
    """Messages in the queue keep the mode they were published in; later ones go by the new mode."""
    one_delivered_of_three(stage)

    set_mode(stage, ACK if stage.mode == STANDARD else STANDARD)
    stage.publish()
    stage.commit()

    assert stage.late("ack 4") == stage.verdicts()
    is_light = stage.mode == LIGHT
    stage.nack(1, requeue=True)
    assert (["nack 1"] if is_light else []) == stage.verdicts()
    first = "2" if is_light else "1*"
    assert [first] == stage.deliveries()
    stage.nack(2, requeue=True)
    assert [] == stage.verdicts()
    assert [first.rstrip("*") + "*"] == stage.deliveries()
    other = stage.connect()
    stage.consume(client=other)
    assert (["3", "4"] if is_light else ["2", "3", "4"]) == stage.deliveries(other)
    stage.ack(3)
    other.send(make(Basic.Ack, 0, True))

    rest = {STANDARD: ["ack 4"], ACK: ["ack 1", "ack 2", "ack 3"], LIGHT: ["ack 2", "ack 3"]}
    assert rest[stage.mode] == stage.verdicts()
    assert (0, 0) == stage.counts()


@cell("queue-error")
def test_an_internal_error(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages that the queue answers for are given up, though they stay and are delivered; the next one fares well."""
    one_delivered_of_three(stage)

    with monkeypatch.context() as patched:
        patched.setattr(BrokerQueue, "take_in", broken)
        stage.publish()

    assert "internal error" in caplog.text
    refused = {STANDARD: (4,), ACK: (1, 2, 3, 4), LIGHT: (2, 3, 4)}
    assert [f"nack {number}" for number in refused[stage.mode]] == stage.verdicts()
    stage.commit()
    stage.publish()
    assert [] == stage.verdicts()
    verdicts = []
    for tag, number in enumerate((1, 2, 3, 5), start=1):
        stage.ack(tag)
        verdicts += stage.verdicts()
        assert (0 if number == 5 else 1) == len(stage.deliveries())
    assert (["ack 1", "ack 5"] if stage.mode == LIGHT else ["ack 5"]) == verdicts


def broken(*_args: object, **_options: object) -> None:
    """Fail as a bug would."""
    raise RuntimeError("a bug")
