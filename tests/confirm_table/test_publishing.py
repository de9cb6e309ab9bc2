"""Cells of the table: what is published, and where it goes."""

from confirm_table.cells import DLX, Stage, cell, limit
from fakes import basic_consume

from leveret.broker.amqp.commands import Basic, Confirm, Exchange, Queue, Tx, make


@cell("persistent")
def test_a_persistent_message(stage: Stage) -> None:
    """The disk answers for a persistent message in standard mode; in others the consumer, and nothing is written."""
    stage.declare()
    stage.publish()
    assert [] == stage.verdicts()
    stage.stored()
    assert (0 if stage.is_late else 1) == stage.written()
    stage.consume()
    assert ["1"] == stage.deliveries()
    assert [] == stage.verdicts()

    stage.ack(1)

    assert stage.late("ack 1") == stage.verdicts()
    assert (0, 0) == stage.counts()
    assert 0 == stage.written()


@cell("transient")
def test_a_transient_message(stage: Stage) -> None:
    """A transient message is confirmed at once in standard mode; in the others it waits as any other, in any queue."""
    stage.declare()
    stage.declare("passing", durable=False, exclusive=False)
    stage.publish(delivery_mode=1)
    stage.publish("passing")
    assert ([] if stage.is_late else ["ack 1", "ack 2"]) == stage.verdicts()
    assert 0 == stage.written()
    stage.consume()
    stage.consume("passing")
    assert ["1", "2"] == stage.deliveries()

    stage.ack(2)
    assert stage.late("ack 2") == stage.verdicts()
    stage.ack(1)
    assert stage.late("ack 1") == stage.verdicts()


@cell("unroutable")
def test_no_queue(stage: Stage) -> None:
    """A message without a queue is acked at once, after the return if it is mandatory."""
    stage.publish("nowhere")
    assert ["ack 1"] == stage.verdicts()

    other = stage.connect()
    other.ask(Confirm.Select(False))
    other.publish("nowhere", b"1", mandatory=True, delivery_mode=2)

    returned, confirm = other.sent()
    assert returned.startswith("1 basic.return reply_code=312")
    assert "1 basic.ack delivery_tag=1" == confirm


@cell("no-confirms")
def test_no_confirms_on_the_channel(stage: Stage) -> None:
    """A message of a channel without confirms is written in every mode, and kept over a crash."""
    stage.declare()
    other = stage.connect()
    other.publish("q", b"1", delivery_mode=2)
    assert 1 == stage.written()
    stage.consume()
    assert ["1"] == stage.deliveries()
    assert [] == other.sent()

    stage.restarted(stage.node.killed())

    stage.node.run_turn()
    stage.node.read()
    assert (1, 0) == stage.counts()


@cell("transaction")
def test_a_transaction(stage: Stage) -> None:
    """A transaction's commit is answered when it is on disk, with or without consumers."""
    stage.declare()
    other = stage.connect()
    assert ["1 tx.select-ok"] == other.ask(Tx.Select())
    other.publish("q", b"1", delivery_mode=2)
    assert [] == other.ask(Tx.Commit())

    stage.commit()

    assert ["1 tx.commit-ok"] == other.sent()
    assert 1 == stage.written()
    assert (1, 0) == stage.counts()


@cell("alternate-exchange")
def test_an_alternate_exchange(stage: Stage) -> None:
    """A queue that an alternate exchange leads to is one like any other."""
    stage.declare()
    stage.ask(make(Queue.Bind, 0, "q", "amq.fanout", "", False, {}))
    table = {"alternate-exchange": ("longstr", "amq.fanout")}
    stage.ask(make(Exchange.Declare, 0, "x", "direct", False, True, False, False, False, table))
    stage.publish("any", exchange="x")
    stage.stored()
    stage.consume()
    assert ["1"] == stage.deliveries()
    assert [] == stage.verdicts()

    stage.ack(1)

    assert stage.late("ack 1") == stage.verdicts()


@cell("delayed")
def test_a_delayed_message(stage: Stage) -> None:
    """The delay line answers for a message on disk; the messages it releases are the broker's own, and written."""
    stage.declare()
    table = {"x-delayed-type": ("longstr", "fanout")}
    stage.ask(make(Exchange.Declare, 0, "d", "x-delayed-message", False, True, False, False, False, table))
    stage.ask(make(Queue.Bind, 0, "q", "d", "", False, {}))
    stage.publish(exchange="d", headers={"x-delay": ("signedint", 1000)})
    assert [] == stage.verdicts()
    stage.commit()
    assert ["ack 1"] == stage.verdicts()
    assert (0, 0) == stage.counts()

    stage.node.pass_time(1000)

    assert (1, 0) == stage.counts()
    assert 1 == stage.written()
    stage.consume()
    assert ["1"] == stage.deliveries()
    stage.ack(1)
    assert [] == stage.verdicts()


@cell("quorum-queue")
def test_a_quorum_queue(stage: Stage) -> None:
    """A quorum queue promises a disk in every mode, for transient messages too."""
    stage.declare(arguments={"x-queue-type": ("longstr", "quorum")})
    stage.publish()
    stage.publish(delivery_mode=1)
    assert [] == stage.verdicts()

    stage.commit()

    assert ["ack 1", "ack 2"] == stage.verdicts()
    stage.consume()
    assert ["1", "2"] == stage.deliveries()


@cell("direct-reply-to")
def test_a_direct_reply(stage: Stage) -> None:
    """A direct reply is handed to its requester, and confirmed at once."""
    asking = stage.connect()
    asking.ask(basic_consume("amq.rabbitmq.reply-to", "", no_ack=True))
    stage.declare("requests", durable=False)
    asking.publish("requests", b"?", reply_to="amq.rabbitmq.reply-to")
    stage.consumer.send(make(Basic.Get, 0, "requests", True))
    (request,) = stage.consumer.sent()
    (address,) = [word for word in request.split() if word.startswith("reply_to=")]

    stage.publish(address.partition("=")[2], b"!")

    assert ["ack 1"] == stage.verdicts()
    assert ["!"] == stage.deliveries(asking)


def full(stage: Stage, overflow: str) -> None:
    """A queue that has room for one message, and has one."""
    stage.declare("dead")
    stage.declare(arguments=limit(1, overflow) | (DLX if "dlx" in overflow else {}))
    stage.publish()
    stage.stored()


@cell("reject-publish")
def test_a_queue_that_refuses(stage: Stage) -> None:
    """A message without room is nacked at once, and the messages in the queue are not affected."""
    full(stage, "reject-publish")

    stage.publish()

    assert ["nack 2"] == stage.verdicts()
    assert (1, 0) == stage.counts()
    stage.consume()
    assert ["1"] == stage.deliveries()
    stage.ack(1)
    assert stage.late("ack 1") == stage.verdicts()


@cell("reject-publish-dlx")
def test_a_queue_that_refuses_and_dead_letters(stage: Stage) -> None:
    """A message without room is nacked at once though its dead letter is written."""
    full(stage, "reject-publish-dlx")

    stage.publish()

    assert ["nack 2"] == stage.verdicts()
    assert ((1, 0), (1, 0)) == (stage.counts(), stage.counts("dead"))
    assert ["2"] == stage.get("dead")
    stage.commit()
    assert ["1"] == stage.get()
    assert stage.late("ack 1") == stage.verdicts()
