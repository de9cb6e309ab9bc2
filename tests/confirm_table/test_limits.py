"""Cells of the table: what the broker gives up by itself, where there are no dead letters."""

from confirm_table.cells import TTL, Scenario, cell, limit

from leveret.broker.amqp.commands import Exchange, Queue, make
from leveret.broker.amqp.tables import Table


@cell("ttl-drop")
def test_a_message_expires(scenario: Scenario) -> None:
    """A message expires before it is consumed, by the queue's TTL or its own, and is confirmed when that is safe."""
    scenario.declare(arguments=TTL)
    scenario.declare("plain")
    scenario.publish()
    scenario.publish("plain", expiration="50")
    assert [] == scenario.verdicts()
    scenario.node.pass_time(50)
    assert scenario.late("nack 2") == scenario.verdicts()
    scenario.node.pass_time(50)
    assert scenario.late("nack 1") == scenario.verdicts()

    scenario.node.commit()

    assert ([] if scenario.is_late else ["ack 1", "ack 2"]) == scenario.verdicts()
    assert ((0, 0), (0, 0)) == (scenario.counts(), scenario.counts("plain"))


@cell("drop-head")
def test_a_limited_queue(scenario: Scenario) -> None:
    """The oldest message is dropped, and decided; the others stay."""
    scenario.declare(arguments=limit(2))
    scenario.publish_many(2)
    scenario.stored()

    scenario.publish()

    assert scenario.late("nack 1") == scenario.verdicts()
    scenario.stored()
    scenario.consume()
    assert ["2", "3"] == scenario.deliveries()
    scenario.nack(2, requeue=False)
    scenario.ack(1)
    assert scenario.late("ack 2", "ack 3") == scenario.verdicts()


@cell("octet-limit")
def test_a_queue_limited_by_octets(scenario: Scenario) -> None:
    """A queue limited by octets drops its head and takes back what a consumer rejects: it needs to know both."""
    scenario.declare(arguments={"x-max-length-bytes": ("signedint", 2)})
    scenario.publish_many(3)
    scenario.commit()
    assert (["nack 1"] if scenario.is_late else ["ack 1", "ack 2", "ack 3"]) == scenario.verdicts()
    scenario.consume()
    assert ["2", "3"] == scenario.deliveries()

    scenario.nack(2, requeue=True)

    assert [] == scenario.verdicts()
    assert ["3*"] == scenario.deliveries()
    scenario.ack(0, multiple=True)
    assert scenario.late("ack 2", "ack 3") == scenario.verdicts()


DELIVERY_LIMIT: Table = {"x-delivery-limit": ("signedint", 1)}


@cell("delivery-limit")
def test_a_message_that_comes_back_too_often(scenario: Scenario) -> None:
    """A message given back too often is given up by the broker, not by the consumer."""
    scenario.declare(arguments=DELIVERY_LIMIT)
    scenario.consume()
    scenario.delivered()
    scenario.nack(1, requeue=True)
    assert [] == scenario.verdicts()
    assert ["1*"] == scenario.deliveries()

    scenario.nack(2, requeue=True)

    assert scenario.late("nack 1") == scenario.verdicts()
    assert [] == scenario.deliveries()
    assert (0, 0) == scenario.counts()


def leads_nowhere(scenario: Scenario, arguments: Table) -> None:
    """A queue whose dead letters have no queue."""
    scenario.ask(make(Exchange.Declare, 0, "dlx", "fanout", False, True, False, False, False, {}))
    scenario.declare(arguments=arguments | {"x-dead-letter-exchange": ("longstr", "dlx")})


@cell("ttl-nowhere")
def test_an_expired_message_that_leads_nowhere(scenario: Scenario) -> None:
    """A dead letter without a queue is no better than none; also where the exchange is gone."""
    leads_nowhere(scenario, TTL)
    scenario.publish()

    scenario.node.pass_time(100)

    assert (scenario.late("nack 1") or ["ack 1"]) == scenario.verdicts()
    scenario.ask(make(Exchange.Delete, 0, "dlx", False, False))
    scenario.publish()
    scenario.node.pass_time(100)
    assert (scenario.late("nack 2") or ["ack 2"]) == scenario.verdicts()
    assert (0, 0) == scenario.counts()
    assert 0 == scenario.written()


@cell("reject-nowhere")
def test_a_rejected_message_that_leads_nowhere(scenario: Scenario) -> None:
    """A reject decides, with or without a dead letter; also where the exchange is gone."""
    leads_nowhere(scenario, {})
    scenario.consume()
    scenario.delivered(2)

    scenario.nack(1, requeue=False)
    assert scenario.late("ack 1") == scenario.verdicts()
    scenario.ask(make(Exchange.Delete, 0, "dlx", False, False))
    scenario.nack(2, requeue=False)

    assert scenario.late("ack 2") == scenario.verdicts()
    assert (0, 0) == scenario.counts()


@cell("dead-letter-refused")
def test_a_dead_letter_that_is_refused(scenario: Scenario) -> None:
    """A refused dead letter leads nowhere: given up by the broker, or rejected by a consumer."""
    leads_nowhere(scenario, TTL)
    scenario.declare("dead", arguments=limit(0, "reject-publish"))
    scenario.ask(make(Queue.Bind, 0, "dead", "dlx", "", False, {}))
    scenario.publish()
    scenario.node.pass_time(100)
    assert (scenario.late("nack 1") or ["ack 1"]) == scenario.verdicts()
    scenario.consume()
    scenario.publish()
    assert ["2"] == scenario.deliveries()

    scenario.nack(1, requeue=False)

    assert ["ack 2"] == scenario.verdicts()
    assert ((0, 0), (0, 0)) == (scenario.counts(), scenario.counts("dead"))
