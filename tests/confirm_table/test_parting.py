"""Cells of the table: consumers and publishers who go, or are not there."""

from collections.abc import Callable
from pathlib import Path

from confirm_table.cells import LIGHT, Scenario, cell
from doubles.fakes import Client

from leveret.broker.amqp.commands import Basic, Channel, make

MINUTE = 60_000


def wait(scenario: Scenario, client: Client, seconds: int) -> None:
    """Let time pass in which a connection is looked at."""
    for _ in range(seconds):
        scenario.node.pass_time(1000)
        client.connection.close_overdue(scenario.node.now())
        scenario.node.run_turn()


def close_channel(scenario: Scenario) -> None:
    scenario.consumer.send(make(Channel.Close, 200, "", 0, 0))


def lose_connection(scenario: Scenario) -> None:
    scenario.consumer.connection.lost()
    scenario.node.run_turn()


def time_out(scenario: Scenario) -> None:
    """The consumer does not ack in time, and is cancelled."""
    wait(scenario, scenario.consumer, MINUTE // 1000 + 3)
    assert scenario.consumer.sent()[0].startswith("1 basic.cancel")


ENDS: dict[str, Callable[[Scenario], None]] = {
    "channel-closed": close_channel,
    "connection-lost": lose_connection,
    "consumer-timeout": time_out,
}


@cell(*ENDS)
def test_a_consumer_that_is_gone(scenario: Scenario, event: str) -> None:
    """A gone consumer's unacked messages go to the next one and are waited for, or nobody has them and they are nacked."""
    scenario.declare(arguments={"x-consumer-timeout": ("signedint", MINUTE)})
    scenario.prefetch(2)
    scenario.consume()
    scenario.publish_many(3)
    scenario.stored()
    assert ["1", "2"] == scenario.deliveries()

    ENDS[event](scenario)

    is_light = scenario.mode == LIGHT
    assert (["nack 1", "nack 2"] if is_light else []) == scenario.verdicts()
    assert (1 if is_light else 3, 0) == scenario.counts()
    other = scenario.connect()
    scenario.consume(client=other)
    assert (["3"] if is_light else ["1*", "2*", "3"]) == scenario.deliveries(other)
    other.send(make(Basic.Ack, 0, True))
    acked = ["ack 3"] if is_light else ["ack 1", "ack 2", "ack 3"]
    assert scenario.late(*acked) == scenario.verdicts()


@cell("basic-cancel")
def test_a_consumer_that_is_cancelled(scenario: Scenario) -> None:
    """A cancelled consumer's deliveries stay with its channel, which may still ack them."""
    scenario.declare()
    scenario.consume()
    scenario.delivered(2)

    scenario.consumer.send(make(Basic.Cancel, "c-q", False))

    assert [] == scenario.verdicts()
    assert (0, 2) == scenario.counts()
    scenario.ack(1)
    assert scenario.late("ack 1") == scenario.verdicts()
    scenario.nack(2, requeue=False)
    assert scenario.late("ack 2") == scenario.verdicts()


@cell("last-consumer-cancelled")
def test_the_last_consumer_of_an_auto_delete_queue(scenario: Scenario) -> None:
    """The queue goes: what is ready has no verdict any more, what is delivered only where its channel knows of it."""
    scenario.declare(auto_delete=True)
    scenario.prefetch(1)
    scenario.consume()
    scenario.publish_many(2)
    scenario.stored()

    scenario.consumer.send(make(Basic.Cancel, "c-q", False))

    assert "q" not in scenario.node.vhosts["/"].queues
    assert (
        ["nack 2"] if scenario.mode == LIGHT else scenario.late("nack 1", "nack 2")
    ) == scenario.verdicts()
    scenario.ack(1)
    assert (["ack 1"] if scenario.mode == LIGHT else []) == scenario.verdicts()


@cell("publisher-gone")
def test_a_publisher_that_is_gone(scenario: Scenario) -> None:
    """A gone publisher's messages stay and are delivered, in their mode, without a verdict."""
    scenario.declare()
    scenario.publish_many(2)

    scenario.publisher.connection.lost()
    scenario.node.run_turn()

    assert (0 if scenario.is_late else 1) == scenario.written()
    scenario.consume()
    assert ["1", "2"] == scenario.deliveries()
    scenario.ack(1)
    scenario.nack(2, requeue=True)
    assert ([] if scenario.mode == LIGHT else ["2*"]) == scenario.deliveries()
    scenario.left_open = [1, 2]


@cell("no-consumers")
def test_nobody_consumes(scenario: Scenario) -> None:
    """The disk answers, or the publisher waits until a consumer comes, however late that is."""
    scenario.declare()
    scenario.publish_many(3)
    scenario.stored()

    scenario.node.pass_time(3_600_000)

    assert [] == scenario.verdicts()
    assert (3, 0) == scenario.counts()
    scenario.consume()
    assert ["1", "2", "3"] == scenario.deliveries()
    scenario.ack(3, multiple=True)
    assert scenario.late("ack 1", "ack 2", "ack 3") == scenario.verdicts()


@cell("single-active-failover")
def test_the_single_active_consumer_goes(scenario: Scenario) -> None:
    """The next consumer gets the deliveries as well, or only ready messages, and the others are nacked."""
    scenario.declare(arguments={"x-single-active-consumer": ("bool", True)})
    scenario.prefetch(2)
    scenario.consume()
    heir = scenario.connect()
    scenario.consume(client=heir)
    scenario.publish_many(3)
    scenario.stored()
    assert ["1", "2"] == scenario.deliveries()
    assert [] == scenario.deliveries(heir)

    lose_connection(scenario)

    is_light = scenario.mode == LIGHT
    assert (["nack 1", "nack 2"] if is_light else []) == scenario.verdicts()
    assert (["3"] if is_light else ["1*", "2*", "3"]) == scenario.deliveries(heir)
    heir.send(make(Basic.Ack, 0, True))
    acked = ["ack 3"] if is_light else ["ack 1", "ack 2", "ack 3"]
    assert scenario.late(*acked) == scenario.verdicts()


@cell("confirm-timeout")
def test_a_number_is_open_for_too_long(tmp_path: Path, mode: str) -> None:
    """A number is nacked at its timeout, once; its message stays nevertheless."""
    scenario = Scenario(tmp_path, mode, confirm_timeout=60.0)
    scenario.declare()
    scenario.consume()
    scenario.publish()
    assert ["1"] == scenario.deliveries()
    wait(scenario, scenario.publisher, 30)
    scenario.publish()
    wait(scenario, scenario.publisher, 28)
    assert [] == scenario.verdicts()

    wait(scenario, scenario.publisher, 5)

    assert ["nack 1"] == scenario.verdicts()
    assert (0, 2) == scenario.counts()
    scenario.ack(2)
    assert ["ack 2"] == scenario.verdicts()
    assert (0 if scenario.is_late else 1) == scenario.written()
    scenario.ack(1)
    assert [] == scenario.verdicts()
    scenario.end()
