"""Cells of the table: messages that go to several queues."""

from confirm_table.cells import STANDARD, Stage, cell, limit

from leveret.broker.amqp.commands import Queue, make


def bound(stage: Stage, *names: str) -> None:
    """Bind queues to a fanout exchange."""
    for name in names:
        stage.ask(make(Queue.Bind, 0, name, "amq.fanout", "", False, {}))


@cell("fan-out")
def test_several_queues(stage: Stage) -> None:
    """All queues have to answer, in any order."""
    for name in ("a", "b", "c"):
        stage.declare(name)
        stage.consume(name)
    bound(stage, "a", "b", "c")
    stage.publish(exchange="amq.fanout")
    stage.stored()
    assert ["1", "1", "1"] == stage.deliveries()

    stage.ack(2)
    assert [] == stage.verdicts()
    stage.nack(1, requeue=False)
    assert [] == stage.verdicts()
    stage.ack(3)

    assert stage.late("ack 1") == stage.verdicts()


@cell("fan-out-nack")
def test_one_of_several_queues_gives_it_up(stage: Stage) -> None:
    """The first nack counts, and is sent once; the others deliver the message nevertheless, without a verdict."""
    for name in ("a", "b", "c"):
        stage.declare(
            name, arguments=limit(0, "reject-publish") if (name, stage.mode) == ("b", STANDARD) else {}
        )
    bound(stage, "a", "b", "c")
    stage.consume("c")
    stage.publish(exchange="amq.fanout")
    if stage.is_late:
        assert [] == stage.verdicts()
        stage.ask(make(Queue.Purge, 0, "b", False))

    assert ["nack 1"] == stage.verdicts()
    stage.commit()
    assert [] == stage.verdicts()
    stage.ask(make(Queue.Purge, 0, "a", False))
    assert [] == stage.verdicts()
    assert ["1"] == stage.deliveries()
    stage.ack(1)
    assert [] == stage.verdicts()


@cell("mixed-fan-out")
def test_a_standard_queue_beside_it(stage: Stage) -> None:
    """The commit and the consumer both have to answer, whichever is later."""
    stage.declare("a", arguments={"x-confirm-mode": ("longstr", STANDARD)})
    stage.declare("b")
    bound(stage, "a", "b")
    stage.consume("b")
    stage.publish(exchange="amq.fanout")
    assert [] == stage.verdicts()
    stage.stored()
    assert ["1"] == stage.deliveries()
    stage.ack(1)
    assert stage.late("ack 1") == stage.verdicts()

    stage.publish(exchange="amq.fanout")
    assert ["2"] == stage.deliveries()
    stage.ack(2)
    assert [] == stage.verdicts()
    stage.commit()

    assert ["ack 2"] == stage.verdicts()
    assert (2, 0) == stage.counts("a")
    assert 2 == stage.written()
