"""Corners between the cells: events that meet, and channels that share things."""

import pytest
from confirm_table.cells import ACK, DLX, LATE, LIGHT, MODES, TTL, Stage

from leveret.broker.amqp.commands import Basic, Channel, Confirm, make
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.queue import Queue
from leveret.confirm.consumer_ack import ConsumerAckQueue

modes = pytest.mark.parametrize("mode", MODES)
late_modes = pytest.mark.parametrize("mode", LATE)
light = pytest.mark.parametrize("mode", [LIGHT])


def set_policy(stage: Stage, **definition: object) -> None:
    """Set a policy for the queue."""
    asked = {key.replace("_", "-"): value for key, value in definition.items()}
    stage.node.vhosts["/"].policies.set("p", "^q$", asked)
    stage.node.run_turn()


@light
def test_a_dead_letter_exchange_comes_later(stage: Stage) -> None:
    """A message ready when its queue can no longer be light is dead-lettered like any other."""
    stage.declare("dead")
    stage.declare()
    stage.publish_many(3)

    set_policy(stage, dead_letter_exchange="", dead_letter_routing_key="dead", max_length=1)

    assert [] == stage.verdicts()
    assert ((1, 0), (2, 0)) == (stage.counts(), stage.counts("dead"))
    stage.commit()
    assert ["ack 1", "ack 2"] == stage.verdicts()
    assert ["3"] == stage.get()
    assert ["ack 3"] == stage.verdicts()


@light
@pytest.mark.parametrize(
    "definition", [{"max_length_bytes": 1}, {"max_length_bytes": 1, "delivery_limit": 1}]
)
def test_a_limit_of_octets_comes_later(stage: Stage, definition: dict[str, object]) -> None:
    """A message ready when its queue can no longer be light is nacked if it is dropped, else consumed."""
    stage.declare()
    stage.publish_many(3)

    set_policy(stage, **definition)

    assert ["nack 1", "nack 2"] == stage.verdicts()
    assert (1, 0) == stage.counts()
    stage.consume()
    assert ["3"] == stage.deliveries()
    stage.ack(1)
    assert ["ack 3"] == stage.verdicts()
    assert (0, 0) == stage.counts()


@light
def test_limits_come_after_deliveries(stage: Stage) -> None:
    """A message delivered while its queue was light is decided as it was then, when no queue keeps it."""
    stage.declare("dead")
    stage.declare()
    stage.consume()
    stage.delivered(4)

    set_policy(stage, dead_letter_exchange="", dead_letter_routing_key="dead", delivery_limit=0)

    stage.nack(1, requeue=False)
    assert ["ack 1"] == stage.verdicts()
    stage.nack(2, requeue=True)
    assert ["nack 2"] == stage.verdicts()
    stage.ack(3)
    assert ["ack 3"] == stage.verdicts()
    stage.consumer.connection.lost()
    stage.node.run_turn()
    assert ["nack 4"] == stage.verdicts()
    assert ((0, 0), (0, 0)) == (stage.counts(), stage.counts("dead"))


@modes
def test_dead_letters_that_are_not_in_memory(stage: Stage) -> None:
    """Messages that expire after memory was short are read, moved and confirmed."""
    stage.declare("dead")
    stage.declare(arguments=DLX | TTL)
    stage.publish_many(400)
    stage.node.vhosts["/"].queues["q"].store.set_ram_target(0, 0)
    stage.stored()

    stage.node.pass_time(200)
    for _ in range(10):
        stage.node.read()
    stage.commit()

    assert ((0, 0), (400, 0)) == (stage.counts(), stage.counts("dead"))
    assert stage.late(*[f"ack {number}" for number in range(1, 401)]) == stage.verdicts()


@late_modes
def test_given_back_after_its_time(stage: Stage) -> None:
    """A message that comes back to its queue when its time is over is given up by the broker."""
    stage.declare(arguments=TTL)
    stage.consume()
    stage.delivered()
    stage.node.pass_time(200)
    assert [] == stage.verdicts()

    stage.nack(1, requeue=True)

    assert ["nack 1"] == stage.verdicts()
    assert [] == stage.deliveries()


@late_modes
def test_channels_of_one_connection(stage: Stage) -> None:
    """Each channel has its own way for the same message: one wants confirms, the other has it written."""
    stage.declare()
    stage.publisher.send(Channel.Open(), channel=2)
    assert ["2 channel.open-ok"] == [line.split(" channel_id")[0] for line in stage.publisher.sent()]

    for _ in range(2):
        stage.publish()
        stage.publisher.publish("q", b"w", channel=2, delivery_mode=2)

    assert 0 < stage.written()
    assert [] == stage.verdicts()
    stage.consume()
    assert ["1", "w", "2", "w"] == stage.deliveries()
    stage.ack(0, multiple=True)
    assert ["ack 1", "ack 2"] == stage.verdicts()


@late_modes
def test_a_channel_that_is_opened_anew(stage: Stage) -> None:
    """Verdicts on messages of an earlier channel of the same number are dropped."""
    stage.declare()
    stage.publish_many(3)
    client = stage.publisher
    client.send(make(Channel.Close, 200, "", 0, 0))
    client.send(Channel.Open())
    client.ask(Confirm.Select(False))
    client.publish("q", b"new", delivery_mode=2)
    stage.published = 1
    stage.consume()
    assert ["1", "2", "3", "new"] == stage.deliveries()

    stage.ack(3, multiple=True)
    assert [] == stage.verdicts()
    stage.ack(4)

    assert ["ack 1"] == stage.verdicts()


@late_modes
def test_consumers_of_both_kinds(stage: Stage) -> None:
    """A consumer without acks answers at once for what it gets, beside one that takes its time."""
    stage.declare()
    stage.prefetch(1)
    stage.consume()
    other = stage.connect()
    stage.consume(client=other, no_ack=True)

    stage.publish_many(4)

    assert ["ack 2", "ack 3", "ack 4"] == stage.verdicts()
    assert (["1"], ["2", "3", "4"]) == (stage.deliveries(), stage.deliveries(other))
    stage.ack(1)
    assert ["ack 1"] == stage.verdicts()


@late_modes
def test_no_consumer_has_more_than_it_asked_for(stage: Stage) -> None:
    """Prefetch counts what the queue may not know of any more."""
    stage.declare()
    stage.prefetch(2)
    stage.consume()
    stage.publish_many(6)
    assert ["1", "2"] == stage.deliveries()
    assert (4, 2) == stage.counts()

    stage.ack(1)
    assert ["3"] == stage.deliveries()
    stage.nack(2, requeue=False)
    assert ["4"] == stage.deliveries()
    stage.nack(3, requeue=True)
    assert (["3*"] if stage.mode == ACK else ["5"]) == stage.deliveries()

    assert (["ack 1", "ack 2"] + ["nack 3"] * (stage.mode == LIGHT)) == stage.verdicts()
    stage.consumer.send(make(Basic.Cancel, "c-q", False))
    stage.nack(0, requeue=False, multiple=True)
    while stage.get():
        pass
    rest = [3, 4, 5, 6] if stage.mode == ACK else [4, 5, 6]
    assert [f"ack {number}" for number in rest] == stage.verdicts()


@light
@pytest.mark.parametrize("is_ready", [True, False])
def test_an_error_tears_a_delivery_from_its_channel(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, is_ready: bool
) -> None:
    """A message that no channel has after an error is nacked; one that a channel has waits for its verdict."""
    stage.declare()
    if is_ready:
        stage.publish()
    with monkeypatch.context() as patched:
        patched.setattr(Consumer, "deliver", _broken)
        stage.consume()
        if not is_ready:
            stage.publish()

    assert ["nack 1"] == stage.verdicts()
    assert (0, 0) == stage.counts()
    stage.publish()
    with monkeypatch.context() as patched:
        patched.setattr(Queue, "take_in", _broken)
        stage.publish()
    assert ["nack 3"] == stage.verdicts()
    assert (0, 1) == stage.counts()
    with monkeypatch.context() as patched:
        patched.setattr(ConsumerAckQueue, "ack", _broken)
        stage.ack(1)
    assert ["nack 2"] == stage.verdicts()
    assert (0, 0) == stage.counts()


def _broken(*_args: object, **_options: object) -> None:
    raise RuntimeError("a bug")
