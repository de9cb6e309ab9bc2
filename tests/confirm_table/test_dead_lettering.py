"""Cells of the table: what the broker gives up and moves to a queue for dead letters."""

from confirm_table.cells import DLX, TTL, Stage, cell, limit

from leveret.broker.amqp.commands import Basic, make
from leveret.broker.amqp.tables import Table


def declare(stage: Stage, arguments: Table) -> None:
    """A queue, and one for its dead letters, which is in the same mode."""
    stage.declare("dead")
    stage.declare(arguments=DLX | arguments)


def check_moved(stage: Stage) -> None:
    """Check that the message is a dead letter, and confirmed by the commit that has it and by nothing else."""
    assert [] == stage.verdicts()
    assert ((0, 0), (1, 0)) == (stage.counts(), stage.counts("dead"))
    stage.commit()
    assert ["ack 1"] == stage.verdicts()
    assert 1 == stage.written()
    assert ["1"] == stage.get("dead", no_ack=False)
    stage.consumer.send(make(Basic.Nack, 0, True, False))
    assert [] == stage.verdicts()


@cell("reject-dead-letter")
def test_a_rejected_message(stage: Stage) -> None:
    """The publisher waits until the dead letter is safe, and not for its consumer."""
    declare(stage, {})
    stage.consume()
    stage.publish()
    assert ["1"] == stage.deliveries()

    stage.nack(1, requeue=False)

    check_moved(stage)


@cell("ttl-dead-letter")
def test_an_expired_message(stage: Stage) -> None:
    """An expired message waits for its dead letter as a rejected one does."""
    declare(stage, TTL)
    stage.publish()

    stage.node.pass_time(100)

    check_moved(stage)


@cell("drop-dead-letter")
def test_a_message_that_gives_way(stage: Stage) -> None:
    """A message dropped for want of room waits for its dead letter as a rejected one does."""
    declare(stage, limit(0))

    stage.publish()

    check_moved(stage)


@cell("delivery-limit-dead-letter")
def test_a_message_that_comes_back_too_often(stage: Stage) -> None:
    """A message returned too often waits for its dead letter as a rejected one does."""
    declare(stage, {"x-delivery-limit": ("signedint", 1)})
    stage.consume()
    stage.publish()
    assert ["1"] == stage.deliveries()
    stage.nack(1, requeue=True)
    assert ["1*"] == stage.deliveries()

    stage.nack(2, requeue=True)

    check_moved(stage)


@cell("dead-letter-disk-full")
def test_a_dead_letter_that_finds_no_room(stage: Stage) -> None:
    """The publisher is nacked; the dead letter stays and is written when there is room."""
    declare(stage, TTL)
    stage.publish()
    stage.node.pass_time(100)
    assert (1, 0) == stage.counts("dead")

    stage.node.fail()

    assert ["nack 1"] == stage.verdicts()
    assert (1, 0) == stage.counts("dead")
    assert 1 == stage.written()
