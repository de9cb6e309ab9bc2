"""Cells of the table: what is published, and where it goes."""

from pathlib import Path
from typing import Any

from confirm_table.cells import DLX, Scenario, cell, limit
from doubles.fakes import basic_consume

from leveret.broker.amqp.commands import Basic, Confirm, Exchange, Queue, Tx, make


@cell("persistent")
def test_a_persistent_message(scenario: Scenario) -> None:
    """The disk answers for a persistent message in standard mode; in others the consumer, and nothing is written."""
    scenario.declare()
    scenario.publish()
    assert [] == scenario.verdicts()
    scenario.stored()
    assert (0 if scenario.is_late else 1) == scenario.written()
    scenario.consume()
    assert ["1"] == scenario.deliveries()
    assert [] == scenario.verdicts()

    scenario.ack(1)

    assert scenario.late("ack 1") == scenario.verdicts()
    assert (0, 0) == scenario.counts()
    assert 0 == scenario.written()


@cell("transient")
def test_a_transient_message(scenario: Scenario) -> None:
    """A transient message is confirmed at once in standard mode; in the others it waits as any other, in any queue."""
    scenario.declare()
    scenario.declare("passing", durable=False, exclusive=False)
    scenario.publish(delivery_mode=1)
    scenario.publish("passing")
    assert ([] if scenario.is_late else ["ack 1", "ack 2"]) == scenario.verdicts()
    assert 0 == scenario.written()
    scenario.consume()
    scenario.consume("passing")
    assert ["1", "2"] == scenario.deliveries()

    scenario.ack(2)
    assert scenario.late("ack 2") == scenario.verdicts()
    scenario.ack(1)
    assert scenario.late("ack 1") == scenario.verdicts()


@cell("unroutable")
def test_no_queue(scenario: Scenario) -> None:
    """A message without a queue is acked at once, after the return if it is mandatory."""
    scenario.publish("nowhere")
    assert ["ack 1"] == scenario.verdicts()

    other = scenario.connect()
    other.ask(Confirm.Select(False))
    other.publish("nowhere", b"1", mandatory=True, delivery_mode=2)

    returned, confirm = other.sent()
    assert returned.startswith("1 basic.return reply_code=312")
    assert "1 basic.ack delivery_tag=1" == confirm


@cell("no-confirms")
def test_no_confirms_on_the_channel(scenario: Scenario) -> None:
    """A message of a channel without confirms is written in every mode, and kept over a crash."""
    scenario.declare()
    other = scenario.connect()
    other.publish("q", b"1", delivery_mode=2)
    assert 1 == scenario.written()
    scenario.consume()
    assert ["1"] == scenario.deliveries()
    assert [] == other.sent()

    scenario.restarted(scenario.node.killed())

    scenario.node.run_turn()
    scenario.node.read()
    assert (1, 0) == scenario.counts()


@cell("transaction")
def test_a_transaction(scenario: Scenario) -> None:
    """A transaction's commit is answered when it is on disk, with or without consumers."""
    scenario.declare()
    other = scenario.connect()
    assert ["1 tx.select-ok"] == other.ask(Tx.Select())
    other.publish("q", b"1", delivery_mode=2)
    assert [] == other.ask(Tx.Commit())

    scenario.commit()

    assert ["1 tx.commit-ok"] == other.sent()
    assert 1 == scenario.written()
    assert (1, 0) == scenario.counts()


@cell("alternate-exchange")
def test_an_alternate_exchange(scenario: Scenario) -> None:
    """A queue that an alternate exchange leads to is one like any other."""
    scenario.declare()
    scenario.ask(make(Queue.Bind, 0, "q", "amq.fanout", "", False, {}))
    table = {"alternate-exchange": ("longstr", "amq.fanout")}
    scenario.ask(make(Exchange.Declare, 0, "x", "direct", False, True, False, False, False, table))
    scenario.publish("any", exchange="x")
    scenario.stored()
    scenario.consume()
    assert ["1"] == scenario.deliveries()
    assert [] == scenario.verdicts()

    scenario.ack(1)

    assert scenario.late("ack 1") == scenario.verdicts()


@cell("delayed")
def test_a_delayed_message(scenario: Scenario) -> None:
    """The delay line answers for a message on disk; the messages it releases are the broker's own, and written."""
    scenario.declare()
    table = {"x-delayed-type": ("longstr", "fanout")}
    scenario.ask(make(Exchange.Declare, 0, "d", "x-delayed-message", False, True, False, False, False, table))
    scenario.ask(make(Queue.Bind, 0, "q", "d", "", False, {}))
    scenario.publish(exchange="d", headers={"x-delay": ("signedint", 1000)})
    assert [] == scenario.verdicts()
    scenario.commit()
    assert ["ack 1"] == scenario.verdicts()
    assert (0, 0) == scenario.counts()

    scenario.node.pass_time(1000)

    assert (1, 0) == scenario.counts()
    assert 1 == scenario.written()
    scenario.consume()
    assert ["1"] == scenario.deliveries()
    scenario.ack(1)
    assert [] == scenario.verdicts()


HOLDS = {"x-allow-hold": ("bool", True)}


def hold(scenario: Scenario) -> None:
    """Publish a message that is due in an hour."""
    scenario.declare(arguments=HOLDS)
    scenario.publish(headers={"x-delay": ("signedint", 3_600_000)})


@cell("held")
def test_a_held_message(scenario: Scenario) -> None:
    """A held message is confirmed by the commit of its row; what is released is the broker's own, and written."""
    hold(scenario)
    assert [] == scenario.verdicts()
    scenario.commit()
    assert ["ack 1"] == scenario.verdicts()
    assert 0 == scenario.written()

    scenario.node.pass_time(3_600_000)

    assert (1, 0) == scenario.counts()
    assert 1 == scenario.written()
    scenario.consume()
    assert ["1"] == scenario.deliveries()
    scenario.ack(1)
    assert [] == scenario.verdicts()


@cell("held-refused")
def test_a_held_message_that_is_refused(tmp_path: Path, mode: str, caplog: Any) -> None:
    """With `confirm.hold = refuse` a queue holds nothing for a publisher who waits for a consumer; the log says so once."""
    scenario = Scenario(tmp_path, mode, confirm_hold="refuse")
    hold(scenario)
    scenario.publish(headers={"x-delay": ("signedint", 3_600_000)})
    scenario.commit()

    assert (["nack 1", "nack 2"] if scenario.is_late else ["ack 1", "ack 2"]) == scenario.verdicts()
    queue = scenario.node.vhosts["/"].queues["q"]
    assert (0 if scenario.is_late else 2) == queue.held_count
    assert scenario.is_late is (1 == caplog.text.count("publisher would wait for a consumer"))
    scenario.publish()
    scenario.stored()
    scenario.consume()
    scenario.ack(1)
    assert scenario.late("ack 3") == scenario.verdicts()
    scenario.end()


@cell("quorum-queue")
def test_a_quorum_queue(scenario: Scenario) -> None:
    """A quorum queue promises a disk in every mode, for transient messages too."""
    scenario.declare(arguments={"x-queue-type": ("longstr", "quorum")})
    scenario.publish()
    scenario.publish(delivery_mode=1)
    assert [] == scenario.verdicts()

    scenario.commit()

    assert ["ack 1", "ack 2"] == scenario.verdicts()
    scenario.consume()
    assert ["1", "2"] == scenario.deliveries()


@cell("direct-reply-to")
def test_a_direct_reply(scenario: Scenario) -> None:
    """A direct reply is handed to its requester, and confirmed at once."""
    asking = scenario.connect()
    asking.ask(basic_consume("amq.rabbitmq.reply-to", "", no_ack=True))
    scenario.declare("requests", durable=False)
    asking.publish("requests", b"?", reply_to="amq.rabbitmq.reply-to")
    scenario.consumer.send(make(Basic.Get, 0, "requests", True))
    (request,) = scenario.consumer.sent()
    (address,) = [word for word in request.split() if word.startswith("reply_to=")]

    scenario.publish(address.partition("=")[2], b"!")

    assert ["ack 1"] == scenario.verdicts()
    assert ["!"] == scenario.deliveries(asking)


def full(scenario: Scenario, overflow: str) -> None:
    """A queue that has room for one message, and has one."""
    scenario.declare("dead")
    scenario.declare(arguments=limit(1, overflow) | (DLX if "dlx" in overflow else {}))
    scenario.publish()
    scenario.stored()


@cell("reject-publish")
def test_a_queue_that_refuses(scenario: Scenario) -> None:
    """A message without room is nacked at once, and the messages in the queue are not affected."""
    full(scenario, "reject-publish")

    scenario.publish()

    assert ["nack 2"] == scenario.verdicts()
    assert (1, 0) == scenario.counts()
    scenario.consume()
    assert ["1"] == scenario.deliveries()
    scenario.ack(1)
    assert scenario.late("ack 1") == scenario.verdicts()


@cell("reject-publish-dlx")
def test_a_queue_that_refuses_and_dead_letters(scenario: Scenario) -> None:
    """A message without room is nacked at once though its dead letter is written."""
    full(scenario, "reject-publish-dlx")

    scenario.publish()

    assert ["nack 2"] == scenario.verdicts()
    assert ((1, 0), (1, 0)) == (scenario.counts(), scenario.counts("dead"))
    assert ["2"] == scenario.get("dead")
    scenario.commit()
    assert ["1"] == scenario.get()
    assert scenario.late("ack 1") == scenario.verdicts()
