"""The short form of `make campaign NAME=confirm-properties`, and whether its ledger objects to what no honest broker does."""

from pathlib import Path

import pytest
from promises.ledger import Book, Copy, Ledger, make_body
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


class History:
    """A ledger with a queue and a publisher's channel, which is told a history in words.

    Messages have the numbers of their publishing, from 1; `again` marks a delivery as redelivered.
    """

    def __init__(self, mode: str, **queue: bool) -> None:
        self.ledger = Ledger(2.0, 0.5) if queue.pop("timeout", False) else Ledger()
        self.book = Book("q", mode=mode, **queue)
        self.channel = self.ledger.open_channel(confirms=True)

    def play(self, history: str) -> list[str]:
        """Tell the ledger the steps, and return the oracles that have objected."""
        for step in history.split("; "):
            word, *rest = step.split()
            getattr(self, word.replace("-", "_"))([int(each) for each in rest if each.isdigit()], rest)
        return [text.partition(":")[0] for text in self.ledger.violations]

    def publish(self, numbers: list[int], words: list[str]) -> None:
        books = [] if "nowhere" in words else [self.book]
        for _ in range(numbers[0]):
            message = self.ledger.published(
                self.channel, books, persistent=True, mandatory="mandatory" in words, expires=False
            )
            self.ledger.sent(message.copies.values())

    def ack(self, numbers: list[int], words: list[str]) -> None:
        for number in numbers:
            self.ledger.verdict(self.channel, number, multiple="multiple" in words, ack=True)

    def nack(self, numbers: list[int], _words: list[str]) -> None:
        for number in numbers:
            self.ledger.verdict(self.channel, number, multiple=False, ack=False)

    def deliver(self, numbers: list[int], words: list[str]) -> list[Copy]:
        found = []
        for number in numbers:
            body = make_body(self.channel, number, 3)
            found.append(self.ledger.delivered(self.book, "c", body, redelivered="again" in words))
        return [copy for copy in found if copy is not None]

    def settle(self, numbers: list[int], words: list[str]) -> None:
        for copy in self.deliver(numbers, words):
            self.ledger.settled(copy)

    def give_back(self, numbers: list[int], words: list[str]) -> None:
        for copy in self.deliver(numbers, words):
            self.ledger.given_back(copy)

    def purge(self, _numbers: list[int], _words: list[str]) -> None:
        self.ledger.purged(self.book)

    def commit(self, _numbers: list[int], _words: list[str]) -> None:
        self.ledger.commits += 1

    def dead(self, numbers: list[int], _words: list[str]) -> None:
        self.ledger.dead("q", make_body(self.channel, numbers[0], 0))

    def returned(self, numbers: list[int], _words: list[str]) -> None:
        self.ledger.returned(self.channel, make_body(self.channel, numbers[0], 0))

    def wait(self, numbers: list[int], _words: list[str]) -> None:
        """Let so many tenths of a second pass."""
        self.ledger.now += numbers[0] / 10

    def check_open(self, _numbers: list[int], _words: list[str]) -> None:
        self.ledger.check_open()

    def check_end(self, _numbers: list[int], _words: list[str]) -> None:
        self.ledger.check_end()

    def check_empty(self, _numbers: list[int], _words: list[str]) -> None:
        self.ledger.check_empty(self.book)


HISTORIES: dict[str, tuple[str, dict[str, bool], str, str]] = {
    "an honest broker": (
        CONSUMER_ACK,
        {},
        "publish 3; settle 1; ack 1; settle 2; purge; ack 2; nack 3; check-open; check-end; check-empty",
        "",
    ),
    "an ack without a consumer's": (CONSUMER_ACK, {}, "publish 1; deliver 1; ack 1", "ack"),
    "an ack before the commit": (STANDARD, {}, "publish 1; ack 1; publish 1; commit; ack 2", "ack"),
    "an ack for a dead letter that never comes": (
        CONSUMER_ACK,
        {"dies": True},
        "publish 2; ack 2 multiple; dead 1; check-end",
        "ack",
    ),
    "a nack of what was consumed, or waits": (
        CONSUMER_ACK,
        {},
        "publish 1; settle 1; nack 1; publish 1; nack 2",
        "nack nack",
    ),
    "a second verdict": (CONSUMER_ACK, {}, "publish 1; purge; nack 1; nack 1", "verdict"),
    "a second verdict of a light queue": (LIGHT, {}, "publish 1; purge; nack 1; nack 1", "verdict"),
    "a number that is forgotten": (
        CONSUMER_ACK,
        {},
        "publish 1; settle 1; check-open; check-end",
        "late verdict",
    ),
    "a timeout of one that is young, and none of one that is old": (
        CONSUMER_ACK,
        {"timeout": True},
        "publish 1; wait 15; publish 1; wait 15; nack 2; check-open; nack 1",
        "nack late",
    ),
    "an ack before the return": (
        CONSUMER_ACK,
        {},
        "publish 1 nowhere mandatory; ack 1; publish 1 nowhere mandatory; returned 2; ack 2",
        "verdict",
    ),
    "delivered again and not marked": (CONSUMER_ACK, {}, "publish 1; give-back 1; deliver 1", "delivery"),
    "delivered to two consumers": (CONSUMER_ACK, {}, "publish 1; deliver 1; deliver 1 again", "delivery"),
    "delivered out of order": (CONSUMER_ACK, {}, "publish 3; deliver 3; deliver 2", "delivery"),
    "never published": (CONSUMER_ACK, {}, "publish 1; deliver 7", "delivery"),
    "delivered after a purge": (CONSUMER_ACK, {}, "publish 1; purge; deliver 1", "delivery"),
    "a light copy that comes back": (
        LIGHT,
        {},
        "publish 1; give-back 1; check-open; nack 1; deliver 1 again",
        "late delivery",
    ),
    "a message that nobody ever got": (STANDARD, {}, "publish 1; check-empty", "delivery"),
}


@pytest.mark.parametrize(("mode", "queue", "history", "oracles"), HISTORIES.values(), ids=HISTORIES)
def test_a_history(mode: str, queue: dict[str, bool], history: str, oracles: str) -> None:
    """The ledger objects to acts that no honest broker does, and to no others."""
    assert oracles.split() == History(mode, **queue).play(history)
