"""Each oracle for messages that wait for consumers objects to a forged history, and none to an honest one."""

import pytest
from crash.promises import LIGHT, MODES, Promises

DIGEST = b"digest--"
FULL = MODES[0]
QUEUES = {"q": FULL, "other": FULL, "light": LIGHT, "greedy": FULL, "rejects": FULL}


class Books:
    """A ledger with one publisher's channel and one consumer of each queue."""

    def __init__(self):
        self.ledger = Promises(QUEUES, without_acks={"greedy"}, letters={"rejects": "dead"})
        self.channel = self.ledger.open_channel()

    def publish(self, *queues, **options):
        """Publish one more message and return its id."""
        ident = self.ledger.next_id(self.channel)
        self.ledger.published(ident, queues, DIGEST, **options)
        return ident

    def verdict(self, ident, *, ack=True):
        self.ledger.verdict(ident.channel, ident.seq, multiple=False, ack=ack)

    def deliver(self, queue, ident, *, redelivered=False):
        """Note a delivery and return the copy."""
        return self.ledger.delivered(queue, ident, DIGEST, redelivered=redelivered)

    def ack(self, queue, ident, **options):
        self.ledger.acked([self.deliver(queue, ident, **options)])

    def committed(self, queue, count=1):
        """Messages of a channel without confirms, which a commit covers."""
        channel = self.ledger.open_channel(confirms=False)
        idents = []
        for _ in range(count):
            idents.append(self.ledger.next_id(channel))
            self.ledger.published(idents[-1], (queue,), DIGEST)
        self.ledger.verdict(channel, count, multiple=True, ack=True)
        return idents

    def stop(self, consumed=("q", "other", "light", "greedy", "rejects")):
        """A stop of a broker that has read everything, with consumers at work."""
        self.ledger.taken(self.channel)
        self.ledger.halting(consumed)
        self.ledger.halted(consumed)

    @property
    def found(self):
        return [violation.oracle for violation in self.ledger.violations]


@pytest.fixture
def books():
    return Books()


class TestHonestHistories:
    """Histories without a violation: none is found."""

    def test_a_publish_is_confirmed_when_consumers_have_acked_all_its_copies(self, books):
        """A standard queue's copy needs no consumer."""
        ident = books.publish("q", "other", "light", "standard")
        for queue in ("q", "other", "light"):
            books.ack(queue, ident)
        books.verdict(ident)
        books.ledger.quiet(books.channel)
        assert [] == books.found
        assert 1 == books.ledger.counts["consumed"]

    def test_what_is_given_back_comes_again_and_is_confirmed_then(self, books):
        """Requeued, or held on a connection that was cut."""
        first, second = books.publish("q"), books.publish("q")
        books.ledger.requeued([books.deliver("q", first)])
        books.ledger.cut("q", [books.deliver("q", first, redelivered=True)])
        books.ledger.disturbed("q")
        books.ack("q", first, redelivered=True)
        books.ack("q", second, redelivered=True)
        books.verdict(first)
        books.verdict(second)
        books.ledger.drained("q")
        assert [] == books.found

    def test_an_ack_that_was_sent_before_the_connection_was_cut(self, books):
        """The broker has heard it, or delivers again."""
        heard, unheard = books.publish("q"), books.publish("q")
        books.ack("q", heard)
        books.ack("q", unheard)
        books.ledger.cut("q", [])
        books.ledger.disturbed("q")
        books.verdict(heard)
        books.ack("q", unheard, redelivered=True)
        books.verdict(unheard)
        books.ledger.drained("q")
        assert [] == books.found

    def test_a_light_queue_says_no_for_what_comes_back(self, books):
        """Given back, held, acked last or on its way when the connection was cut; publishers may hear before the consumer."""
        idents = [books.publish("light") for _ in range(5)]
        books.ledger.requeued([books.deliver("light", idents[0])])
        books.verdict(idents[0], ack=False)
        books.ack("light", idents[1])
        books.ledger.cut("light", [books.deliver("light", idents[2])])
        books.verdict(idents[3], ack=False)
        books.ledger.disturbed("light")
        books.verdict(idents[1], ack=False)
        books.verdict(idents[2], ack=False)
        books.ack("light", idents[4])
        books.verdict(idents[4])
        books.ledger.drained("light")
        books.ledger.quiet(books.channel)
        assert [] == books.found

    def test_a_channel_with_light_deliveries_closes(self, books):
        """The nack comes before the reply to the consumer."""
        ident = books.publish("light")
        copy = books.deliver("light", ident)
        books.ledger.leaving("light")
        books.verdict(ident, ack=False)
        books.ledger.placed("light", books.ledger.requeued([copy]))
        assert [] == books.found

    def test_a_kill_may_take_what_nobody_has_answered_for(self, books):
        """A kill may take messages without an answer, and answered ones, but none that a commit has covered."""
        first, second = books.publish("q"), books.publish("q")
        books.ack("q", first)
        (kept,) = books.committed("q")
        books.ledger.died()
        books.deliver("q", kept, redelivered=True)
        books.ledger.drained("q")
        assert [] == books.found
        assert 1 == books.ledger.counts["let go"]
        assert second.seq == 2

    def test_a_stop_keeps_what_is_persistent(self, books):
        """Held or ready, also after a kill later; what was acked last may come again, what is transient does not."""
        acked, held, ready = [books.publish("q") for _ in range(3)]
        books.publish("q", persistent=False)
        books.ack("q", acked)
        books.deliver("q", held)
        books.stop()
        books.ledger.depth("q", 2)
        books.ledger.died()
        books.deliver("q", held, redelivered=True)
        books.deliver("q", ready, redelivered=True)
        books.ledger.drained("q")
        assert [] == books.found
        assert 2 == books.ledger.counts["spilled"]

    def test_a_stop_that_is_cut_short_may_have_kept_what_is_persistent(self, books):
        """A stop cut short may have kept persistent messages, in any order; those covered by a commit are there."""
        *_, ready = [books.publish("q") for _ in range(2)]
        first, second = books.committed("q", 2)
        books.ledger.taken(books.channel)
        books.ledger.halting(["q"])
        books.ledger.died_stopping(["q"])
        for ident in (second, ready, first):
            books.ack("q", ident)
        books.ledger.drained("q")
        assert [] == books.found

    def test_a_stop_loses_what_a_light_queue_has_delivered(self, books):
        """A stop loses messages of a light queue that may be on their way to a consumer, and none that nobody consumes."""
        books.deliver("light", books.publish("light"))
        books.publish("light")
        books.stop()
        books.ledger.depth("light", 0)
        books.channel = books.ledger.open_channel()
        ready = books.publish("light")
        books.stop(consumed=())
        books.deliver("light", ready)
        books.ledger.drained("light")
        assert [] == books.found

    def test_a_consumer_that_needs_no_acks(self, books):
        """The publisher may hear first, and in a fault what was handed over may not arrive."""
        arrived, lost = books.publish("greedy"), books.publish("greedy")
        books.verdict(arrived)
        books.ack("greedy", arrived)
        books.verdict(lost)
        books.ledger.died()
        books.ledger.drained("greedy")
        assert [] == books.found

    def test_a_reject_is_an_answer_and_leaves_a_dead_letter(self, books):
        """A reject leaves a dead letter; if it did not arrive, the original comes back and the dead letter does not."""
        rejected, unheard = books.publish("rejects"), books.publish("rejects")
        books.ledger.rejected([books.deliver("rejects", rejected)])
        books.verdict(rejected)
        books.ledger.rejected([books.deliver("rejects", unheard)])
        books.ledger.cut("rejects", [])
        books.ledger.disturbed("rejects")
        books.ack("rejects", unheard, redelivered=True)
        books.verdict(unheard)
        books.ledger.died()
        books.deliver("dead", rejected, redelivered=True)
        books.ledger.drained("dead")
        assert [] == books.found

    def test_a_publisher_that_was_cut(self, books):
        """A cut publisher has no more verdicts, and its messages may be there or not."""
        ident = books.publish("q", "standard")
        books.publish("q")
        books.ledger.publisher_cut(books.channel)
        books.ack("q", ident)
        for queue in ("q", "standard"):
            books.ledger.drained(queue)
        assert [] == books.found


class TestAnswered:
    """O1: every ack has a consumer behind it, in each queue."""

    @pytest.mark.parametrize("queue", ["q", "light"])
    def test_a_confirm_at_delivery(self, books, queue):
        """A confirm while the consumer holds the message is a violation."""
        ident = books.publish(queue)
        books.deliver(queue, ident)
        books.verdict(ident)
        assert ["O1"] == books.found
        assert 1 == books.ledger.counts["unanswered"]

    def test_a_confirm_after_one_of_two_copies(self, books):
        """A confirm after one of two copies is a violation: the other waits."""
        ident = books.publish("q", "other")
        books.ack("q", ident)
        books.verdict(ident)
        assert ["O1"] == books.found

    @pytest.mark.parametrize("queue", ["q", "light"])
    def test_a_confirm_of_what_was_given_back(self, books, queue):
        """A confirm of a message that was given back is a violation: no consumer has it."""
        ident = books.publish(queue)
        books.ledger.requeued([books.deliver(queue, ident)])
        books.verdict(ident)
        assert ["O1"] == books.found

    def test_a_confirm_of_what_was_delivered_again(self, books):
        """The ack before the cut was not heard, or it would not have come again."""
        ident = books.publish("q")
        books.ack("q", ident)
        books.ledger.cut("q", [])
        books.deliver("q", ident, redelivered=True)
        books.verdict(ident)
        assert ["O1"] == books.found

    def test_a_dead_letter_that_was_confirmed_and_is_lost(self, books):
        """A dead letter confirmed before it was on disk, and lost, is a violation."""
        ident = books.publish("rejects")
        books.ledger.rejected([books.deliver("rejects", ident)])
        books.verdict(ident)
        books.ledger.died()
        books.ledger.drained("dead")
        assert ["O1"] == books.found

    def test_what_was_handed_over_has_to_arrive_where_nothing_fails(self, books):
        """A consumer without acks is sent what it answers for."""
        books.verdict(books.publish("greedy"))
        books.ledger.drained("greedy")
        assert ["O1"] == books.found

    def test_a_stop_that_forgets_what_waits(self, books):
        """A stop must not lose a waiting message: it is persistent, and the broker had it."""
        books.publish("q")
        books.stop()
        books.ledger.drained("q")
        assert ["O1"] == books.found

    def test_a_message_without_confirms_that_a_stop_cut_short_takes(self, books):
        """A message on disk before a stop must survive it, also one that is cut short."""
        books.committed("q")
        books.ledger.died_stopping(["q"])
        books.ledger.drained("q")
        assert ["O1"] == books.found

    def test_a_message_without_confirms_that_a_kill_takes(self, books):
        """A message without confirms covered by a commit must survive a kill, in every mode of its queue."""
        books.committed("light")
        books.ledger.died()
        books.ledger.drained("light")
        assert ["O1"] == books.found


class TestOnce:
    """O2: what has its end does not come again."""

    def test_what_was_confirmed_is_delivered_again(self, books):
        """A confirmed message must not be delivered again, not after a stop either."""
        ident = books.publish("q")
        books.ack("q", ident)
        books.verdict(ident)
        books.stop()
        books.deliver("q", ident, redelivered=True)
        assert ["O2"] == books.found

    def test_what_was_given_back_to_a_light_queue_is_delivered_again(self, books):
        """A message given back to a light queue must not be delivered again: the queue keeps nothing."""
        ident = books.publish("light")
        books.ledger.requeued([books.deliver("light", ident)])
        books.deliver("light", ident, redelivered=True)
        assert ["O2"] == books.found

    def test_what_was_never_written_comes_back_after_a_kill(self, books):
        """A message that was never written and comes back after a kill is a violation."""
        ident = books.publish("q")
        books.ledger.died()
        books.deliver("q", ident)
        assert ["O2"] == books.found


class TestVerdicts:
    """O4: a nack has a reason, and no number stays open."""

    def test_a_nack_for_what_can_be_delivered_again(self, books):
        """A nack for a message that can be delivered again is a violation, though its consumer was cut."""
        ident = books.publish("q")
        books.ledger.cut("q", [books.deliver("q", ident)])
        books.ledger.disturbed("q")
        books.verdict(ident, ack=False)
        assert ["O4"] == books.found

    def test_a_nack_for_what_waits_in_a_light_queue(self, books):
        """A nack for a message that waits in a light queue is a violation: no consumer has given it back."""
        books.verdict(books.publish("light"), ack=False)
        assert ["O4"] == books.found

    def test_a_number_that_is_never_answered(self, books):
        """A consumer has acked it, and the publisher hears nothing."""
        books.ack("q", books.publish("q"))
        books.ledger.quiet(books.channel)
        assert ["O4"] == books.found
