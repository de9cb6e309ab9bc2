"""Cells of the table: consumers and publishers who go, or are not there."""

from collections.abc import Callable
from pathlib import Path

from confirm_table.cells import LIGHT, Stage, cell
from fakes import Client

from leveret.broker.amqp.commands import Basic, Channel, make

MINUTE = 60_000


def wait(stage: Stage, client: Client, seconds: int) -> None:
    """Let time pass in which a connection is looked at."""
    for _ in range(seconds):
        stage.node.pass_time(1000)
        client.connection.close_overdue(stage.node.now())
        stage.node.run_turn()


def close_channel(stage: Stage) -> None:
    """The consumer closes its channel."""
    stage.consumer.send(make(Channel.Close, 200, "", 0, 0))


def lose_connection(stage: Stage) -> None:
    """The consumer's connection breaks."""
    stage.consumer.connection.lost()
    stage.node.run_turn()


def time_out(stage: Stage) -> None:
    """The consumer acks too late, and its channel is closed."""
    wait(stage, stage.consumer, MINUTE // 1000 + 3)
    (closed,) = stage.consumer.sent()
    assert closed.startswith("1 channel.close reply_code=406")


ENDS: dict[str, Callable[[Stage], None]] = {
    "channel-closed": close_channel,
    "connection-lost": lose_connection,
    "consumer-timeout": time_out,
}


@cell(*ENDS)
def test_a_consumer_that_is_gone(stage: Stage, event: str) -> None:
    """A gone consumer's unacked messages go to the next one and are waited for, or nobody has them and they are nacked."""
    stage.declare(arguments={"x-consumer-timeout": ("signedint", MINUTE)})
    stage.prefetch(2)
    stage.consume()
    stage.publish_many(3)
    stage.stored()
    assert ["1", "2"] == stage.deliveries()

    ENDS[event](stage)

    is_light = stage.mode == LIGHT
    assert (["nack 1", "nack 2"] if is_light else []) == stage.verdicts()
    assert (1 if is_light else 3, 0) == stage.counts()
    other = stage.connect()
    stage.consume(client=other)
    assert (["3"] if is_light else ["1*", "2*", "3"]) == stage.deliveries(other)
    other.send(make(Basic.Ack, 0, True))
    acked = ["ack 3"] if is_light else ["ack 1", "ack 2", "ack 3"]
    assert stage.late(*acked) == stage.verdicts()


@cell("basic-cancel")
def test_a_consumer_that_is_cancelled(stage: Stage) -> None:
    """A cancelled consumer's deliveries stay with its channel, which may still ack them."""
    stage.declare()
    stage.consume()
    stage.delivered(2)

    stage.consumer.send(make(Basic.Cancel, "c-q", False))

    assert [] == stage.verdicts()
    assert (0, 2) == stage.counts()
    stage.ack(1)
    assert stage.late("ack 1") == stage.verdicts()
    stage.nack(2, requeue=False)
    assert stage.late("ack 2") == stage.verdicts()


@cell("last-consumer-cancelled")
def test_the_last_consumer_of_an_auto_delete_queue(stage: Stage) -> None:
    """The queue goes: what is ready has no verdict any more, what is delivered only where its channel knows of it."""
    stage.declare(auto_delete=True)
    stage.prefetch(1)
    stage.consume()
    stage.publish_many(2)
    stage.stored()

    stage.consumer.send(make(Basic.Cancel, "c-q", False))

    assert "q" not in stage.node.vhosts["/"].queues
    assert (["nack 2"] if stage.mode == LIGHT else stage.late("nack 1", "nack 2")) == stage.verdicts()
    stage.ack(1)
    assert (["ack 1"] if stage.mode == LIGHT else []) == stage.verdicts()


@cell("publisher-gone")
def test_a_publisher_that_is_gone(stage: Stage) -> None:
    """A gone publisher's messages stay and are delivered, in their mode, without a verdict."""
    stage.declare()
    stage.publish_many(2)

    stage.publisher.connection.lost()
    stage.node.run_turn()

    assert (0 if stage.is_late else 1) == stage.written()
    stage.consume()
    assert ["1", "2"] == stage.deliveries()
    stage.ack(1)
    stage.nack(2, requeue=True)
    assert ([] if stage.mode == LIGHT else ["2*"]) == stage.deliveries()
    stage.left_open = [1, 2]


@cell("no-consumers")
def test_nobody_consumes(stage: Stage) -> None:
    """The disk answers, or the publisher waits until a consumer comes, however late that is."""
    stage.declare()
    stage.publish_many(3)
    stage.stored()

    stage.node.pass_time(3_600_000)

    assert [] == stage.verdicts()
    assert (3, 0) == stage.counts()
    stage.consume()
    assert ["1", "2", "3"] == stage.deliveries()
    stage.ack(3, multiple=True)
    assert stage.late("ack 1", "ack 2", "ack 3") == stage.verdicts()


@cell("single-active-failover")
def test_the_single_active_consumer_goes(stage: Stage) -> None:
    """The next consumer gets the deliveries as well, or only ready messages, and the others are nacked."""
    stage.declare(arguments={"x-single-active-consumer": ("bool", True)})
    stage.prefetch(2)
    stage.consume()
    heir = stage.connect()
    stage.consume(client=heir)
    stage.publish_many(3)
    stage.stored()
    assert ["1", "2"] == stage.deliveries()
    assert [] == stage.deliveries(heir)

    lose_connection(stage)

    is_light = stage.mode == LIGHT
    assert (["nack 1", "nack 2"] if is_light else []) == stage.verdicts()
    assert (["3"] if is_light else ["1*", "2*", "3"]) == stage.deliveries(heir)
    heir.send(make(Basic.Ack, 0, True))
    acked = ["ack 3"] if is_light else ["ack 1", "ack 2", "ack 3"]
    assert stage.late(*acked) == stage.verdicts()


@cell("confirm-timeout")
def test_a_number_is_open_for_too_long(tmp_path: Path, mode: str) -> None:
    """A number is nacked at its timeout, once; its message stays nevertheless."""
    stage = Stage(tmp_path, mode, confirm_timeout=60.0)
    stage.declare()
    stage.consume()
    stage.publish()
    assert ["1"] == stage.deliveries()
    wait(stage, stage.publisher, 30)
    stage.publish()
    wait(stage, stage.publisher, 28)
    assert [] == stage.verdicts()

    wait(stage, stage.publisher, 5)

    assert ["nack 1"] == stage.verdicts()
    assert (0, 2) == stage.counts()
    stage.ack(2)
    assert ["ack 2"] == stage.verdicts()
    assert (0 if stage.is_late else 1) == stage.written()
    stage.ack(1)
    assert [] == stage.verdicts()
    stage.end()
