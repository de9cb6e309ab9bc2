"""Cells of the table: messages that go to several queues."""

from confirm_table.cells import STANDARD, Scenario, cell, limit

from leveret.broker.amqp.commands import Queue, make


def bound(scenario: Scenario, *names: str) -> None:
    for name in names:
        scenario.ask(make(Queue.Bind, 0, name, "amq.fanout", "", False, {}))


@cell("fan-out")
def test_several_queues(scenario: Scenario) -> None:
    """All queues have to answer, in any order."""
    for name in ("a", "b", "c"):
        scenario.declare(name)
        scenario.consume(name)
    bound(scenario, "a", "b", "c")
    scenario.publish(exchange="amq.fanout")
    scenario.stored()
    assert ["1", "1", "1"] == scenario.deliveries()

    scenario.ack(2)
    assert [] == scenario.verdicts()
    scenario.nack(1, requeue=False)
    assert [] == scenario.verdicts()
    scenario.ack(3)

    assert scenario.late("ack 1") == scenario.verdicts()


@cell("fan-out-nack")
def test_one_of_several_queues_gives_it_up(scenario: Scenario) -> None:
    """The first nack counts, and is sent once; the others deliver the message nevertheless, without a verdict."""
    for name in ("a", "b", "c"):
        scenario.declare(
            name, arguments=limit(0, "reject-publish") if (name, scenario.mode) == ("b", STANDARD) else {}
        )
    bound(scenario, "a", "b", "c")
    scenario.consume("c")
    scenario.publish(exchange="amq.fanout")
    if scenario.is_late:
        assert [] == scenario.verdicts()
        scenario.ask(make(Queue.Purge, 0, "b", False))

    assert ["nack 1"] == scenario.verdicts()
    scenario.commit()
    assert [] == scenario.verdicts()
    scenario.ask(make(Queue.Purge, 0, "a", False))
    assert [] == scenario.verdicts()
    assert ["1"] == scenario.deliveries()
    scenario.ack(1)
    assert [] == scenario.verdicts()


@cell("mixed-fan-out")
def test_a_standard_queue_beside_it(scenario: Scenario) -> None:
    """The commit and the consumer both have to answer, whichever is later."""
    scenario.declare("a", arguments={"x-confirm-mode": ("longstr", STANDARD)})
    scenario.declare("b")
    bound(scenario, "a", "b")
    scenario.consume("b")
    scenario.publish(exchange="amq.fanout")
    assert [] == scenario.verdicts()
    scenario.stored()
    assert ["1"] == scenario.deliveries()
    scenario.ack(1)
    assert scenario.late("ack 1") == scenario.verdicts()

    scenario.publish(exchange="amq.fanout")
    assert ["2"] == scenario.deliveries()
    scenario.ack(2)
    assert [] == scenario.verdicts()
    scenario.commit()

    assert ["ack 2"] == scenario.verdicts()
    assert (2, 0) == scenario.counts("a")
    assert 2 == scenario.written()
