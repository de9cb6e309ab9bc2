"""Cells of the table: what a consumer says of a message."""

from confirm_table.cells import LIGHT, Scenario, cell

from leveret.broker.amqp.commands import Basic, Tx, make


@cell("consumer-ack")
def test_an_ack(scenario: Scenario) -> None:
    """Each ack of the consumer is one for the publisher, and a multiple one is one for all that it covers."""
    scenario.declare()
    scenario.consume()
    scenario.delivered(5)
    assert (0, 5) == scenario.counts()

    scenario.ack(3)
    assert scenario.late("ack 3") == scenario.verdicts()
    scenario.ack(4, multiple=True)
    assert scenario.late("ack 1", "ack 2", "ack 4") == scenario.verdicts()
    scenario.ack(0, multiple=True)
    assert scenario.late("ack 5") == scenario.verdicts()

    assert (0, 0) == scenario.counts()
    assert 0 == scenario.written()


@cell("ack-before-write")
def test_an_ack_before_the_commit(scenario: Scenario) -> None:
    """An ack before the commit confirms in every mode, and nothing is written."""
    scenario.declare()
    scenario.consume()
    scenario.publish()
    assert [] == scenario.verdicts()
    assert scenario.is_late is not scenario.node.disk.journal.has_work

    scenario.ack(1)

    assert ["ack 1"] == scenario.verdicts()
    assert 0 == scenario.written()


@cell("ack-in-transaction")
def test_an_ack_in_a_transaction(scenario: Scenario) -> None:
    """An ack in a transaction counts when the consumer commits it, and not when it takes it back."""
    scenario.declare()
    scenario.consumer.send(Tx.Select())
    scenario.consume()
    scenario.delivered()

    scenario.ack(1)
    scenario.consumer.send(Tx.Rollback())
    assert [] == scenario.verdicts()
    scenario.ack(1)
    assert [] == scenario.verdicts()
    scenario.consumer.send(Tx.Commit())
    scenario.commit()

    assert scenario.late("ack 1") == scenario.verdicts()
    assert (0, 0) == scenario.counts()


def check_returned(scenario: Scenario) -> None:
    """Two messages have come back, to the queue that has given them out again, or to the publisher."""
    is_light = scenario.mode == LIGHT
    assert (["nack 1", "nack 2"] if is_light else []) == scenario.verdicts()
    assert ([] if is_light else ["1*", "2*"]) == scenario.deliveries()
    assert (0, 0 if is_light else 2) == scenario.counts()

    scenario.ack(0, multiple=True)

    assert ([] if is_light else scenario.late("ack 1", "ack 2")) == scenario.verdicts()
    assert (0, 0) == scenario.counts()


@cell("reject-requeue")
def test_a_rejection_with_requeue(scenario: Scenario) -> None:
    """A requeued message stays and the publisher waits on, or the queue has not kept it and the publisher is nacked."""
    scenario.declare()
    scenario.consume()
    scenario.delivered(2)

    scenario.nack(2, requeue=True, multiple=True)

    check_returned(scenario)


@cell("basic-recover")
def test_recover(scenario: Scenario) -> None:
    """All that a channel has unacked comes back, as if it were rejected with requeue."""
    scenario.declare()
    scenario.consume()
    scenario.delivered(2)

    scenario.consumer.send(Basic.Recover(True))

    check_returned(scenario)


@cell("reject-drop")
def test_a_rejection(scenario: Scenario) -> None:
    """A reject decides: the message is not sent again."""
    scenario.declare()
    scenario.consume()
    scenario.delivered(3)

    scenario.consumer.send(make(Basic.Reject, 2, False))
    assert scenario.late("ack 2") == scenario.verdicts()
    scenario.nack(0, requeue=False, multiple=True)

    assert scenario.late("ack 1", "ack 3") == scenario.verdicts()
    assert (0, 0) == scenario.counts()
    assert 0 == scenario.written()


@cell("auto-ack")
def test_a_consumer_without_acks(scenario: Scenario) -> None:
    """Handing a message over to a consumer without acks is the verdict, and it is never written."""
    scenario.declare()
    scenario.consume(no_ack=True)

    scenario.publish_many(2)

    assert ["ack 1", "ack 2"] == scenario.verdicts()
    assert ["1", "2"] == scenario.deliveries()
    assert (0, 0) == scenario.counts()
    assert 0 == scenario.written()


@cell("auto-ack-ready")
def test_a_consumer_without_acks_comes_later(scenario: Scenario) -> None:
    """A ready message is confirmed when it is handed over to a consumer without acks."""
    scenario.declare()
    scenario.publish_many(2)
    scenario.stored()

    scenario.consume(no_ack=True)

    assert scenario.late("ack 1", "ack 2") == scenario.verdicts()
    assert ["1", "2"] == scenario.deliveries()
    assert (0, 0) == scenario.counts()


@cell("get-auto-ack")
def test_a_get_without_ack(scenario: Scenario) -> None:
    """A message that is got without ack is handed over."""
    scenario.declare()
    scenario.publish_many(2)
    scenario.stored()

    assert ["1"] == scenario.get()

    assert scenario.late("ack 1") == scenario.verdicts()
    assert (1, 0) == scenario.counts()
    assert ["2"] == scenario.get()
    assert scenario.late("ack 2") == scenario.verdicts()


@cell("get-with-ack")
def test_a_get_with_ack(scenario: Scenario) -> None:
    """A message that is got is acked, or given back, like a consumer's."""
    scenario.declare()
    scenario.publish_many(2)
    scenario.stored()
    assert ["1"] == scenario.get(no_ack=False)
    assert ["2"] == scenario.get(no_ack=False)
    assert [] == scenario.verdicts()

    scenario.ack(1)
    assert scenario.late("ack 1") == scenario.verdicts()
    scenario.nack(2, requeue=True)

    assert (["nack 2"] if scenario.mode == LIGHT else []) == scenario.verdicts()
    assert ([] if scenario.mode == LIGHT else ["2*"]) == scenario.get(no_ack=False)
    if scenario.mode != LIGHT:
        scenario.ack(3)
        assert scenario.late("ack 2") == scenario.verdicts()


@cell("priority-queue")
def test_a_queue_with_priorities(scenario: Scenario) -> None:
    """Verdicts come in the order of the consumer's acks, which is that of the priorities."""
    scenario.declare(arguments={"x-max-priority": ("signedint", 5)})
    for priority in (1, 5, 3):
        scenario.publish(priority=priority)
    scenario.stored()
    scenario.prefetch(1)
    scenario.consume()

    for tag, number in enumerate((2, 3, 1), start=1):
        assert [str(number)] == scenario.deliveries()
        assert [] == scenario.verdicts()
        scenario.ack(tag)
        assert scenario.late(f"ack {number}") == scenario.verdicts()

    assert (0, 0) == scenario.counts()
