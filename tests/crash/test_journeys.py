"""Each oracle for messages that move objects to a forged history, and none to an honest one."""

import pytest
from crash.journeys import DUE, EXPIRED, LIMIT, NOWHERE, REJECTED, Death, Delivery, Journeys, Way
from crash.ledger import Id, Ledger

DIGEST = b"digest--"
TO_X, TO_Y = Way("a", ("a", "x", EXPIRED)), Way("a", ("a", "y", EXPIRED))
WAYS = {
    "expires": (Way("a", ("a", "dead", EXPIRED), ordered=["dead"]),),
    "given-up": (Way("a", ("a", "dead", REJECTED)),),
    "later": (Way("line", ("line", "b", DUE)),),
    "limited": (Way("a", ("a", "dead", LIMIT), limit=2),),
    "two-ways": (TO_X, TO_Y),
    "dropped": (Way("a", ("a", NOWHERE, EXPIRED)),),
    "refused": (Way("a", refused="dead"),),
    "plain": (Way("a"),),
    "ordered": (Way("a", ordered=["a"]),),
}
"""Ways of messages, by the word for them."""


class History:
    """A ledger with its journeys, which is told a history in words.

    Messages have the numbers of their publishing, from 1, and a station is `@a`; a message that arrives at another one
    than where it entered says of what it died.

        publish 2 expires | publish 1 given-up apart    on a new channel, and confirmed
        open 2 plain | ack 1 | nack 1                   without a verdict; verdicts of the last channel
        deliver 1 @dead expired again                   also: settle, reject, requeue, with a delivery
        know 1 | doubt 1                                of the last delivery of a message
    """

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.journeys = Journeys(self.ledger)
        self.channel = 0
        self.idents: list[Id] = []
        self.last: dict[int, Delivery] = {}

    def play(self, history: str) -> list[str]:
        """Tell the ledger the steps, and return the oracles that have objected."""
        for step in history.split("; "):
            word, *rest = step.split()
            getattr(self, word)([int(each) for each in rest if each.isdigit()], rest)
        return [violation.oracle for violation in self.ledger.violations]

    def open(self, numbers: list[int], words: list[str], group: int = 0) -> None:
        (way,) = [WAYS[word] for word in words if word in WAYS]
        self.channel = self.ledger.open_channel()
        not_before = {"b": 10.0} if "at-10" in words else None
        for _ in range(numbers[0]):
            self.idents.append(self.ledger.next_id(self.channel))
            persistent = "transient" not in words
            publication = self.ledger.published(self.idents[-1], (), DIGEST, persistent=persistent)
            self.journeys.published(
                publication, way, group=group, not_before=not_before, apart="apart" in words
            )

    def publish(self, numbers: list[int], words: list[str]) -> None:
        self.open(numbers[:1], words, group=sum(numbers[1:]))
        self._verdict(numbers[0], ack=True)

    def _verdict(self, number: int, *, ack: bool) -> None:
        for publication in self.ledger.verdict(self.channel, number, multiple=True, ack=ack):
            self.journeys.decided(publication, ack=ack)

    def nack(self, numbers: list[int], _words: list[str]) -> None:
        self._verdict(numbers[0], ack=False)

    def deliver(self, numbers: list[int], words: list[str]) -> list[Delivery]:
        (station,) = [word[1:] for word in words if word[0] == "@"]
        reasons = [word for word in words if word in {"expired", "rejected", "maxlen", "delivery_limit"}]
        deaths = tuple(Death("a", reason) for reason in reasons)
        now = 9.0 if "at-9" in words else 0.0
        found = []
        for number in numbers:
            delivery = self.journeys.delivered(
                station,
                self.idents[number - 1],
                DIGEST,
                redelivered="again" in words,
                deaths=deaths,
                now=now,
            )
            if delivery is not None:
                self.last[number] = delivery
                found.append(delivery)
        return found

    def settle(self, numbers: list[int], words: list[str]) -> None:
        for number, delivery in zip(numbers, self.deliver(numbers, words), strict=True):
            self.last[number] = self.journeys.acked(delivery)

    def reject(self, numbers: list[int], words: list[str]) -> None:
        for number, delivery in zip(numbers, self.deliver(numbers, words), strict=True):
            self.last[number] = self.journeys.rejected(delivery)

    def requeue(self, numbers: list[int], words: list[str]) -> None:
        self.journeys.requeued(self.deliver(numbers, words))

    def know(self, numbers: list[int], _words: list[str]) -> None:
        self.journeys.known([self.last[number] for number in numbers])

    def doubt(self, numbers: list[int], _words: list[str]) -> None:
        self.journeys.doubted([self.last[number] for number in numbers])

    def disturbed(self, _numbers: list[int], _words: list[str]) -> None:
        self.journeys.disturbed("a")

    def falling(self, _numbers: list[int], _words: list[str]) -> None:
        self.journeys.falling("a")

    def forget(self, _numbers: list[int], _words: list[str]) -> None:
        self.journeys.forget()

    def died(self, _numbers: list[int], _words: list[str]) -> None:
        self.journeys.died()
        self.ledger.died()

    def finished(self, _numbers: list[int], _words: list[str]) -> None:
        self.journeys.finished()


HONEST = {
    "what expires is found where its dead letters go, in order": "publish 3 expires; settle 1 2 3 @dead expired; finished",
    "a move that was not on disk is made again": (
        "publish 1 expires; deliver 1 @dead expired; died; deliver 1 @a again; died; settle 1 @dead expired; finished"
    ),
    "an ack that nobody knows to be on disk is lost with the move before it, or both are there": (
        "publish 2 expires; settle 1 2 @dead expired; died; deliver 2 @dead expired again; finished"
    ),
    "a rejected message is in its old place if its dead letter was not committed": (
        "publish 1 given-up; reject 1 @a; know 1; died; settle 1 @a again; finished"
    ),
    "or its dead letter is where it belongs": (
        "publish 1 given-up; reject 1 @a; know 1; died; settle 1 @dead rejected; finished"
    ),
    "a kill may leave a large message behind while it moves": (
        "publish 2 expires apart; died; settle 2 @dead expired; settle 1 @dead expired; finished"
    ),
    "a large dead letter that was acked may come again: its original stays until a file is written": (
        "publish 1 expires apart; settle 1 @dead expired; know 1; died; settle 1 @dead expired; finished"
    ),
    "a message with two ways is two tokens": (
        "publish 1 two-ways; settle 1 @x expired; settle 1 @y expired; finished"
    ),
    "what is dropped by the rules is not missed": "publish 1 dropped; finished",
    "a refused message is a dead letter, as the overflow says": (
        "open 1 refused; nack 1; deliver 1 @dead maxlen; finished"
    ),
    "it may have been refused though nobody heard the nack": (
        "open 2 refused; died; deliver 1 @a again; deliver 2 @dead maxlen"
    ),
    "a delayed transient message may survive": "publish 2 later transient; died; deliver 1 @b; finished",
    "acks of a cut connection may not have arrived, and deliveries on their way are marked or not": (
        "publish 2 plain; settle 1 @a; doubt 1; disturbed; deliver 1 2 @a again"
    ),
    "groups are in order each for itself, as priorities overtake": (
        "publish 1 ordered 1; publish 1 ordered 2; deliver 2 @a; deliver 1 @a"
    ),
    "given back as often as it may be, and once more": (
        "publish 1 limited; requeue 1 @a; requeue 1 @a again; requeue 1 @a again; deliver 1 @dead delivery_limit"
    ),
}

FORGED = {
    "in neither place after a fault": ("publish 1 expires; died; finished", "O1"),
    "an unconfirmed one that came back once": (
        "open 2 expires; died; deliver 1 @dead expired; died; finished",
        "O1",
    ),
    "a lost copy of two": (
        "publish 1 two-ways; deliver 1 @x expired; died; deliver 1 @x expired again; finished",
        "O1",
    ),
    "rejected, and no dead letter": ("publish 1 given-up; reject 1 @a; finished", "O1"),
    "rejected, and in neither place after a fault": (
        "publish 1 given-up; reject 1 @a; know 1; died; finished",
        "O1",
    ),
    "refused or not, what came back from disk is lost": (
        "open 2 refused; died; deliver 1 @a again; deliver 2 @dead maxlen; died; finished",
        "O1 O1",
    ),
    "a small dead letter that was acked": (
        "publish 1 expires; settle 1 @dead expired; know 1; died; settle 1 @dead expired; finished",
        "O2",
    ),
    "rejected, and in both places, the old one first": (
        "publish 1 given-up; reject 1 @a; know 1; died; settle 1 @a again; settle 1 @dead rejected again",
        "O2",
    ),
    "rejected, and in both places, the dead letter first": (
        "publish 1 given-up; reject 1 @a; know 1; died; settle 1 @dead rejected again; settle 1 @a again",
        "O2",
    ),
    "rejected, and back though its dead letter was on disk": (
        "publish 1 given-up; reject 1 @a; know 1; deliver 1 @dead rejected; know 1; died; deliver 1 @a again",
        "O2",
    ),
    "acked, without dead letters": ("publish 1 plain; settle 1 @a; know 1; died; deliver 1 @a again", "O2"),
    "rejected, without dead letters": (
        "publish 1 plain; reject 1 @a; know 1; died; deliver 1 @a again",
        "O2",
    ),
    "acked, with dead letters": ("publish 1 given-up; settle 1 @a; know 1; died; deliver 1 @a again", "O2"),
    "a dead letter that is still in its queue": (
        "publish 1 expires; settle 1 @dead expired; deliver 1 @a",
        "O2",
    ),
    "a move that was on disk": (
        "publish 1 expires; deliver 1 @dead expired; know 1; died; deliver 1 @a again",
        "O2",
    ),
    "acked on disk, and its line forgotten": (
        "publish 1 expires; settle 1 @dead expired; know 1; forget; died; deliver 1 @dead expired again",
        "O2",
    ),
    "refused": ("open 1 plain; nack 1; deliver 1 @a", "O2"),
    "a dead letter of a refusal that was confirmed": (
        "publish 1 refused; died; deliver 1 @dead maxlen again",
        "O2",
    ),
    "in two places after a fault": (
        "publish 1 expires; settle 1 @dead expired; died; settle 1 @dead expired again; deliver 1 @a again",
        "O2",
    ),
    "recovered where it was, and not marked": ("publish 1 plain; died; deliver 1 @a", "O2"),
    "a dead letter that is marked": ("publish 1 given-up; reject 1 @a; deliver 1 @dead rejected again", "O2"),
    "dead letters out of order": (
        "publish 2 expires; deliver 2 @dead expired; deliver 1 @dead expired",
        "O3",
    ),
    "priorities that rise while nobody publishes": (
        "publish 1 plain 1; publish 1 plain 2; falling; deliver 1 @a; deliver 2 @a",
        "O3",
    ),
    "a dead letter without x-death": ("publish 1 expires; deliver 1 @dead", "O5"),
    "a dead letter of another reason": ("publish 1 expires; deliver 1 @dead rejected", "O5"),
    "a delayed message that is early": ("publish 1 later at-10; deliver 1 @b at-9", "O6"),
}


@pytest.mark.parametrize("history", HONEST.values(), ids=HONEST)
def test_an_honest_history(history: str) -> None:
    """Nothing is found in what a broker may do."""
    assert [] == History().play(history)


@pytest.mark.parametrize(("history", "oracles"), FORGED.values(), ids=FORGED)
def test_a_forged_history(history: str, oracles: str) -> None:
    """The oracle of what a broker must not do objects."""
    assert oracles.split() == History().play(history)


def test_a_delivery_limit_that_was_not_reached() -> None:
    """A delivery limit reached after one of two returns is a violation."""
    assert "O6" == History().play("publish 1 limited; requeue 1 @a; deliver 1 @dead delivery_limit")[-1]


def test_inventions() -> None:
    """A message that was never published, and another body, are inventions."""
    history = History()
    history.play("publish 1 expires")
    (known,) = history.idents
    for ident, digest in ((Id(1, 1, 9), DIGEST), (known, b"another-")):
        history.journeys.delivered("dead", ident, digest, redelivered=False, deaths=(Death("a", "expired"),))

    assert ["O5", "O5"] == [violation.oracle for violation in history.ledger.violations]


@pytest.mark.parametrize(
    ("history", "name"),
    [
        ("publish 1 expires; died; deliver 1 @a again", "recovered"),
        ("publish 1 expires; died; finished", "lost"),
        ("publish 1 plain; died; deliver 1 @a", "unmarked"),
    ],
)
def test_what_is_counted(history: str, name: str) -> None:
    """Totals have what was recovered, lost and not marked."""
    told = History()
    told.play(history)
    assert 1 == told.ledger.counts[name]
