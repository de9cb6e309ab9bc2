"""A persistent message that dies, its dead letter, and commits that work or find no room: every order, in all modes."""

from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path

import pytest
from doubles.fakes import Client, DiskNode, queue_declare, set_policy

from leveret.broker.amqp.commands import Basic, Channel, Confirm, Queue, make
from leveret.broker.amqp.tables import Table

STANDARD, CONSUMER_ACK, LIGHT = "standard", "consumer-ack", "consumer-ack-light"
MODES = (STANDARD, CONSUMER_ACK, LIGHT)
TTL = 100
PUBLISHER, OTHER = 1, 2
"""Numbers of the channels."""
NOWHERE, NOTED, WRITTEN, GONE = "nowhere", "noted", "written", "gone"


class Model:
    """Model of where the message and its dead letter are."""

    def __init__(self, mode: str) -> None:
        self.verdict: bool | None = None
        self.original = NOTED if mode == STANDARD else NOWHERE
        self.letter = NOWHERE
        self.is_here = True

    def decide(self, *, ack: bool) -> None:
        if self.verdict is None:
            self.verdict = ack

    def die(self) -> None:
        if self.is_here:
            self.is_here = False
            self.original = GONE
            self.letter = NOTED

    def commit(self) -> None:
        if NOTED in {self.original, self.letter}:
            self.decide(ack=True)
        self.original = WRITTEN if self.original == NOTED else self.original
        self.letter = WRITTEN if self.letter == NOTED else self.letter

    def fail(self) -> None:
        """Data that have to be written stay noted, but a publisher that waits for them is nacked."""
        if NOTED in {self.original, self.letter}:
            self.decide(ack=False)

    def take(self) -> None:
        """The dead letter is consumed: it need not be written any more."""
        if self.letter in {NOTED, WRITTEN}:
            self.letter = GONE
            self.decide(ack=True)


class World:
    """One broker and one client; each script has a queue of its own and one for its dead letters."""

    def __init__(self, node: DiskNode) -> None:
        self.node = node
        self.client = Client(node)
        self.client.send(make(Channel.Close, 200, "", 0, 0), PUBLISHER)
        self.client.send(Channel.Open(), OTHER)
        self.client.sent()
        self.scripts = 0

    def begin(self, mode: str, death: str) -> None:
        """Publish the message; `death` is the event that it dies of."""
        self.scripts += 1
        self.node.set_alarm("")  # of a script that found no room; until then nothing is published
        self.name, self.dead = f"q{self.scripts}", f"dead{self.scripts}"
        arguments: Table = {
            "x-confirm-mode": ("longstr", mode),
            "x-dead-letter-exchange": ("longstr", ""),
            "x-dead-letter-routing-key": ("longstr", self.dead),
            "x-message-ttl": ("signedint", TTL),
        }
        standard: Table = {"x-confirm-mode": ("longstr", STANDARD)}
        for name, table in ((self.name, arguments), (self.dead, standard)):
            self.client.send(queue_declare(name, durable=True, arguments=table), OTHER)
            self.node.commit()
        self.client.send(Channel.Open(), PUBLISHER)
        self.client.send(make(Confirm.Select, False), PUBLISHER)
        self.client.sent()
        self.model = Model(mode)
        self.outcomes: list[bool] = []
        self.client.publish(self.name, b"1", channel=PUBLISHER, delivery_mode=2)
        self.tag = 0
        if death == "reject":
            self.client.send(make(Basic.Get, 0, self.name, False), OTHER)
        self.check()

    def check(self) -> None:
        for item in self.client.take():
            if item.method.name in {"Basic.Ack", "Basic.Nack"}:
                assert (PUBLISHER, 1) == (item.channel, item.method.delivery_tag)
                self.outcomes.append(item.method.name == "Basic.Ack")
            elif item.method.name == "Basic.GetOk":
                self.tag = item.method.delivery_tag
            else:
                assert "Close" not in item.method.name

        assert ([] if self.model.verdict is None else [self.model.verdict]) == self.outcomes

    # -- events -----------------------------------------------------------------------------------------------------

    def expire(self) -> None:
        self.node.pass_time(TTL)
        self.model.die()

    def overflow(self) -> None:
        set_policy(self.node.vhosts["/"].policies, "none", f"^{self.name}$", {"max-length": 0})
        self.node.run_turn()
        self.model.die()

    def reject(self) -> None:
        self.client.send(make(Basic.Reject, self.tag, False), OTHER)
        self.model.die()

    def commit(self) -> None:
        self.node.commit()
        self.model.commit()

    def fail(self) -> None:
        self.node.fail()
        self.model.fail()

    def take(self) -> None:
        self.client.send(make(Basic.Get, 0, self.dead, True), OTHER)
        self.model.take()

    def end(self) -> None:
        """Everything has its verdict, and the disk has nothing of it."""
        if self.model.is_here and self.tag:
            self.reject()
        elif self.model.is_here:
            self.expire()
        self.check()
        self.commit()
        self.check()
        assert 1 == len(self.outcomes)
        self.client.send(make(Channel.Close, 200, "", 0, 0), PUBLISHER)
        for name in (self.name, self.dead):
            self.client.send(make(Queue.Delete, 0, name, False, False, False), OTHER)
            self.node.commit()
        self.client.sent()


@pytest.fixture
def world(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[World]:
    node = DiskNode(tmp_path / "data")
    yield World(node)
    node.disk.close()
    assert [] == [record.getMessage() for record in caplog.records if record.exc_info]


def play(world: World, mode: str, death: str, order: Sequence[str]) -> None:
    world.begin(mode, death)
    try:
        for event in order:
            getattr(world, event)()
            world.check()
        world.end()
    except BaseException as error:
        error.add_note(f"{mode}: {' '.join(order)}")
        raise


@pytest.mark.parametrize("death", ["expire", "overflow", "reject"])
@pytest.mark.parametrize("mode", MODES)
def test_the_dead_letter_of_an_awaited_message(world: World, mode: str, death: str) -> None:
    """A dead letter is an ack when it is on disk or consumed, and a nack when it finds no room before that."""
    scripts = {
        *permutations((death, "commit", "fail", "take")),
        *permutations((death, "fail", "fail", "commit", "take")),
    }
    for order in sorted(scripts):
        play(world, mode, death, order)
