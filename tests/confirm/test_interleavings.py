"""Every order of what can happen to a promised message, in one turn or in several, against a list.

A script is a handful of events; all its orders are played, and each with every way of cutting it into turns. The model
is a queue as a list: it knows nothing of promises, only when a message leaves and why.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product
from math import factorial
from typing import Any

import pytest
from doubles.fakes import Client, Node, basic_consume, publish_frames, queue_declare, set_policy

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Channel, Confirm, Queue, make
from leveret.broker.amqp.tables import Table

STANDARD, CONSUMER_ACK, LIGHT = "standard", "consumer-ack", "consumer-ack-light"
MODES = (STANDARD, CONSUMER_ACK, LIGHT)
NEXT = {STANDARD: CONSUMER_ACK, CONSUMER_ACK: LIGHT, LIGHT: CONSUMER_ACK}
"""The mode that each mode is changed to."""
TTL = 100
PREFETCH = 2
PUBLISHER, CONSUMER, ADMIN = 1, 2, 3
"""Channels, of one connection or of three."""


class Copy:
    """The model's view of a message."""

    def __init__(self, number: int, mode: str, born: int) -> None:
        self.number = number
        self.mode = mode
        self.born = born
        self.redelivered = False


class Model:
    """A queue that is a list. Within a turn acks come first, then arrivals, then deliveries."""

    def __init__(self, mode: str, *, dead_letters: bool) -> None:
        self.mode = mode
        self.dead_letters = dead_letters
        self.now = 0
        self.numbers = 0
        self.length: int | None = None
        self.counts_octets = False
        self.ready: list[Copy] = []
        self.unacked: dict[int, Copy] = {}
        self.tag = 0
        self.credit = PREFETCH
        self.consumed: set[int] = set()
        """Tags that count against the consumer's prefetch."""
        self.consumes = True
        self.deleted = False
        self.acks: list[int] = []
        self.inbox: list[Copy] = []
        self.verdicts: dict[int, bool] = {}
        self.deliveries: list[tuple[int, bool]] = []

    @property
    def effective_mode(self) -> str:
        needs_messages = self.dead_letters or self.counts_octets
        return CONSUMER_ACK if needs_messages and self.mode == LIGHT else self.mode

    def reconfigure(self) -> None:
        """Ready messages stop being light when the queue does."""
        if self.effective_mode != LIGHT:
            for copy in self.ready:
                if copy.mode == LIGHT:
                    copy.mode = CONSUMER_ACK

    def decide(self, copies: Sequence[Copy], *, ack: bool) -> None:
        for copy in copies:
            self.verdicts.setdefault(copy.number, ack)

    # -- what a client does --------------------------------------------------------------------------------------------

    def publish(self) -> None:
        self.numbers += 1
        copy = Copy(self.numbers, self.effective_mode, self.now)
        if self.deleted or copy.mode == STANDARD:
            self.decide([copy], ack=True)
        if not self.deleted:
            self.inbox.append(copy)

    def ack(self, tags: Sequence[int]) -> None:
        self.acks += tags

    def run(self) -> None:
        for tag in self.acks:
            self.consumed.discard(tag)
            self.decide([self.unacked.pop(tag)], ack=True)
        self.acks.clear()
        self.expire()
        self.shorten()
        self.ready += self.inbox
        self.inbox.clear()
        while self.consumes and self.ready and len(self.consumed) < self.credit:
            self.deliver(self.ready.pop(0))
            self.consumed.add(self.tag)
        self.shorten()

    def deliver(self, copy: Copy) -> None:
        self.tag += 1
        self.unacked[self.tag] = copy
        self.deliveries.append((copy.number, copy.redelivered))

    def leave(self, count: int) -> None:
        """Messages are discarded from the head; as dead letters they are safe."""
        self.decide(self.ready[:count], ack=self.dead_letters)
        del self.ready[:count]

    def expire(self) -> None:
        while self.ready and self.ready[0].born + TTL <= self.now:
            self.leave(1)

    def shorten(self) -> None:
        if self.length is not None:
            self.leave(max(0, len(self.ready) - self.length))

    def give_back(self, tags: Sequence[int]) -> None:
        for tag in tags:
            self.consumed.discard(tag)
        copies = [self.unacked.pop(tag) for tag in tags]
        lost = [copy for copy in copies if self.deleted or copy.mode == LIGHT]
        self.decide(lost, ack=False)
        for copy in copies:
            if copy not in lost:
                copy.redelivered = True
                self.ready.append(copy)
        self.ready.sort(key=lambda copy: copy.number)
        self.shorten()

    def purge(self) -> None:
        self.decide(self.ready, ack=False)
        self.ready.clear()

    def delete(self) -> None:
        self.purge()
        self.deleted = True
        self.consumes = False
        self.decide([copy for copy in self.unacked.values() if copy.mode == CONSUMER_ACK], ack=False)

    def get(self) -> None:
        if self.ready:
            self.deliver(self.ready.pop(0))


class World:
    """A broker with clients, where many scripts are played one after the other."""

    def __init__(self) -> None:
        self.node = Node()
        self.scripts = 0
        self.client = Client(self.node)
        self.client.send(make(Channel.Close, 200, "", 0, 0), PUBLISHER)  # each script opens it again
        for channel in (CONSUMER, ADMIN):
            self.client.send(Channel.Open(), channel)
        self.client.send(make(Basic.Qos, 0, PREFETCH, False), CONSUMER)
        self.client.send(queue_declare("dead"), ADMIN)
        self.client.sent()
        for mode in MODES:  # for all scripts: a policy is applied to all objects of the vhost
            self.policy(mode, f"{mode} .*", mode=mode)

    def policy(self, name: str, queue: str, *, mode: str, priority: int = 0) -> None:
        definition = {"confirm-mode": mode}
        policies = self.node.vhosts["/"].policies
        set_policy(policies, name, f"^{queue}$", definition, priority, operator=True)


class Script:
    """An order of events with its cuts."""

    def __init__(self, world: World, mode: str, *, dead_letters: bool, alone: bool) -> None:
        self.world = world
        world.scripts += 1
        self.name = f"{mode} {world.scripts}"
        self.model = Model(mode, dead_letters=dead_letters)
        self.verdicts: dict[int, bool] = {}
        self.confirmed_up_to = 0
        self.deliveries: list[tuple[int, bool]] = []
        self.octets = b""
        self.policy: dict[str, Any] = {}
        self.seen: dict[int, Copy] = {}
        self.channel_open = True
        self.publisher_open = True
        self.consumer_tag = True
        self.main = world.client
        self.publisher = Client(world.node) if alone else world.client
        arguments: Table = {"x-message-ttl": ("signedint", TTL)}
        if dead_letters:
            arguments |= {
                "x-dead-letter-exchange": ("longstr", ""),
                "x-dead-letter-routing-key": ("longstr", "dead"),
            }
        self.main.send(queue_declare(self.name, arguments=arguments), ADMIN)
        if not alone:
            self.main.send(Channel.Open(), PUBLISHER)
        self.publisher.send(make(Confirm.Select, False), PUBLISHER)
        self.main.send(basic_consume(self.name, "c"), CONSUMER)
        self.look()
        self.deliveries.clear()
        for _ in range(4):
            self.publish()
        self.end_turn()

    # -- turns -------------------------------------------------------------------------------------------------------

    def send(self, octets: bytes) -> None:
        self.octets += octets

    def end_read(self) -> None:
        """Receive the octets sent so far."""
        if self.octets:
            octets, self.octets = self.octets, b""
            self.main.connection.receive(octets)
            self.model.run()

    def end_turn(self) -> None:
        """Everything is worked off; what the clients see is what the model says."""
        self.end_read()
        self.world.node.run_turn()
        self.world.node.clock.run()
        self.model.run()
        self.look()
        self.seen = dict(self.model.unacked)
        assert self.model.deliveries == self.deliveries
        assert self.model.verdicts == self.verdicts

    def look(self) -> None:
        clients = {id(client): client for client in (self.main, self.publisher)}
        for client in clients.values():
            for channel, method, _, body in client.take():
                if method.name in {"Basic.Deliver", "Basic.GetOk"}:
                    self.deliveries.append((int(body), method.redelivered))
                elif method.name in {"Basic.Ack", "Basic.Nack"}:
                    assert channel == PUBLISHER
                    self.confirmed(
                        method.delivery_tag, multiple=method.multiple, ack=method.name == "Basic.Ack"
                    )
                else:
                    assert "Close" not in method.name or "CloseOk" in method.name, method.reply_text

    def confirmed(self, number: int, *, multiple: bool, ack: bool) -> None:
        numbers = [n for n in range(1, number) if n not in self.verdicts] if multiple else []
        for one in (*numbers, number):
            assert one not in self.verdicts
            self.verdicts[one] = ack

    # -- events ------------------------------------------------------------------------------------------------------

    def cold(self, method: Any, channel: int) -> None:
        """A method that is no publish and no ack: what came before it is worked off first."""
        self.send(encode_method(channel, method))
        self.model.run()

    def publish(self) -> None:
        if not self.publisher_open:
            return
        frames = publish_frames(self.name, b"%d" % (self.model.numbers + 1), channel=PUBLISHER)
        if self.publisher is self.main:
            self.send(frames)
        else:
            self.end_read()
            self.publisher.connection.receive(frames)
        self.model.publish()
        if self.publisher is not self.main:
            self.model.run()

    def oldest(self) -> list[int]:
        """The oldest delivery that the consumer has seen and not settled."""
        if not self.channel_open or not self.seen:
            return []
        tag = min(self.seen)
        del self.seen[tag]
        return [tag]

    def ack(self) -> None:
        for tag in self.oldest():
            self.send(encode_method(CONSUMER, make(Basic.Ack, tag, False)))
            self.model.ack([tag])

    def ack_all(self) -> None:
        if self.channel_open and self.seen:
            tags = sorted(self.seen)
            self.seen.clear()
            self.send(encode_method(CONSUMER, make(Basic.Ack, tags[-1], True)))
            self.model.ack(tags)

    def reject(self) -> None:
        for tag in self.oldest():
            self.cold(make(Basic.Reject, tag, False), CONSUMER)
            self.model.ack([tag])

    def requeue(self) -> None:
        for tag in self.oldest():
            self.cold(make(Basic.Reject, tag, True), CONSUMER)
            self.model.give_back([tag])

    def get(self) -> None:
        if self.channel_open and not self.model.deleted:
            self.cold(make(Basic.Get, 0, self.name, False), CONSUMER)
            self.model.get()

    def cancel(self) -> None:
        if self.channel_open and self.consumer_tag:
            self.consumer_tag = False
            self.cold(make(Basic.Cancel, "c", False), CONSUMER)
            self.model.consumes = False

    def close(self) -> None:
        """The consumer's channel is closed."""
        if self.channel_open:
            self.channel_open = False
            self.cold(make(Channel.Close, 200, "", 0, 0), CONSUMER)
            self.model.consumes = False
            self.model.give_back(sorted(self.model.unacked))

    def purge(self) -> None:
        if not self.model.deleted:
            self.cold(make(Queue.Purge, 0, self.name, False), ADMIN)
            self.model.purge()

    def delete(self) -> None:
        if not self.model.deleted:
            self.cold(make(Queue.Delete, 0, self.name, False, False, False), ADMIN)
            self.model.delete()

    def expire(self) -> None:
        """Time passes: what is ready now has expired."""
        self.end_read()
        node = self.world.node
        node.clock.now += TTL / 1000
        node.context.timers.run(node.wall_clock())
        self.model.now += TTL

    def follow(self, **definition: Any) -> None:
        """Add to the definition of the queue's policy."""
        self.end_read()
        self.policy |= {key.replace("_", "-"): value for key, value in definition.items()}
        set_policy(self.world.node.vhosts["/"].policies, "rules", f"^{self.name}$", self.policy)

    def overflow(self) -> None:
        """Limit the queue to one ready message."""
        self.follow(max_length=1)
        self.model.length = 1

    def octets_overflow(self) -> None:
        """Limit the queue to one octet, which is the size of a body."""
        self.follow(max_length_bytes=1)
        self.model.length = 1
        self.model.counts_octets = True
        self.model.reconfigure()

    def dead_letter(self) -> None:
        """Set a dead-letter exchange: messages that the queue discards are not lost."""
        self.follow(dead_letter_exchange="", dead_letter_routing_key="dead")
        self.model.dead_letters = True
        self.model.reconfigure()

    def change_mode(self) -> None:
        self.end_read()
        self.model.mode = NEXT[self.model.mode]
        self.model.reconfigure()
        self.world.policy("changed", self.name, mode=self.model.mode, priority=1)

    def lose_publisher(self) -> None:
        """Lose the publisher's connection, which has no other use; it has no verdicts after those it got."""
        self.end_turn()
        self.publisher_open = False
        self.publisher.connection.lost()
        self.model.verdicts = NeverMore(self.model.verdicts)

    # -- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The queue and the consumer go: every number that anybody waits for has its verdict."""
        self.end_turn()
        self.delete()
        self.end_turn()
        self.close()
        self.end_turn()
        if self.publisher_open:
            assert list(range(1, self.model.numbers + 1)) == sorted(self.verdicts)
            channel = self.publisher.connection.channels[PUBLISHER]
            assert channel.confirms is not None
            assert (0, set()) == (channel.confirms.unconfirmed_count, channel.confirms.held)
        if self.publisher is self.main:
            self.main.send(make(Channel.Close, 200, "", 0, 0), PUBLISHER)
        elif self.publisher_open:
            self.publisher.connection.lost()
        self.main.send(Channel.Open(), CONSUMER)
        self.main.send(make(Basic.Qos, 0, PREFETCH, False), CONSUMER)
        self.main.sent()
        policies = self.world.node.vhosts["/"].policies
        if self.policy:
            policies.clear("rules")


class NeverMore(dict[int, bool]):
    """Verdicts of a publisher that is gone."""

    def setdefault(self, number: int, default: bool = False) -> bool:
        return self.get(number, default)


def played(world: World, mode: str, events: Sequence[str], cuts: Sequence[bool], **how: bool) -> None:
    script = Script(world, mode, **how)
    for event, cut in zip(events, (*cuts, True), strict=True):
        getattr(script, event)()
        if cut:
            script.end_turn()
    script.finish()


def every_cut(count: int) -> list[tuple[bool, ...]]:
    """Every way of cutting so many events into turns."""
    return list(product((False, True), repeat=count - 1))


def play_all(
    world: World, mode: str, events: Sequence[str], ways: Sequence[Sequence[bool]] = (), **how: bool
) -> int:
    """Play a script in every order and with every cut, or those of `ways`; returns how often that was."""
    count = 0
    for order, cuts in product(permutations(events), ways or every_cut(len(events))):
        try:
            played(world, mode, order, cuts, **how)
        except BaseException as error:
            turns = " ".join(
                event + (" |" if cut else "") for event, cut in zip(order, (*cuts, True), strict=True)
            )
            error.add_note(f"{mode} {how}: {turns}")
            raise
        count += 1
    return count


RACES = (
    "delete", "expire", "purge", "close", "overflow", "octets_overflow", "dead_letter", "change_mode", "requeue",
    "reject", "publish", "get", "cancel",
)  # fmt: skip
"""Events that an ack may race with."""
UNKNOWN = {"octets_overflow", "requeue"}, {"octets_overflow", "close"}
"""A queue does not know the size of what was delivered before it had a limit."""
LONG = (
    ("ack", "publish", "overflow", "requeue", "delete"),
    ("ack", "requeue", "change_mode", "publish", "close"),
    ("ack_all", "get", "expire", "publish", "purge"),
    ("ack", "reject", "cancel", "change_mode", "delete"),
    ("ack", "requeue", "publish", "overflow", "get", "delete"),
)
LOSSES = (
    ("ack", "lose_publisher", "delete", "close"),
    ("ack", "lose_publisher", "expire", "purge"),
    ("ack_all", "lose_publisher", "overflow", "requeue"),
    ("reject", "lose_publisher", "publish", "change_mode"),
)


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> Iterator[World]:
    world = World()
    yield world
    assert [] == [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("dead_letters", [False, True], ids=["dropped", "dead-lettered"])
@pytest.mark.parametrize("mode", MODES)
def test_an_ack_races_with_any_two_events(world: World, mode: str, *, dead_letters: bool) -> None:
    """An ack and any two other events, in every order and every turn: one verdict for each number, and the right one."""
    for others in combinations(RACES, 2):
        if set(others) in UNKNOWN:
            continue
        assert 24 == play_all(world, mode, ("ack", *others), dead_letters=dead_letters, alone=False)


@pytest.mark.parametrize("events", LONG, ids=" ".join)
@pytest.mark.parametrize("mode", [CONSUMER_ACK, LIGHT])
def test_many_events_at_once(world: World, mode: str, events: Sequence[str]) -> None:
    """Many events in every order, in one turn, in one each, and cut in the middle, have the right verdicts."""
    cuts = len(events) - 1
    ways = [(False,) * cuts, (True,) * cuts, tuple(each == cuts // 2 for each in range(cuts))]
    count = play_all(world, mode, events, ways, dead_letters=False, alone=False)
    assert len(ways) * factorial(len(events)) == count


@pytest.mark.parametrize("events", LOSSES, ids=" ".join)
@pytest.mark.parametrize("mode", MODES)
def test_the_publisher_is_lost_meanwhile(world: World, mode: str, events: Sequence[str]) -> None:
    """A publisher that goes hears nothing any more, and consumers notice nothing."""
    assert 192 == play_all(world, mode, events, dead_letters=False, alone=True)
