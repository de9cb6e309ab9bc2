"""Corners between the cells: events that meet, and channels that share things."""

import pytest
from confirm_table.cells import ACK, DLX, LATE, LIGHT, MODES, TTL, Scenario
from doubles.fakes import set_policy

from leveret.broker.amqp.commands import Basic, Channel, Confirm, make
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.queue import Queue
from leveret.confirm.consumer_ack import ConsumerAckQueue

modes = pytest.mark.parametrize("mode", MODES)
late_modes = pytest.mark.parametrize("mode", LATE)
light = pytest.mark.parametrize("mode", [LIGHT])


def set_terms(scenario: Scenario, **definition: object) -> None:
    asked = {key.replace("_", "-"): value for key, value in definition.items()}
    set_policy(scenario.node.vhosts["/"].policies, "p", "^q$", asked)
    scenario.node.run_turn()


@light
def test_a_dead_letter_exchange_comes_later(scenario: Scenario) -> None:
    """A message ready when its queue can no longer be light is dead-lettered like any other."""
    scenario.declare("dead")
    scenario.declare()
    scenario.publish_many(3)

    set_terms(scenario, dead_letter_exchange="", dead_letter_routing_key="dead", max_length=1)

    assert [] == scenario.verdicts()
    assert ((1, 0), (2, 0)) == (scenario.counts(), scenario.counts("dead"))
    scenario.commit()
    assert ["ack 1", "ack 2"] == scenario.verdicts()
    assert ["3"] == scenario.get()
    assert ["ack 3"] == scenario.verdicts()


@light
@pytest.mark.parametrize(
    "definition", [{"max_length_bytes": 1}, {"max_length_bytes": 1, "delivery_limit": 1}]
)
def test_a_limit_of_octets_comes_later(scenario: Scenario, definition: dict[str, object]) -> None:
    """A message ready when its queue can no longer be light is nacked if it is dropped, else consumed."""
    scenario.declare()
    scenario.publish_many(3)

    set_terms(scenario, **definition)

    assert ["nack 1", "nack 2"] == scenario.verdicts()
    assert (1, 0) == scenario.counts()
    scenario.consume()
    assert ["3"] == scenario.deliveries()
    scenario.ack(1)
    assert ["ack 3"] == scenario.verdicts()
    assert (0, 0) == scenario.counts()


@light
def test_limits_come_after_deliveries(scenario: Scenario) -> None:
    """A message delivered while its queue was light is decided as it was then, when no queue keeps it."""
    scenario.declare("dead")
    scenario.declare()
    scenario.consume()
    scenario.delivered(4)

    set_terms(scenario, dead_letter_exchange="", dead_letter_routing_key="dead", delivery_limit=0)

    scenario.nack(1, requeue=False)
    assert ["ack 1"] == scenario.verdicts()
    scenario.nack(2, requeue=True)
    assert ["nack 2"] == scenario.verdicts()
    scenario.ack(3)
    assert ["ack 3"] == scenario.verdicts()
    scenario.consumer.connection.lost()
    scenario.node.run_turn()
    assert ["nack 4"] == scenario.verdicts()
    assert ((0, 0), (0, 0)) == (scenario.counts(), scenario.counts("dead"))


@modes
def test_dead_letters_that_are_not_in_memory(scenario: Scenario) -> None:
    """Messages that expire after memory was short are read, moved and confirmed."""
    scenario.declare("dead")
    scenario.declare(arguments=DLX | TTL)
    scenario.publish_many(400)
    scenario.node.vhosts["/"].queues["q"].store.set_ram_target(0, 0)
    scenario.stored()

    scenario.node.pass_time(200)
    for _ in range(10):
        scenario.node.read()
    scenario.commit()

    assert ((0, 0), (400, 0)) == (scenario.counts(), scenario.counts("dead"))
    assert scenario.late(*[f"ack {number}" for number in range(1, 401)]) == scenario.verdicts()


@late_modes
def test_given_back_after_its_time(scenario: Scenario) -> None:
    """A message that comes back to its queue when its time is over is given up by the broker."""
    scenario.declare(arguments=TTL)
    scenario.consume()
    scenario.delivered()
    scenario.node.pass_time(200)
    assert [] == scenario.verdicts()

    scenario.nack(1, requeue=True)

    assert ["nack 1"] == scenario.verdicts()
    assert [] == scenario.deliveries()


@late_modes
def test_channels_of_one_connection(scenario: Scenario) -> None:
    """Each channel has its own way for the same message: one wants confirms, the other has it written."""
    scenario.declare()
    scenario.publisher.send(Channel.Open(), channel=2)
    assert ["2 channel.open-ok"] == [line.split(" channel_id")[0] for line in scenario.publisher.sent()]

    for _ in range(2):
        scenario.publish()
        scenario.publisher.publish("q", b"w", channel=2, delivery_mode=2)

    assert 0 < scenario.written()
    assert [] == scenario.verdicts()
    scenario.consume()
    assert ["1", "w", "2", "w"] == scenario.deliveries()
    scenario.ack(0, multiple=True)
    assert ["ack 1", "ack 2"] == scenario.verdicts()


@late_modes
def test_a_channel_that_is_opened_anew(scenario: Scenario) -> None:
    """Verdicts on messages of an earlier channel of the same number are dropped."""
    scenario.declare()
    scenario.publish_many(3)
    client = scenario.publisher
    client.send(make(Channel.Close, 200, "", 0, 0))
    client.send(Channel.Open())
    client.ask(Confirm.Select(False))
    client.publish("q", b"new", delivery_mode=2)
    scenario.published = 1
    scenario.consume()
    assert ["1", "2", "3", "new"] == scenario.deliveries()

    scenario.ack(3, multiple=True)
    assert [] == scenario.verdicts()
    scenario.ack(4)

    assert ["ack 1"] == scenario.verdicts()


@late_modes
def test_consumers_of_both_kinds(scenario: Scenario) -> None:
    """A consumer without acks answers at once for what it gets, beside one that takes its time."""
    scenario.declare()
    scenario.prefetch(1)
    scenario.consume()
    other = scenario.connect()
    scenario.consume(client=other, no_ack=True)

    scenario.publish_many(4)

    assert ["ack 2", "ack 3", "ack 4"] == scenario.verdicts()
    assert (["1"], ["2", "3", "4"]) == (scenario.deliveries(), scenario.deliveries(other))
    scenario.ack(1)
    assert ["ack 1"] == scenario.verdicts()


@late_modes
def test_no_consumer_has_more_than_it_asked_for(scenario: Scenario) -> None:
    """Prefetch counts what the queue may not know of any more."""
    scenario.declare()
    scenario.prefetch(2)
    scenario.consume()
    scenario.publish_many(6)
    assert ["1", "2"] == scenario.deliveries()
    assert (4, 2) == scenario.counts()

    scenario.ack(1)
    assert ["3"] == scenario.deliveries()
    scenario.nack(2, requeue=False)
    assert ["4"] == scenario.deliveries()
    scenario.nack(3, requeue=True)
    assert (["3*"] if scenario.mode == ACK else ["5"]) == scenario.deliveries()

    assert (["ack 1", "ack 2"] + ["nack 3"] * (scenario.mode == LIGHT)) == scenario.verdicts()
    scenario.consumer.send(make(Basic.Cancel, "c-q", False))
    scenario.nack(0, requeue=False, multiple=True)
    while scenario.get():
        pass
    rest = [3, 4, 5, 6] if scenario.mode == ACK else [4, 5, 6]
    assert [f"ack {number}" for number in rest] == scenario.verdicts()


@light
@pytest.mark.parametrize("is_ready", [True, False])
def test_an_error_tears_a_delivery_from_its_channel(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, is_ready: bool
) -> None:
    """A message that no channel has after an error is nacked; one that a channel has waits for its verdict."""
    scenario.declare()
    if is_ready:
        scenario.publish()
    with monkeypatch.context() as patched:
        patched.setattr(Consumer, "deliver", _broken)
        scenario.consume()
        if not is_ready:
            scenario.publish()

    assert ["nack 1"] == scenario.verdicts()
    assert (0, 0) == scenario.counts()
    scenario.publish()
    with monkeypatch.context() as patched:
        patched.setattr(Queue, "take_in", _broken)
        scenario.publish()
    assert ["nack 3"] == scenario.verdicts()
    assert (0, 1) == scenario.counts()
    with monkeypatch.context() as patched:
        patched.setattr(ConsumerAckQueue, "ack", _broken)
        scenario.ack(1)
    assert ["nack 2"] == scenario.verdicts()
    assert (0, 0) == scenario.counts()


def _broken(*_args: object, **_options: object) -> None:
    raise RuntimeError("a bug")
