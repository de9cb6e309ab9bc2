"""Cells of the table: what the broker gives up by itself, where there are no dead letters."""

from confirm_table.cells import TTL, Stage, cell, limit

from leveret.broker.amqp.commands import Exchange, Queue, make
from leveret.broker.amqp.tables import Table


@cell("ttl-drop")
def test_a_message_expires(stage: Stage) -> None:
    """A message expires before it is consumed, by the queue's TTL or its own."""
    stage.declare(arguments=TTL)
    stage.declare("plain")
    stage.publish()
    stage.publish("plain", expiration="50")
    assert [] == stage.verdicts()
    stage.node.pass_time(50)
    assert (stage.late("nack 2") or ["ack 2"]) == stage.verdicts()

    stage.node.pass_time(50)

    assert (stage.late("nack 1") or ["ack 1"]) == stage.verdicts()
    assert ((0, 0), (0, 0)) == (stage.counts(), stage.counts("plain"))


@cell("drop-head")
def test_a_limited_queue(stage: Stage) -> None:
    """The oldest message is dropped, and decided; the others stay."""
    stage.declare(arguments=limit(2))
    stage.publish_many(2)
    stage.stored()

    stage.publish()

    assert stage.late("nack 1") == stage.verdicts()
    stage.stored()
    stage.consume()
    assert ["2", "3"] == stage.deliveries()
    stage.nack(2, requeue=False)
    stage.ack(1)
    assert stage.late("ack 2", "ack 3") == stage.verdicts()


@cell("octet-limit")
def test_a_queue_limited_by_octets(stage: Stage) -> None:
    """A queue limited by octets drops its head and takes back what a consumer rejects: it needs to know both."""
    stage.declare(arguments={"x-max-length-bytes": ("signedint", 2)})
    stage.publish_many(3)
    stage.commit()
    assert (["nack 1"] if stage.is_late else ["ack 1", "ack 2", "ack 3"]) == stage.verdicts()
    stage.consume()
    assert ["2", "3"] == stage.deliveries()

    stage.nack(2, requeue=True)

    assert [] == stage.verdicts()
    assert ["3*"] == stage.deliveries()
    stage.ack(0, multiple=True)
    assert stage.late("ack 2", "ack 3") == stage.verdicts()


DELIVERY_LIMIT: Table = {"x-delivery-limit": ("signedint", 1)}


@cell("delivery-limit")
def test_a_message_that_comes_back_too_often(stage: Stage) -> None:
    """A message given back too often is given up by the broker, not by the consumer."""
    stage.declare(arguments=DELIVERY_LIMIT)
    stage.consume()
    stage.delivered()
    stage.nack(1, requeue=True)
    assert [] == stage.verdicts()
    assert ["1*"] == stage.deliveries()

    stage.nack(2, requeue=True)

    assert stage.late("nack 1") == stage.verdicts()
    assert [] == stage.deliveries()
    assert (0, 0) == stage.counts()


def leads_nowhere(stage: Stage, arguments: Table) -> None:
    """A queue whose dead letters have no queue."""
    stage.ask(make(Exchange.Declare, 0, "dlx", "fanout", False, True, False, False, False, {}))
    stage.declare(arguments=arguments | {"x-dead-letter-exchange": ("longstr", "dlx")})


@cell("ttl-nowhere")
def test_an_expired_message_that_leads_nowhere(stage: Stage) -> None:
    """A dead letter without a queue is no better than none; also where the exchange is gone."""
    leads_nowhere(stage, TTL)
    stage.publish()

    stage.node.pass_time(100)

    assert (stage.late("nack 1") or ["ack 1"]) == stage.verdicts()
    stage.ask(make(Exchange.Delete, 0, "dlx", False, False))
    stage.publish()
    stage.node.pass_time(100)
    assert (stage.late("nack 2") or ["ack 2"]) == stage.verdicts()
    assert (0, 0) == stage.counts()
    assert 0 == stage.written()


@cell("reject-nowhere")
def test_a_rejected_message_that_leads_nowhere(stage: Stage) -> None:
    """A reject decides, with or without a dead letter; also where the exchange is gone."""
    leads_nowhere(stage, {})
    stage.consume()
    stage.delivered(2)

    stage.nack(1, requeue=False)
    assert stage.late("ack 1") == stage.verdicts()
    stage.ask(make(Exchange.Delete, 0, "dlx", False, False))
    stage.nack(2, requeue=False)

    assert stage.late("ack 2") == stage.verdicts()
    assert (0, 0) == stage.counts()


@cell("dead-letter-refused")
def test_a_dead_letter_that_is_refused(stage: Stage) -> None:
    """A refused dead letter leads nowhere: given up by the broker, or rejected by a consumer."""
    leads_nowhere(stage, TTL)
    stage.declare("dead", arguments=limit(0, "reject-publish"))
    stage.ask(make(Queue.Bind, 0, "dead", "dlx", "", False, {}))
    stage.publish()
    stage.node.pass_time(100)
    assert (stage.late("nack 1") or ["ack 1"]) == stage.verdicts()
    stage.consume()
    stage.publish()
    assert ["2"] == stage.deliveries()

    stage.nack(1, requeue=False)

    assert ["ack 2"] == stage.verdicts()
    assert ((0, 0), (0, 0)) == (stage.counts(), stage.counts("dead"))
