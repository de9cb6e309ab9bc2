"""The short form of `make campaign NAME=deferred`, and whether its ledger objects to what no honest broker does."""

import random
from collections import Counter

import pytest
from deferred.ledger import (
    AFTER,
    AWAITING,
    CHAIN,
    EXPIRING,
    ONE,
    REFUSING,
    REJECTED,
    WIDE,
    Ledger,
    Published,
    Publisher,
    Queues,
    ViolationError,
)
from deferred.walk import walk

FIXED = range(1, 13)
"""Seeds of the walks that are always taken."""
DRAWN = 3
"""Number of walks with other seeds, which a failure prints."""


def test_walks_through_a_hurried_broker() -> None:
    """However early steps end, commits and files come, and whenever the broker is killed, each message is where it must be."""
    counts: Counter[str] = Counter()
    for seed in FIXED:
        counts += walk(seed)
    for _ in range(DRAWN):
        counts += walk(random.randrange(10**9))

    assert (
        min(counts[what] for what in ("killed", "at rest", "acks", "nacks", "held", "purged", "deleted")) > 0
    )
    assert counts["longest line"] > 0


class World:
    """A ledger with a publisher, and with contents that a broker might have."""

    def __init__(self, *, is_transactional: bool = False) -> None:
        queues = Queues(
            ["a", "b"], ["q"], ["t"], "small", small_is_durable=True, chain_refuses=False, chain_drops=False
        )
        self.ledger = Ledger(queues)
        self.publisher = Publisher(1, is_transactional=is_transactional)

    def publish(self, way: str, *, persistent: bool = True, in_file: bool = False) -> Published:
        return self.ledger.published(self.publisher, way, "a", persistent=persistent, in_file=in_file)

    def judged(self, *, is_live: bool = False, is_at_rest: bool = False, **contents: list[Published]) -> str:
        """Return what the ledger objects to, or an empty string."""
        found = {name: [message.body for message in messages] for name, messages in contents.items()}
        try:
            self.ledger.judge_verdicts(is_at_rest=is_at_rest)
            self.ledger.judge_contents(found, is_live=is_live, is_at_rest=is_at_rest)
        except ViolationError as violation:
            return str(violation).partition(":")[0]
        return ""


def test_the_ledger_wants_one_verdict() -> None:
    """A second verdict, none at rest, and a nack where no queue refuses are violations."""
    world = World()
    message = world.publish(WIDE)

    assert "verdict" == world.judged(is_at_rest=True)
    world.publisher.confirmed(1, multiple=False, ack=False)
    assert "verdict" == world.judged()
    message.way = REFUSING
    assert not world.judged()
    with pytest.raises(ViolationError, match="second"):
        world.publisher.confirmed(1, multiple=False, ack=True)


def test_the_ledger_wants_all_of_a_message_or_nothing() -> None:
    """A message that is in some of its queues only is a violation; whether it had to be there depends on its verdict."""
    world = World()
    message = world.publish(WIDE)

    assert not world.judged()
    assert "in part" == world.judged(a=[message], q=[message])
    assert not world.judged(a=[message], b=[message], q=[message])
    assert "doubled" == world.judged(a=[message, message], b=[message], q=[message])
    world.publisher.confirmed(1, multiple=True, ack=True)
    assert "lost" == world.judged()
    world.ledger.queues.unjudged.add("b")
    assert not world.judged(a=[message], q=[message])
    assert "in part" == world.judged(is_live=True, a=[message], q=[message])


def test_the_ledger_wants_transient_messages_where_they_are_stored() -> None:
    """After a kill a transient message that was acked is in quorum queues, whether or not it is in others."""
    world = World()
    message = world.publish(WIDE, persistent=False)
    world.publisher.confirmed(1, multiple=False, ack=True)

    assert "lost" == world.judged()
    assert not world.judged(q=[message])
    assert not world.judged(q=[message], a=[message])


def test_the_ledger_wants_one_place_for_a_message_that_moves() -> None:
    """A dead letter is where it was or where it goes; only one in a file may be in both after a kill."""
    world = World()
    message, file = world.publish(REJECTED), world.publish(EXPIRING, in_file=True)
    both = {name: [message, file] for name in "abq"}
    world.publisher.confirmed(2, multiple=True, ack=True)

    assert not world.judged(rejected=[message], expiring=[file], **{name: [file] for name in "abq"})
    assert not world.judged(**both)
    assert "doubled" == world.judged(rejected=[message], **both)
    assert "lost" == world.judged(**{name: [message] for name in "abq"})
    world.ledger.emptying(EXPIRING)
    assert not world.judged(**{name: [message] for name in "abq"})


def test_the_ledger_wants_the_order_of_a_publisher() -> None:
    """A queue has the messages that a publisher sent directly in their order, and so those of each other way."""
    world = World()
    first, letter, second = world.publish(ONE), world.publish(EXPIRING), world.publish(ONE)
    for queue in ("b", "q"):
        world.ledger.queues.unjudged.add(queue)

    assert not world.judged(a=[first, second, letter])
    assert "order" == world.judged(a=[second, first])


def test_the_ledger_wants_a_consumer_s_decision() -> None:
    """An ack for a message that a consumer has to decide on comes after that; what it rejects is dead-lettered once."""
    world = World()
    message = world.publish(AWAITING)
    everywhere = {name: [message] for name in "abq"}
    world.publisher.confirmed(1, multiple=False, ack=True)
    assert "verdict" == world.judged(**everywhere)
    world.ledger.delivered(AWAITING, 1, message.body)
    with pytest.raises(ViolationError, match="consumer has"):
        world.ledger.delivered(AWAITING, 2, message.body)
    world.ledger.settled(1, multiple=False, to=world.ledger.rejected)

    assert "lost" == world.judged(**everywhere)
    assert not world.judged(**everywhere, **{AFTER: [message]})
    with pytest.raises(ViolationError, match="once more"):
        world.ledger.delivered(AWAITING, 2, message.body)


def test_the_ledger_excuses_a_kill_for_transient_transit_only() -> None:
    """A message that goes through a transient queue may be lost by a kill, but not without one, and is never twice."""
    world = World()
    message = world.publish(CHAIN)
    world.publisher.confirmed(1, multiple=False, ack=True)

    assert not world.judged()
    assert "lost" == world.judged(is_live=True, is_at_rest=True)
    assert not world.judged(is_live=True, is_at_rest=True, end=[message])
    assert "doubled" == world.judged(chain=[message], end=[message])


def test_the_ledger_wants_a_refused_message_to_stay_out() -> None:
    """A full queue has each message that was acked, and none that was nacked."""
    world = World()
    taken, refused = world.publish(REFUSING), world.publish(REFUSING)
    world.publisher.confirmed(1, multiple=False, ack=True)
    world.publisher.confirmed(2, multiple=False, ack=False)
    everywhere = {name: [taken, refused] for name in "abq"}

    assert not world.judged(small=[taken], **everywhere)
    assert "lost" == world.judged(**everywhere)
    assert "verdict" == world.judged(small=[taken, refused], **everywhere)
