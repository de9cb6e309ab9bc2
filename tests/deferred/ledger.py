"""Ledger of what publishers sent and consumers decided, and the judgement on where the messages are at the end.

    verdict   one for each publish; a nack only where a queue may refuse the message, or may have given it up; an ack
              from a queue that confirms on consumer acks only after a consumer's decision
    delivery  no message while a consumer has it, or after a consumer has decided on it
    doubled   no message is in a queue twice, nor in two of the places between which it moves
    in part   a message to several queues is in all of them or in none
    lost      after a kill a message is there if it was acked, and otherwise every message is
    order     a queue has the messages that a publisher sent one way in their order

Pure: no broker, no clock.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

WIDE, ONE, REFUSING, AWAITING = "wide", "one", "refusing", "awaiting"
"""Ways on which a message goes directly to target queues: to all, to one, and to all beside a full queue or one that
confirms on consumer acks."""
REJECTED, EXPIRING, DELAYED = "rejected", "expiring", "delayed"
"""Ways that lead to all target queues by a dead letter exchange or a delayed exchange."""
CHAIN = "chain"
"""The way into a short durable queue that overflows into a full transient one, and that into a durable queue."""
DIRECT = frozenset({WIDE, ONE, REFUSING, AWAITING})
MOVING = frozenset({REJECTED, EXPIRING, DELAYED})
CHAINED = ("chain", "full", "end")
"""Queues of that way; a message is in one of them."""
AFTER = "after"
"""The queue for what consumers reject on the way `AWAITING`."""


class ViolationError(AssertionError):
    """Raised if the broker did what it must not do."""


@dataclass(eq=False)
class Published:
    """One message that was published.

    Args:
        body: identifies it; larger ones are filled with dots.
        number: its place in the order of its publisher, from 1.
        way: how it was addressed.
        target: its queue on the way `ONE`.
        persistent: True if it was published with delivery mode 2.
        in_file: True if its body goes to a file of its own.
        awaits: True if a consumer has to decide before it is confirmed.

    """

    body: bytes
    publisher: int
    number: int
    way: str
    target: str
    persistent: bool
    in_file: bool
    awaits: bool
    verdict: bool | None = None
    has_none: bool = False
    """True if its transaction was refused because of a message for a deleted queue: there is no verdict on it."""
    may_vanish: bool = False
    """True if its queue was purged or deleted when it may have been there."""


class Publisher:
    """The publishes of one channel and their verdicts."""

    def __init__(self, number: int, *, is_transactional: bool) -> None:
        self.number = number
        self.is_transactional = is_transactional
        self.count = 0
        self.open: dict[int, Published] = {}
        """Publishes without a verdict, by number."""

    def confirmed(self, tag: int, *, multiple: bool, ack: bool) -> None:
        """Note a confirm of one number, or of all open ones up to it."""
        numbers = [number for number in self.open if number <= tag] if multiple else [tag]
        for number in numbers:
            message = self.open.pop(number, None)
            if message is None:
                raise ViolationError(f"verdict: publisher {self.number} has a second one for {number}")
            message.verdict = ack

    def committed_in_part(self) -> None:
        """Note that the commit of the transaction was refused, after all that was possible was done."""
        for message in self.open.values():
            message.has_none = True
        self.open.clear()

    def committed(self) -> None:
        """Note that the transaction was committed."""
        for message in self.open.values():
            message.verdict = True
        self.open.clear()


@dataclass
class Queues:
    """The queues of a walk, by what may be expected of them.

    Args:
        durable: target queues that keep persistent messages.
        quorum: target queues that keep all messages.
        transient: other target queues.
        small: the full queue on the way `REFUSING`.
        small_is_durable: True if it keeps persistent messages.
        chain_refuses: True if the first queue of the chain refuses what it passes on.
        chain_drops: True if the full queue of the chain drops what it refuses.

    """

    durable: list[str]
    quorum: list[str]
    transient: list[str]
    small: str
    small_is_durable: bool
    chain_refuses: bool
    chain_drops: bool
    unjudged: set[str] = field(default_factory=set)
    """Target queues that were purged or deleted."""

    @property
    def targets(self) -> list[str]:
        return self.durable + self.quorum + self.transient

    def judged(self, names: Iterable[str]) -> list[str]:
        """Return those that must have all their messages."""
        return [name for name in names if name not in self.unjudged]


class Ledger:
    """Everything that was published, and what consumers have decided."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues
        self.publishers: list[Publisher] = []
        self.messages: dict[bytes, Published] = {}
        self.emptied: set[str] = set()
        """Ways whose queue is being purged or deleted."""
        self.held: dict[int, tuple[str, bytes]] = {}
        """Ways and bodies of deliveries that the consumer has not settled, by tag."""
        self.acked: set[bytes] = set()
        self.rejected: set[bytes] = set()
        """Messages that a consumer has acked, and rejected without requeue."""

    def published(
        self, publisher: Publisher, way: str, target: str, *, persistent: bool, in_file: bool
    ) -> Published:
        publisher.count += 1
        body = b"m%06d" % len(self.messages)
        awaits = way == AWAITING and not publisher.is_transactional
        message = Published(body, publisher.number, publisher.count, way, target, persistent, in_file, awaits)
        message.may_vanish = way in self.emptied
        publisher.open[publisher.count] = self.messages[body] = message
        return message

    def emptying(self, way: str) -> None:
        """Note that the queue of a way is about to be purged or deleted."""
        self.emptied.add(way)
        for message in self.messages.values():
            message.may_vanish |= message.way == way

    def delivered(self, way: str, tag: int, body: bytes) -> None:
        if body in self.acked or body in self.rejected:
            raise ViolationError(f"delivery: {self.messages[body]} once more after its end")
        if (way, body) in self.held.values():
            raise ViolationError(f"delivery: {self.messages[body]}, which a consumer has")
        self.held[tag] = way, body

    def settled(self, tag: int, *, multiple: bool, to: set[bytes] | None) -> None:
        """Note that a consumer settles one delivery, or all up to it: adds them to a set, None if they are requeued."""
        for each in [each for each in self.held if each <= tag] if multiple else [tag]:
            _, body = self.held.pop(each)
            if to is not None:
                to.add(body)

    # -- the judgement ------------------------------------------------------------------------------------------------

    def judge_verdicts(self, *, is_at_rest: bool) -> None:
        """Judge the verdicts; at rest there must be one for each publish."""
        for message in self.messages.values():
            if message.verdict is None:
                if is_at_rest and not message.has_none:
                    raise ViolationError(f"verdict: none for {message}")
            elif message.verdict:
                decided = message.body in self.acked or message.body in self.rejected
                if message.awaits and not decided and not message.may_vanish:
                    raise ViolationError(f"verdict: an ack before a consumer's decision for {message}")
            elif not self._may_be_nacked(message):
                raise ViolationError(f"verdict: a nack for {message}")

    def _may_be_nacked(self, message: Published) -> bool:
        if message.way == CHAIN:
            return self.queues.chain_refuses
        return message.way == REFUSING or (message.awaits and message.may_vanish)

    def judge_contents(
        self, contents: Mapping[str, Sequence[bytes]], *, is_live: bool, is_at_rest: bool
    ) -> None:
        """Judge what is in the queues.

        Args:
            contents: the bodies of each queue, in order; those that expire or are delayed had the time to arrive.
            is_live: False if this is the next broker on the same disk, after a kill.
            is_at_rest: True if it came after everything else had been done, else at any moment.

        """
        places = {name: Counter(bodies) for name, bodies in contents.items()}
        for name, found in places.items():
            for body in found:
                if body not in self.messages:
                    raise ViolationError(f"delivery: {name} has {body!r}, which nobody has published")
        for message in self.messages.values():
            counts = {name: found[message.body] for name, found in places.items() if found[message.body]}
            where = f"{message} is in {counts}"
            may_be_twice = message.in_file and message.way in MOVING | {CHAIN} and not is_at_rest
            if not may_be_twice and any(count > 1 for count in counts.values()):
                raise ViolationError(f"doubled: {where}")
            if message.way == CHAIN:
                self._judge_chained(message, counts, where, is_live=is_live, is_at_rest=is_at_rest)
            else:
                self._judge_spread(message, counts, where, is_live=is_live, is_at_rest=is_at_rest)
        self._judge_order(contents)

    def _judge_chained(
        self, message: Published, counts: Mapping[str, int], where: str, *, is_live: bool, is_at_rest: bool
    ) -> None:
        if not set(counts) <= set(CHAINED):
            raise ViolationError(f"delivery: {where}")
        if sum(counts.values()) > 1 and (is_at_rest or not message.in_file):
            raise ViolationError(f"doubled: {where}")
        # what goes through a transient queue may be lost by a kill
        if is_live and not counts and not message.may_vanish and not self.queues.chain_drops:
            raise ViolationError(f"lost: {where}")

    def _judge_spread(
        self, message: Published, counts: Mapping[str, int], where: str, *, is_live: bool, is_at_rest: bool
    ) -> None:
        queues = self.queues
        kept = self._expected(message, is_live=is_live)
        arrived = {counts.get(name, 0) for name in kept}
        if len(arrived) > 1:
            raise ViolationError(f"in part: {where}, and not in all of {kept}")
        moved = max((counts.get(name, 0) for name in queues.targets), default=0)
        waiting = counts.get(message.way, 0)
        if message.way in MOVING and moved and waiting and (is_at_rest or not message.in_file):
            raise ViolationError(f"doubled: {where}")
        body, way = message.body, message.way
        if way == REFUSING:
            self._judge_refused(message, counts.get(queues.small, 0), where, is_live=is_live)
        if way == AWAITING:
            self._judge_awaited(message, counts, where, is_live=is_live, is_at_rest=is_at_rest)
        if is_live or is_at_rest:
            if way == REJECTED and body in self.acked:
                if counts:
                    raise ViolationError(f"doubled: {where}, and was acked")
                return
            must_be = is_live or message.persistent
        else:
            must_be = bool(message.verdict) and body not in self.acked
        if not kept or not must_be or (message.may_vanish and way in MOVING):
            return
        if way == REJECTED and not is_at_rest and waiting:
            return
        if way in MOVING and not message.persistent and not is_live:
            return  # a transient message that had not arrived
        if not arrived - {0}:
            raise ViolationError(f"lost: {where}, not in {kept}")

    def _expected(self, message: Published, *, is_live: bool) -> list[str]:
        """Return the target queues that have the message if one of them does."""
        queues = self.queues
        if is_live:
            kept = queues.targets
        elif message.persistent:
            kept = queues.durable + queues.quorum
        else:
            kept = queues.quorum
        if message.way == ONE:
            kept = [name for name in kept if name == message.target]
        return queues.judged(kept)

    def _judge_refused(self, message: Published, count: int, where: str, *, is_live: bool) -> None:
        is_kept = is_live or (message.persistent and self.queues.small_is_durable)
        if message.verdict is False and count:
            raise ViolationError(f"verdict: a nack, but {where}")
        if message.verdict and not count and is_kept:
            raise ViolationError(f"lost: {where}, not in {self.queues.small}")

    def _judge_awaited(
        self, message: Published, counts: Mapping[str, int], where: str, *, is_live: bool, is_at_rest: bool
    ) -> None:
        if message.may_vanish:
            return
        after, is_rejected = counts.get(AFTER, 0), message.body in self.rejected
        if after and not is_rejected:
            raise ViolationError(f"delivery: {where}, but was not rejected")
        if is_at_rest and counts.get(AWAITING):
            raise ViolationError(f"doubled: {where}, and a consumer has settled it")
        must_be = is_live or (message.persistent and (is_at_rest or (message.verdict and message.awaits)))
        if is_rejected and must_be and not after:
            raise ViolationError(f"lost: {where}, not in {AFTER}")

    def _judge_order(self, contents: Mapping[str, Sequence[bytes]]) -> None:
        """Judge the order in which each queue has the messages that a publisher has sent directly, or on another way."""
        for name, bodies in contents.items():
            last: dict[tuple[int, str], int] = {}
            for message in (self.messages[body] for body in bodies):
                if message.way in {DELAYED, REJECTED} or (message.in_file and message.way not in DIRECT):
                    continue
                if name == AFTER:  # in the order in which the consumer rejected them
                    continue
                lane = message.publisher, "direct" if message.way in DIRECT else message.way
                if message.number <= last.get(lane, 0):
                    raise ViolationError(f"order: {name} has {message} after {last[lane]}")
                last[lane] = message.number
