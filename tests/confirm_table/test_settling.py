"""Cells of the table: what a consumer says of a message."""

from confirm_table.cells import LIGHT, Stage, cell

from leveret.broker.amqp.commands import Basic, Tx, make


@cell("consumer-ack")
def test_an_ack(stage: Stage) -> None:
    """Each ack of the consumer is one for the publisher, and a multiple one is one for all that it covers."""
    stage.declare()
    stage.consume()
    stage.delivered(5)
    assert (0, 5) == stage.counts()

    stage.ack(3)
    assert stage.late("ack 3") == stage.verdicts()
    stage.ack(4, multiple=True)
    assert stage.late("ack 1", "ack 2", "ack 4") == stage.verdicts()
    stage.ack(0, multiple=True)
    assert stage.late("ack 5") == stage.verdicts()

    assert (0, 0) == stage.counts()
    assert 0 == stage.written()


@cell("ack-before-write")
def test_an_ack_before_the_commit(stage: Stage) -> None:
    """An ack before the commit confirms in every mode, and nothing is written."""
    stage.declare()
    stage.consume()
    stage.publish()
    assert [] == stage.verdicts()
    assert stage.is_late is not stage.node.disk.journal.has_work

    stage.ack(1)

    assert ["ack 1"] == stage.verdicts()
    assert 0 == stage.written()


@cell("ack-in-transaction")
def test_an_ack_in_a_transaction(stage: Stage) -> None:
    """An ack in a transaction counts when the consumer commits it, and not when it takes it back."""
    stage.declare()
    stage.consumer.send(Tx.Select())
    stage.consume()
    stage.delivered()

    stage.ack(1)
    stage.consumer.send(Tx.Rollback())
    assert [] == stage.verdicts()
    stage.ack(1)
    assert [] == stage.verdicts()
    stage.consumer.send(Tx.Commit())
    stage.commit()

    assert stage.late("ack 1") == stage.verdicts()
    assert (0, 0) == stage.counts()


def check_returned(stage: Stage) -> None:
    """Two messages have come back, to the queue that has given them out again, or to the publisher."""
    is_light = stage.mode == LIGHT
    assert (["nack 1", "nack 2"] if is_light else []) == stage.verdicts()
    assert ([] if is_light else ["1*", "2*"]) == stage.deliveries()
    assert (0, 0 if is_light else 2) == stage.counts()

    stage.ack(0, multiple=True)

    assert ([] if is_light else stage.late("ack 1", "ack 2")) == stage.verdicts()
    assert (0, 0) == stage.counts()


@cell("reject-requeue")
def test_a_rejection_with_requeue(stage: Stage) -> None:
    """A requeued message stays and the publisher waits on, or the queue has not kept it and the publisher is nacked."""
    stage.declare()
    stage.consume()
    stage.delivered(2)

    stage.nack(2, requeue=True, multiple=True)

    check_returned(stage)


@cell("basic-recover")
def test_recover(stage: Stage) -> None:
    """All that a channel has unacked comes back, as if it were rejected with requeue."""
    stage.declare()
    stage.consume()
    stage.delivered(2)

    stage.consumer.send(Basic.Recover(True))

    check_returned(stage)


@cell("reject-drop")
def test_a_rejection(stage: Stage) -> None:
    """A reject decides: the message is not sent again."""
    stage.declare()
    stage.consume()
    stage.delivered(3)

    stage.consumer.send(make(Basic.Reject, 2, False))
    assert stage.late("ack 2") == stage.verdicts()
    stage.nack(0, requeue=False, multiple=True)

    assert stage.late("ack 1", "ack 3") == stage.verdicts()
    assert (0, 0) == stage.counts()
    assert 0 == stage.written()


@cell("auto-ack")
def test_a_consumer_without_acks(stage: Stage) -> None:
    """Handing a message over to a consumer without acks is the verdict, and it is never written."""
    stage.declare()
    stage.consume(no_ack=True)

    stage.publish_many(2)

    assert ["ack 1", "ack 2"] == stage.verdicts()
    assert ["1", "2"] == stage.deliveries()
    assert (0, 0) == stage.counts()
    assert 0 == stage.written()


@cell("auto-ack-ready")
def test_a_consumer_without_acks_comes_later(stage: Stage) -> None:
    """A ready message is confirmed when it is handed over to a consumer without acks."""
    stage.declare()
    stage.publish_many(2)
    stage.stored()

    stage.consume(no_ack=True)

    assert stage.late("ack 1", "ack 2") == stage.verdicts()
    assert ["1", "2"] == stage.deliveries()
    assert (0, 0) == stage.counts()


@cell("get-auto-ack")
def test_a_get_without_ack(stage: Stage) -> None:
    """A message that is got without ack is handed over."""
    stage.declare()
    stage.publish_many(2)
    stage.stored()

    assert ["1"] == stage.get()

    assert stage.late("ack 1") == stage.verdicts()
    assert (1, 0) == stage.counts()
    assert ["2"] == stage.get()
    assert stage.late("ack 2") == stage.verdicts()


@cell("get-with-ack")
def test_a_get_with_ack(stage: Stage) -> None:
    """A message that is got is acked, or given back, like a consumer's."""
    stage.declare()
    stage.publish_many(2)
    stage.stored()
    assert ["1"] == stage.get(no_ack=False)
    assert ["2"] == stage.get(no_ack=False)
    assert [] == stage.verdicts()

    stage.ack(1)
    assert stage.late("ack 1") == stage.verdicts()
    stage.nack(2, requeue=True)

    assert (["nack 2"] if stage.mode == LIGHT else []) == stage.verdicts()
    assert ([] if stage.mode == LIGHT else ["2*"]) == stage.get(no_ack=False)
    if stage.mode != LIGHT:
        stage.ack(3)
        assert stage.late("ack 2") == stage.verdicts()


@cell("priority-queue")
def test_a_queue_with_priorities(stage: Stage) -> None:
    """Verdicts come in the order of the consumer's acks, which is that of the priorities."""
    stage.declare(arguments={"x-max-priority": ("signedint", 5)})
    for priority in (1, 5, 3):
        stage.publish(priority=priority)
    stage.stored()
    stage.prefetch(1)
    stage.consume()

    for tag, number in enumerate((2, 3, 1), start=1):
        assert [str(number)] == stage.deliveries()
        assert [] == stage.verdicts()
        stage.ack(tag)
        assert stage.late(f"ack {number}") == stage.verdicts()

    assert (0, 0) == stage.counts()
