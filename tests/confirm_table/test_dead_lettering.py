"""Cells of the table: what the broker gives up and moves to a queue for dead letters."""

from confirm_table.cells import DLX, TTL, Scenario, cell, limit

from leveret.broker.amqp.commands import Basic, make
from leveret.broker.amqp.tables import Table


def declare(scenario: Scenario, arguments: Table) -> None:
    """A queue, and one for its dead letters, which is in the same mode."""
    scenario.declare("dead")
    scenario.declare(arguments=DLX | arguments)


def check_moved(scenario: Scenario) -> None:
    """Check that the message is a dead letter, and confirmed by the commit that has it and by nothing else."""
    assert [] == scenario.verdicts()
    assert ((0, 0), (1, 0)) == (scenario.counts(), scenario.counts("dead"))
    scenario.commit()
    assert ["ack 1"] == scenario.verdicts()
    assert 1 == scenario.written()
    assert ["1"] == scenario.get("dead", no_ack=False)
    scenario.consumer.send(make(Basic.Nack, 0, True, False))
    assert [] == scenario.verdicts()


@cell("reject-dead-letter")
def test_a_rejected_message(scenario: Scenario) -> None:
    """The publisher waits until the dead letter is safe, and not for its consumer."""
    declare(scenario, {})
    scenario.consume()
    scenario.publish()
    assert ["1"] == scenario.deliveries()

    scenario.nack(1, requeue=False)

    check_moved(scenario)


@cell("ttl-dead-letter")
def test_an_expired_message(scenario: Scenario) -> None:
    """An expired message waits for its dead letter as a rejected one does."""
    declare(scenario, TTL)
    scenario.publish()

    scenario.node.pass_time(100)

    check_moved(scenario)


@cell("drop-dead-letter")
def test_a_message_that_gives_way(scenario: Scenario) -> None:
    """A message dropped for want of room waits for its dead letter as a rejected one does."""
    declare(scenario, limit(0))

    scenario.publish()

    check_moved(scenario)


@cell("delivery-limit-dead-letter")
def test_a_message_that_comes_back_too_often(scenario: Scenario) -> None:
    """A message returned too often waits for its dead letter as a rejected one does."""
    declare(scenario, {"x-delivery-limit": ("signedint", 1)})
    scenario.consume()
    scenario.publish()
    assert ["1"] == scenario.deliveries()
    scenario.nack(1, requeue=True)
    assert ["1*"] == scenario.deliveries()

    scenario.nack(2, requeue=True)

    check_moved(scenario)


@cell("dead-letter-disk-full")
def test_a_dead_letter_that_finds_no_room(scenario: Scenario) -> None:
    """The publisher is nacked; the dead letter stays and is written when there is room."""
    declare(scenario, TTL)
    scenario.publish()
    scenario.node.pass_time(100)
    assert (1, 0) == scenario.counts("dead")

    scenario.node.fail()

    assert ["nack 1"] == scenario.verdicts()
    assert (1, 0) == scenario.counts("dead")
    assert 1 == scenario.written()
