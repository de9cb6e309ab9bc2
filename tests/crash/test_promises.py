"""Each oracle for messages that wait for consumers objects to a forged history, and none to an honest one."""

import pytest
from crash.ledger import Copy, Id
from crash.promises import LIGHT, MODES, Promises

DIGEST = b"digest--"
FULL = MODES[0]
QUEUES = {"q": FULL, "other": FULL, "light": LIGHT, "greedy": FULL, "rejects": FULL}


class History:
    """A ledger that is told a history in words, of one publisher's channel and one consumer of each queue.

    Messages have the numbers of their publishing, from 1, each on the channel that was opened last; `again` marks
    deliveries as redelivered, and `from` names a queue other than `q`.

        publish 2 | publish 1 q other | publish 1 q transient        on the channel, without a verdict
        commit 1 light                                               without confirms; a commit covers them
        ack 1 | nack 1                                               verdicts
        deliver 1 again | settle 1 from light                        deliveries, and those that the consumer acks
        reject 1 | give-back 1 | cut 1                               what the consumer holds
    """

    def __init__(self) -> None:
        self.ledger = Promises(QUEUES, without_acks={"greedy"}, letters={"rejects": "dead"})
        self.channel = self.ledger.open_channel()
        self.idents: list[Id] = []

    def play(self, history: str) -> list[str]:
        """Tell the ledger the steps, and return the oracles that have objected."""
        for step in history.split("; "):
            word, *rest = step.split()
            queue = rest[rest.index("from") + 1] if "from" in rest else "q"
            numbers = [int(each) for each in rest if each.isdigit()]
            getattr(self, word.replace("-", "_"))(queue, numbers, set(rest))
        return [violation.oracle for violation in self.ledger.violations]

    def _publish(self, channel: int, count: int, words: set[str]) -> None:
        queues = tuple(sorted(words & {*QUEUES, "standard"})) or ("q",)
        for _ in range(count):
            self.idents.append(self.ledger.next_id(channel))
            self.ledger.published(self.idents[-1], queues, DIGEST, persistent="transient" not in words)

    def publish(self, _queue: str, numbers: list[int], words: set[str]) -> None:
        self._publish(self.channel, numbers[0], words)

    def commit(self, _queue: str, numbers: list[int], words: set[str]) -> None:
        channel = self.ledger.open_channel(confirms=False)
        self._publish(channel, numbers[0], words)
        self.ledger.verdict(channel, numbers[0], multiple=True, ack=True)

    def channel_anew(self, _queue: str, _numbers: list[int], _words: set[str]) -> None:
        self.channel = self.ledger.open_channel()

    def _verdict(self, numbers: list[int], *, ack: bool) -> None:
        for number in numbers:
            ident = self.idents[number - 1]
            self.ledger.verdict(ident.channel, ident.seq, multiple=False, ack=ack)

    def ack(self, _queue: str, numbers: list[int], _words: set[str]) -> None:
        self._verdict(numbers, ack=True)

    def nack(self, _queue: str, numbers: list[int], _words: set[str]) -> None:
        self._verdict(numbers, ack=False)

    def deliver(self, queue: str, numbers: list[int], words: set[str]) -> list[Copy]:
        redelivered = "again" in words
        tell = self.ledger.delivered
        found = [tell(queue, self.idents[number - 1], DIGEST, redelivered=redelivered) for number in numbers]
        return [copy for copy in found if copy is not None]

    def settle(self, queue: str, numbers: list[int], words: set[str]) -> None:
        self.ledger.acked(self.deliver(queue, numbers, words))

    def reject(self, _queue: str, numbers: list[int], words: set[str]) -> None:
        self.ledger.rejected(self.deliver("rejects", numbers, words))

    def give_back(self, queue: str, numbers: list[int], words: set[str]) -> None:
        self.ledger.requeued(self.deliver(queue, numbers, words))

    def close_with(self, queue: str, numbers: list[int], words: set[str]) -> None:
        """The consumer's channel closes with a delivery, of which the publisher hears first."""
        copies = self.deliver(queue, numbers, words)
        self.ledger.leaving(queue)
        self._verdict(numbers, ack=False)
        self.ledger.placed(queue, self.ledger.requeued(copies))

    def cut(self, queue: str, numbers: list[int], words: set[str]) -> None:
        self.ledger.cut(queue, self.deliver(queue, numbers, words))

    def disturbed(self, queue: str, _numbers: list[int], _words: set[str]) -> None:
        self.ledger.disturbed(queue)

    def publisher_cut(self, _queue: str, _numbers: list[int], _words: set[str]) -> None:
        self.ledger.publisher_cut(self.channel)

    def drained(self, queue: str, _numbers: list[int], _words: set[str]) -> None:
        self.ledger.drained(queue)

    def depth(self, queue: str, numbers: list[int], _words: set[str]) -> None:
        self.ledger.depth(queue, numbers[0])

    def quiet(self, _queue: str, _numbers: list[int], _words: set[str]) -> None:
        self.ledger.quiet(self.channel)

    def died(self, _queue: str, _numbers: list[int], _words: set[str]) -> None:
        self.ledger.died()

    def stop(self, _queue: str, _numbers: list[int], words: set[str]) -> None:
        """A stop of a broker that has read everything, with consumers at work unless it is `idle`."""
        consumed = () if "idle" in words else tuple(QUEUES)
        self.ledger.taken(self.channel)
        self.ledger.halting(consumed)
        self.ledger.halted(consumed)

    def stop_cut_short(self, _queue: str, _numbers: list[int], _words: set[str]) -> None:
        self.ledger.taken(self.channel)
        self.ledger.halting(["q"])
        self.ledger.died_stopping(["q"])


HONEST = {
    "a publish is confirmed when consumers have acked all its copies; a standard queue's needs none": (
        "publish 1 q other light standard; settle 1; settle 1 from other; settle 1 from light; ack 1; quiet"
    ),
    "what is given back, or held on a connection that was cut, comes again and is confirmed then": (
        "publish 2; give-back 1; cut 1 again; disturbed; settle 1 2 again; ack 1 2; drained"
    ),
    "of an ack that was sent before the cut the broker has heard, or delivers again": (
        "publish 2; settle 1 2; cut; disturbed; ack 1; settle 2 again; ack 2; drained"
    ),
    "a light queue says no for what comes back, held or acked last or on its way; publishers may hear first": (
        "publish 5 light; give-back 1 from light; nack 1; settle 2 from light; cut 3 from light; nack 4; "
        "disturbed from light; nack 2 3; settle 5 from light; ack 5; drained from light; quiet"
    ),
    "the nack of a light delivery comes before the reply to the consumer that closes its channel": (
        "publish 1 light; close-with 1 from light"
    ),
    "a kill may take what nobody has answered for, and nothing that a commit has covered": (
        "publish 2; settle 1; commit 1; died; deliver 3 again; drained"
    ),
    "a stop keeps what is persistent, also over a later kill; what was acked last may come again": (
        "publish 3; publish 1 q transient; settle 1; deliver 2; stop; depth 2; died; deliver 2 3 again; drained"
    ),
    "a stop that is cut short may have kept what is persistent, in any order": (
        "publish 2; commit 2; stop-cut-short; settle 4 2 3; drained"
    ),
    "a stop loses what may be on its way to a light queue's consumer": (
        "publish 1 light; deliver 1 from light; publish 1 light; stop; depth 0 from light"
    ),
    "a stop loses nothing of a light queue that nobody consumes": (
        "publish 1 light; stop idle; deliver 1 from light; drained from light"
    ),
    "without acks the publisher may hear first, and in a fault what was handed over may not arrive": (
        "publish 2 greedy; ack 1; settle 1 from greedy; ack 2; died; drained from greedy"
    ),
    "a reject is an answer and leaves a dead letter; if it was not heard the original comes back": (
        "publish 2 rejects; reject 1; ack 1; reject 2; cut from rejects; disturbed from rejects; "
        "settle 2 again from rejects; ack 2; died; deliver 1 again from dead; drained from dead"
    ),
    "a publisher that was cut has no more verdicts, and its messages may be there or not": (
        "publish 1 q standard; publish 1; publisher-cut; settle 1; drained; drained from standard"
    ),
}

FORGED = {
    "confirmed at its delivery": ("publish 1; deliver 1; ack 1", "O1"),
    "confirmed at its light delivery": ("publish 1 light; deliver 1 from light; ack 1", "O1"),
    "confirmed after one of two copies": ("publish 1 q other; settle 1; ack 1", "O1"),
    "confirmed though it was given back": ("publish 1; give-back 1; ack 1", "O1"),
    "confirmed though it was given back to a light queue": (
        "publish 1 light; give-back 1 from light; ack 1",
        "O1",
    ),
    "confirmed though it was delivered again": ("publish 1; settle 1; cut; deliver 1 again; ack 1", "O1"),
    "a dead letter that was confirmed is lost": (
        "publish 1 rejects; reject 1; ack 1; died; drained from dead",
        "O1",
    ),
    "what was handed over does not arrive, without a fault": (
        "publish 1 greedy; ack 1; drained from greedy",
        "O1",
    ),
    "a stop forgets what waits": ("publish 1; stop; drained", "O1"),
    "a stop cut short takes what a commit covers": ("commit 1; stop-cut-short; drained", "O1"),
    "a kill takes what a commit covers": ("commit 1 light; died; drained from light", "O1"),
    "delivered after its confirm": ("publish 1; settle 1; ack 1; stop; deliver 1 again", "O2"),
    "delivered after it was given back to a light queue": (
        "publish 1 light; give-back 1 from light; deliver 1 again from light",
        "O2",
    ),
    "back after a kill though it was never written": ("publish 1; died; deliver 1", "O2"),
    "nacked though it can be delivered again": ("publish 1; cut 1; disturbed; nack 1", "O4"),
    "nacked while it waits in a light queue": ("publish 1 light; nack 1", "O4"),
    "never answered": ("publish 1; settle 1; quiet", "O4"),
}


@pytest.mark.parametrize("history", HONEST.values(), ids=HONEST)
def test_an_honest_history(history: str) -> None:
    """Nothing is found in what a broker may do."""
    assert [] == History().play(history)


@pytest.mark.parametrize(("history", "oracle"), FORGED.values(), ids=FORGED)
def test_a_forged_history(history: str, oracle: str) -> None:
    """The oracle of what a broker must not do objects."""
    assert [oracle] == History().play(history)


@pytest.mark.parametrize(
    ("history", "name", "count"),
    [
        ("publish 1 q other; settle 1; settle 1 from other; ack 1", "consumed", 1),
        ("publish 1; died", "let go", 1),
        ("publish 2; stop", "spilled", 2),
        ("publish 1; deliver 1; ack 1", "unanswered", 1),
    ],
)
def test_what_is_counted(history: str, name: str, count: int) -> None:
    """Totals have what was answered, let go by a kill, kept by a stop, and confirmed without an answer."""
    told = History()
    told.play(history)
    assert count == told.ledger.counts[name]
