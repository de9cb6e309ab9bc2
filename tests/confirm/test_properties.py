"""The short form of `make campaign NAME=confirm-properties`, and whether its ledger objects to what no honest broker does."""

from pathlib import Path

import pytest
from promises.ledger import Book, Channel, Ledger, Published, make_body
from promises.walk import CONSUMER_ACK, LIGHT, MODES, STANDARD, run

MESSAGES = 2000


@pytest.mark.parametrize("mode", MODES)
def test_a_short_walk(mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every number has one verdict, the right one, and none is left, after any acts of publishers and consumers."""
    ledger = run(tmp_path, mode, 1, MESSAGES, checked=True)
    assert [] == ledger.violations
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [] == [text for text in errors if not text.endswith("partial tx completion")]
    counts = ledger.counts
    confirmed = sum(channel.seq for channel in ledger.channels.values() if channel.confirms)
    assert confirmed == counts["ack"] + counts["nack"] + counts["unheard"]
    assert 0 == counts["outstanding"]
    assert min(counts["ack"], counts["nack"], counts["given back"], counts["dead letters"]) > 40


@pytest.mark.parametrize("mode", MODES)
def test_a_short_walk_with_a_timeout(mode: str, tmp_path: Path) -> None:
    """A number open for too long is nacked, no sooner and hardly later, and later outcomes are not reported."""
    ledger = run(tmp_path, mode, 2, MESSAGES, timeout=0.5)
    assert [] == ledger.violations
    assert 0 == ledger.counts["outstanding"]
    assert ledger.counts["overdue"] > 10


class World:
    """A ledger with a queue and a publisher."""

    def __init__(self, mode: str = CONSUMER_ACK, **queue: bool) -> None:
        self.ledger = Ledger()
        self.book = Book("q", mode=mode, **queue)
        self.channel = self.ledger.open_channel(confirms=True)

    def publish(self, *, books: list[Book] | None = None, mandatory: bool = False) -> Published:
        books = [self.book] if books is None else books
        message = self.ledger.published(
            self.channel, books, persistent=True, mandatory=mandatory, expires=False
        )
        self.ledger.sent(message.copies.values())
        return message

    def confirmed(self, number: int, *, ack: bool = True, multiple: bool = False) -> None:
        self.ledger.verdict(self.channel, number, multiple=multiple, ack=ack)

    def deliver(self, seq: int, channel: Channel | None = None, *, redelivered: bool = False):
        body = make_body(channel or self.channel, seq, 3)
        return self.ledger.delivered(self.book, "c", body, redelivered=redelivered)

    @property
    def oracles(self) -> list[str]:
        return [text.partition(":")[0] for text in self.ledger.violations]


def test_an_honest_broker_is_not_objected_to() -> None:
    """An ack after the consumer's, a nack after a purge, and nothing else."""
    world = World()
    for _ in range(3):
        world.publish()
    world.ledger.settled(world.deliver(1))
    world.confirmed(1)
    world.ledger.settled(world.deliver(2))
    world.ledger.purged(world.book)
    world.confirmed(2)
    world.confirmed(3, ack=False)
    world.ledger.check_open()
    world.ledger.check_end()
    world.ledger.check_empty(world.book)

    assert [] == world.oracles


def test_an_ack_without_a_consumer() -> None:
    """An ack is a violation if no consumer has acked the message."""
    world = World()
    world.publish()
    world.deliver(1)
    world.confirmed(1)

    assert ["ack"] == world.oracles


def test_an_ack_before_the_commit() -> None:
    """A standard queue has to have it on disk."""
    world = World(STANDARD)
    world.publish()
    world.confirmed(1)
    world.publish()
    world.ledger.commits += 1
    world.confirmed(2)

    assert ["ack"] == world.oracles


def test_an_ack_for_a_dead_letter_that_never_comes() -> None:
    """A message that no consumer has and that is no dead letter is lost."""
    world = World(dies=True)
    for _ in range(2):
        world.publish()
    world.confirmed(2, multiple=True)
    world.ledger.dead("q", make_body(world.channel, 1, 0))
    world.ledger.check_end()

    assert ["ack"] == world.oracles


def test_a_nack_of_what_was_consumed() -> None:
    """A broker that loses nothing does not nack."""
    world = World()
    world.publish()
    world.ledger.settled(world.deliver(1))
    world.confirmed(1, ack=False)
    world.publish()
    world.confirmed(2, ack=False)

    assert ["nack", "nack"] == world.oracles


@pytest.mark.parametrize("mode", [CONSUMER_ACK, LIGHT])
def test_a_second_verdict(mode: str) -> None:
    """A second verdict for a number is a violation."""
    world = World(mode)
    world.publish()
    world.ledger.purged(world.book)
    world.confirmed(1, ack=False)
    world.confirmed(1, ack=False)

    assert ["verdict"] == world.oracles


def test_a_number_that_is_forgotten() -> None:
    """A settled publish has its verdict in that turn; an unsettled one has it in the end."""
    world = World()
    world.publish()
    world.ledger.settled(world.deliver(1))
    world.ledger.check_open()
    world.ledger.check_end()

    assert ["late", "verdict"] == world.oracles


def test_a_timeout() -> None:
    """An old number may be nacked, a young one may not, and one that is too old has to be."""
    world = World()
    world.ledger = Ledger(2.0, 0.5)
    world.channel = world.ledger.open_channel(confirms=True)
    for _ in range(2):
        world.publish()
        world.ledger.now += 1.5
    world.confirmed(2, ack=False)
    assert ["nack"] == world.oracles
    world.ledger.check_open()
    assert ["nack", "late"] == world.oracles
    world.confirmed(1, ack=False)
    assert ["nack", "late"] == world.oracles


def test_an_ack_before_the_return() -> None:
    """A mandatory message without a queue comes back first."""
    world = World()
    world.publish(books=[], mandatory=True)
    world.confirmed(1)
    message = world.publish(books=[], mandatory=True)
    world.ledger.returned(world.channel, make_body(world.channel, message.seq, 0))
    world.confirmed(2)

    assert ["verdict"] == world.oracles


def test_wrong_deliveries() -> None:
    """Deliveries are violations if they are repeated, not marked, out of order or of unpublished messages."""
    world = World()
    for _ in range(4):
        world.publish()
    world.ledger.given_back(world.deliver(1))
    world.deliver(1)
    assert ["delivery"] == world.oracles  # not marked
    world.deliver(1, redelivered=True)
    assert 2 == len(world.oracles)  # is with a consumer
    world.deliver(3)
    world.deliver(2)
    assert 3 == len(world.oracles)  # out of order
    world.deliver(7)
    assert 4 == len(world.oracles)  # never published
    world.ledger.purged(world.book)
    world.deliver(4)
    assert 5 == len(world.oracles)  # purged


def test_a_light_copy_that_comes_back() -> None:
    """A second delivery of a light copy is a violation, since the queue keeps nothing of it."""
    world = World(LIGHT)
    world.publish()
    world.ledger.given_back(world.deliver(1))
    world.ledger.check_open()
    world.confirmed(1, ack=False)
    world.deliver(1, redelivered=True)

    assert ["late", "delivery"] == world.oracles


def test_a_message_that_nobody_ever_got() -> None:
    """A message that no consumer gets of a queue that discards nothing is a violation."""
    world = World(STANDARD)
    world.publish()
    world.ledger.check_empty(world.book)

    assert ["delivery"] == world.oracles
