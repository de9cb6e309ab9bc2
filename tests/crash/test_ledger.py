"""Each oracle objects to a forged history, and none to an honest one."""

from collections.abc import Callable

import pytest
from crash.ledger import BodyError, Copy, Id, Ledger, make_body, read_body

DIGEST = b"digest--"


class History:
    """A ledger that is told a history in words.

    Messages have the numbers of their publishing, from 1; `again` marks deliveries as redelivered.

        confirm 3 | confirm 1 q r | confirm 1 q transient      published on a new channel, and confirmed together
        publish 2 | publish 1 - mandatory                      the same without a verdict; `-` is no queue
        ack 2 | nack 1 | ack 3 multiple                        verdicts of the last channel
        deliver 1 2 again | deliver 1 from r                   also: settle, know, requeue, placed, purge
    """

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.channel = 0
        self.idents: list[Id] = []
        self.copies: dict[int, Copy] = {}
        self.requeue_number = 0

    def play(self, history: str) -> list[str]:
        """Tell the ledger the steps, and return the oracles that have objected."""
        for step in history.split("; "):
            word, *rest = step.split()
            getattr(self, word)(*rest)
        return [violation.oracle for violation in self.ledger.violations]

    def publish(self, count: str, *words: str) -> None:
        flags = {"transient", "mandatory"} & set(words)
        queues = [word for word in words if word not in flags] or ["q"]
        options = {"persistent": "transient" not in flags, "mandatory": "mandatory" in flags}
        self.channel = self.ledger.open_channel()
        for _ in range(int(count)):
            self.idents.append(self.ledger.next_id(self.channel))
            self.ledger.published(
                self.idents[-1], () if queues == ["-"] else tuple(queues), DIGEST, **options
            )

    def confirm(self, count: str, *words: str) -> None:
        self.publish(count, *words)
        self.ack(count, "multiple")

    def ack(self, number: str, *multiple: str) -> None:
        self.ledger.verdict(self.channel, int(number), multiple=bool(multiple), ack=True)

    def nack(self, number: str) -> None:
        self.ledger.verdict(self.channel, int(number), multiple=False, ack=False)

    def returned(self, number: str) -> None:
        self.ledger.returned(self.idents[int(number) - 1])

    def quiet(self) -> None:
        self.ledger.quiet(self.channel)

    def deliver(self, *words: str) -> None:
        queue = words[words.index("from") + 1] if "from" in words else "q"
        for number in map(int, filter(str.isdigit, words)):
            ident = self.idents[number - 1]
            self.copies[number] = self.ledger.delivered(queue, ident, DIGEST, redelivered="again" in words)

    def _with(self, tell: Callable[[list[Copy]], object], numbers: tuple[str, ...]) -> object:
        return tell([self.copies[int(number)] for number in numbers])

    def settle(self, *numbers: str) -> None:
        self._with(self.ledger.acked, numbers)

    def know(self, *numbers: str) -> None:
        self._with(self.ledger.known, numbers)

    def requeue(self, *numbers: str) -> None:
        self.requeue_number = self._with(self.ledger.requeued, numbers)

    def placed(self) -> None:
        self.ledger.placed("q", self.requeue_number)

    def purge(self, *numbers: str) -> None:
        """Purge the queue; of these messages the broker has said so."""
        copies = self.ledger.purging("q")
        self.ledger.purged([copy for copy in copies if self._is_one_of(copy, numbers)])

    def _is_one_of(self, copy: Copy, numbers: tuple[str, ...]) -> bool:
        return copy.publication.id in [self.idents[int(number) - 1] for number in numbers]

    def depth(self, ready: str) -> None:
        self.ledger.depth("q", int(ready))

    def drained(self, queue: str = "q") -> None:
        self.ledger.drained(queue)

    def missing(self) -> None:
        self.ledger.missing("q")

    def disturbed(self) -> None:
        self.ledger.disturbed("q")

    def died(self) -> None:
        self.ledger.died()

    def stopped(self) -> None:
        self.ledger.stopped()

    def forget(self) -> None:
        self.ledger.forget()


HONEST = {
    "a run without faults": "confirm 3; depth 3; deliver 1 2 3; settle 1 2 3; depth 0; drained",
    "what was confirmed comes back, what was acked without proof may": (
        "confirm 6; deliver 1 2 3 4; settle 1 2; died; depth 4; depth 6; deliver 2 3 4 5 6 again; drained"
    ),
    "what was not confirmed may come back or not": "publish 2; died; depth 1; deliver 1 again; drained",
    "transient messages go with the run": "confirm 3 q transient; depth 3; died; depth 0; drained",
    "requeued messages come back before younger ones": (
        "confirm 6; deliver 1 2 3 4; settle 1; requeue 2 3 4; placed; deliver 2 3 4 again; deliver 5 6"
    ),
    "a clean stop marks what was delivered; what was on its way may be": (
        "confirm 3; deliver 1; stopped; deliver 1 again; deliver 2; deliver 3 again"
    ),
    "unroutable messages are returned, then confirmed": "publish 1 - mandatory; returned 1; ack 1; quiet",
    "a purge that was not answered": "confirm 1; purge; died; deliver 1 again",
    "deliveries to a consumer that was cut": "confirm 1; disturbed; deliver 1 again",
    "a younger one on its way when the broker hears of a requeue": (
        "confirm 3; deliver 1; requeue 1; deliver 2; deliver 1 again; placed; deliver 3"
    ),
    "channels have no order between them, nor have queues": (
        "confirm 1 q r; confirm 1 q r; deliver 2 1; deliver 1 2 from r"
    ),
}

FORGED = {
    "a confirmed message does not come back": ("confirm 3; died; deliver 1 3 again; drained", "O1"),
    "one copy is lost": ("confirm 1 q r; died; deliver 1 again; drained; drained r", "O1"),
    "an unacked message is lost": ("confirm 1; deliver 1; died; drained", "O1"),
    "an unconfirmed message that came back once is lost": (
        "publish 2; died; depth 1; deliver 1 again; drained; died; depth 1; drained", "O1"
    ),
    "a transient message is missing within its run": ("confirm 1 q transient; drained", "O1"),
    "a queue is gone": ("confirm 2; died; missing", "O1 O1 O1"),
    "not marked after a fault, with a consumer before": ("confirm 1; deliver 1; died; deliver 1", "O2"),
    "not marked after a fault": ("confirm 1; died; deliver 1", "O2"),
    "not marked after a requeue": ("confirm 1; deliver 1; requeue 1; deliver 1", "O2"),
    "delivered while it is unacked": ("confirm 1; deliver 1; deliver 1 again", "O2"),
    "delivered after its ack": ("confirm 1; deliver 1; settle 1; deliver 1 again", "O2"),
    "delivered after an ack on disk": ("confirm 1; deliver 1; settle 1; know 1; died; deliver 1 again", "O2"),
    "delivered after a clean stop": ("confirm 1; deliver 1; settle 1; stopped; deliver 1 again", "O2"),
    "delivered after a purge": ("confirm 2; purge 2; died; deliver 2 again", "O2"),
    "delivered though its line is forgotten": (
        "confirm 1; deliver 1; settle 1; know 1; forget; deliver 1 again", "O2"
    ),
    "a transient message of an earlier run": ("confirm 1 q transient; died; deliver 1 again", "O2"),
    "marked at its first delivery": ("confirm 1; deliver 1 again", "O2"),
    "a queue that it was not routed to": ("confirm 1; deliver 1 from r", "O2"),
    "recovered ones out of order": ("confirm 3; deliver 1 2 3; died; deliver 2 1 3 again", "O3"),
    "a requeued one at the tail": ("confirm 2; deliver 1; requeue 1; placed; deliver 2; deliver 1 again", "O3"),
    "requeued ones out of order": ("confirm 2; deliver 1 2; requeue 1 2; placed; deliver 2 1 again", "O3"),
    "a second verdict": ("publish 1; nack 1; ack 1", "O4"),
    "a nack below an earlier multiple": ("publish 3; ack 3 multiple; nack 2", "O4"),
    "a verdict for what was never published": ("publish 1; ack 2 multiple", "O4"),
    "a number without a verdict": ("publish 1; quiet", "O4"),
    "an ack before its return": ("publish 1 - mandatory; ack 1; returned 1", "O4 O4"),
    "a return of a message with a queue": ("publish 1 q mandatory; returned 1", "O4"),
    "a depth below": ("confirm 4; deliver 1 2; settle 1; depth 1", "O9"),
    "a depth above": ("confirm 4; deliver 1 2; settle 1; depth 3", "O9"),
    "a depth below what is certain after a fault": ("confirm 1; publish 1; died; depth 0", "O9"),
    "a depth above what is possible after a fault": ("confirm 1; publish 1; died; depth 3", "O9"),
}  # fmt: skip


@pytest.mark.parametrize("history", HONEST.values(), ids=HONEST)
def test_an_honest_history(history: str) -> None:
    """Nothing is found in what a broker may do."""
    assert [] == History().play(history)


@pytest.mark.parametrize(("history", "oracles"), FORGED.values(), ids=FORGED)
def test_a_forged_history(history: str, oracles: str) -> None:
    """The oracle of what a broker must not do objects."""
    found = History().play(history)
    assert oracles.split() == sorted(found)[: len(oracles.split())]
    assert {*oracles.split()} == {*found}


def test_what_is_counted() -> None:
    """Totals have what was confirmed, recovered, lost and not marked."""
    history = History()
    history.play("confirm 3; confirm 3; died; deliver 1 again; deliver 2; drained")

    counts = history.ledger.counts
    assert (6, 2, 4, 1) == tuple(counts[name] for name in ("confirmed", "recovered", "lost", "unmarked"))


def test_inventions() -> None:
    """A message that was never published, another body and a damaged one are inventions."""
    history = History()
    history.play("confirm 1")
    history.ledger.delivered("q", history.idents[0]._replace(seq=2), DIGEST, redelivered=False)
    history.ledger.delivered("q", history.idents[0], b"another-", redelivered=False)
    history.ledger.damaged("q", "torn")

    assert ["O5"] * 3 == [violation.oracle for violation in history.ledger.violations]


def test_a_start_that_takes_too_long() -> None:
    """A start may take two seconds, and one more for 200,000 messages."""
    ledger = Ledger()
    ledger.ready(2.9, 200_000)
    assert [] == ledger.violations
    ledger.ready(3.1, 200_000)
    assert ["O10"] == [violation.oracle for violation in ledger.violations]


BODY = make_body(Id(3, 2, 1), b"filling")


def test_a_body_says_which_message_it_is() -> None:
    """The id and the digest come out as they went in."""
    assert (Id(3, 2, 1), BODY[-8:]) == read_body(BODY)


@pytest.mark.parametrize(
    "body",
    [b"", b"x" * 30, BODY[:-1]]
    + [BODY[:at] + bytes([BODY[at] ^ 1]) + BODY[at + 1 :] for at in (0, 5, 9, 12, 20, 25, 33)],
)
def test_a_damaged_body_is_noticed(body: bytes) -> None:
    """A torn body, one of another origin, and a changed octet anywhere in it are noticed."""
    with pytest.raises(BodyError):
        read_body(body)
