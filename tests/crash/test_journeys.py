"""Each oracle for messages that move objects to a forged history, and none to an honest one."""

import pytest
from crash.journeys import DUE, EXPIRED, LIMIT, NOWHERE, REJECTED, Death, Journeys, Way
from crash.ledger import Id, Ledger

DIGEST = b"digest--"
EXPIRES = Way("a", ("a", "dead", EXPIRED), ordered=["dead"])
GIVEN_UP = Way("a", ("a", "dead", REJECTED))
LATER = Way("line", ("line", "b", DUE))
LIMITED = Way("a", ("a", "dead", LIMIT), limit=2)
BY_TTL = (Death("a", "expired"),)
BY_REJECT = (Death("a", "rejected"),)


class Books:
    """A ledger with its journeys, and one channel."""

    def __init__(self):
        self.ledger = Ledger()
        self.journeys = Journeys(self.ledger)

    def publish(self, *ways, count=1, confirmed=True, persistent=True, **options):
        """Messages of a new channel; their ids."""
        channel = self.ledger.open_channel()
        idents = []
        for _ in range(count):
            ident = self.ledger.next_id(channel)
            publication = self.ledger.published(ident, (), DIGEST, persistent=persistent)
            self.journeys.published(publication, ways, **options)
            idents.append(ident)
        if confirmed:
            self.verdict(channel, count, ack=True)
        return idents

    def verdict(self, channel, number, *, ack):
        for publication in self.ledger.verdict(channel, number, multiple=True, ack=ack):
            self.journeys.decided(publication, ack=ack)

    def deliver(self, station, ident, *, redelivered=False, **options):
        return self.journeys.delivered(station, ident, DIGEST, redelivered=redelivered, **options)

    def died(self):
        self.journeys.died()
        self.ledger.died()

    @property
    def found(self):
        return [violation.oracle for violation in self.ledger.violations]


@pytest.fixture
def books():
    return Books()


class TestHonestHistories:
    """Histories without a violation: none is found."""

    def test_what_expires_is_found_where_its_dead_letters_go(self, books):
        """Expired messages come in order from their dead letter queue, and were never delivered there before."""
        for ident in books.publish(EXPIRES, count=3):
            books.journeys.acked(books.deliver("dead", ident, deaths=BY_TTL))
        books.journeys.finished()
        assert [] == books.found

    def test_a_move_that_was_not_on_disk_is_made_again(self, books):
        """The dead letter was delivered, then the broker died: the message may be anywhere on its way."""
        (ident,) = books.publish(EXPIRES)
        books.deliver("dead", ident, deaths=BY_TTL)
        books.died()
        books.deliver("a", ident, redelivered=True)
        books.died()
        books.journeys.acked(books.deliver("dead", ident, deaths=BY_TTL))
        books.journeys.finished()
        assert [] == books.found
        assert 2 == books.ledger.counts["recovered"]

    def test_an_ack_that_nobody_knows_to_be_on_disk(self, books):
        """An ack not known to be on disk may be lost with the move before it, or both are there."""
        first, second = books.publish(EXPIRES, count=2)
        for ident in (first, second):
            books.journeys.acked(books.deliver("dead", ident, deaths=BY_TTL))
        books.died()
        books.deliver("dead", second, redelivered=True, deaths=BY_TTL)
        books.journeys.finished()
        assert [] == books.found

    @pytest.mark.parametrize("station", ["a", "dead"])
    def test_a_rejected_message_may_be_back_though_a_later_publish_was_confirmed(self, books, station):
        """A rejected message may be in its old place, if its dead letter was not committed yet."""
        (ident,) = books.publish(GIVEN_UP)
        books.journeys.known([books.journeys.rejected(books.deliver("a", ident))])
        books.died()
        deaths = BY_REJECT if station == "dead" else ()
        books.journeys.acked(books.deliver(station, ident, redelivered=station == "a", deaths=deaths))
        books.journeys.finished()
        assert [] == books.found

    def test_a_kill_may_leave_a_large_message_behind_while_it_moves(self, books):
        """A body in a file of its own was not complete: after the kill it comes after those behind it."""
        way = Way("a", ("a", "dead", EXPIRED), ordered=["dead"])
        first, second = books.publish(way, count=2, apart=True)
        books.died()
        for ident in (second, first):
            books.journeys.acked(books.deliver("dead", ident, deaths=BY_TTL))
        books.journeys.finished()
        assert [] == books.found

    @pytest.mark.parametrize("apart", [True, False])
    def test_a_large_dead_letter_that_was_acked_may_come_again(self, books, apart):
        """Its original stays until a file is written, for which a later confirm does not wait; a small one is over."""
        (ident,) = books.publish(Way("a", ("a", "dead", EXPIRED), ordered=["dead"]), apart=apart)
        books.journeys.known([books.journeys.acked(books.deliver("dead", ident, deaths=BY_TTL))])
        books.died()
        books.journeys.acked(books.deliver("dead", ident, deaths=BY_TTL))
        books.journeys.finished()
        assert ([] if apart else ["O2"]) == books.found

    def test_a_message_with_two_ways_is_two_tokens(self, books):
        """A message with two ways is delivered once by each."""
        (ident,) = books.publish(Way("a", ("a", "x", EXPIRED)), Way("a", ("a", "y", EXPIRED)))
        for station in ("x", "y"):
            books.journeys.acked(books.deliver(station, ident, deaths=BY_TTL))
        books.journeys.finished()
        assert [] == books.found

    def test_what_was_not_confirmed_may_be_anywhere_or_nowhere(self, books):
        """An unconfirmed message may be anywhere or nowhere until it has come back from disk."""
        first, _ = books.publish(EXPIRES, count=2, confirmed=False)
        books.died()
        books.deliver("dead", first, deaths=BY_TTL)
        books.died()
        books.journeys.finished()
        assert ["O1"] == books.found

    def test_what_is_dropped_by_the_rules_is_not_missed(self, books):
        """A TTL without dead letters, a cycle."""
        books.publish(Way("a", ("a", NOWHERE, EXPIRED)))
        books.journeys.finished()
        assert [] == books.found

    def test_refused_messages_are_nowhere_or_dead_letters(self, books):
        """Refused messages are nowhere or dead letters, as the overflow says."""
        (ident,) = books.publish(Way("a", refused="dead"), confirmed=False)
        books.verdict(1, 1, ack=False)
        books.deliver("dead", ident, deaths=(Death("a", "maxlen"),))
        books.journeys.finished()
        assert [] == books.found

    def test_a_message_may_have_been_refused_though_nobody_heard_the_nack(self, books):
        """A message whose nack was lost may be refused: its dead letter is on disk, and is a message like any other."""
        taken, refused = books.publish(Way("a", refused="dead"), count=2, confirmed=False)
        books.died()
        books.deliver("a", taken, redelivered=True)
        books.deliver("dead", refused, deaths=(Death("a", "maxlen"),))
        assert [] == books.found
        books.died()
        books.journeys.finished()
        assert ["O1", "O1"] == books.found

    def test_a_delayed_transient_message_may_survive(self, books):
        """The line of a delayed exchange is on disk."""
        kept, _ = books.publish(LATER, count=2, persistent=False)
        books.died()
        books.deliver("b", kept)
        books.journeys.finished()
        assert [] == books.found

    def test_a_connection_that_was_cut(self, books):
        """Acks of a cut connection may not have arrived, and deliveries on their way to it are marked or not."""
        seen, unseen = books.publish(Way("a"), count=2)
        delivery = books.journeys.acked(books.deliver("a", seen))
        books.journeys.doubted([delivery])
        books.journeys.disturbed("a")
        books.deliver("a", seen, redelivered=True)
        books.deliver("a", unseen, redelivered=True)
        assert [] == books.found


class TestNoLoss:
    """Violations of O1: losses."""

    def test_a_message_that_is_in_neither_place(self, books):
        """The source was deleted before the dead letter was on disk."""
        books.publish(EXPIRES)
        books.died()
        books.journeys.finished()
        assert ["O1"] == books.found
        assert 1 == books.ledger.counts["lost"]

    def test_one_of_two_copies(self, books):
        """A lost copy is a violation on every way."""
        (ident,) = books.publish(Way("a", ("a", "x", EXPIRED)), Way("a", ("a", "y", EXPIRED)))
        books.deliver("x", ident, deaths=BY_TTL)
        books.died()
        books.deliver("x", ident, redelivered=True, deaths=BY_TTL)
        books.journeys.finished()
        assert ["O1"] == books.found

    def test_a_rejected_message_without_its_dead_letter(self, books):
        """A rejected message without its dead letter is lost."""
        (ident,) = books.publish(GIVEN_UP)
        books.journeys.rejected(books.deliver("a", ident))
        books.journeys.finished()
        assert ["O1"] == books.found

    def test_a_rejected_message_that_is_in_neither_place_after_a_fault(self, books):
        """A later publish was confirmed, the dead letter was not committed, and the message did not come back."""
        (ident,) = books.publish(GIVEN_UP)
        books.journeys.known([books.journeys.rejected(books.deliver("a", ident))])
        books.died()
        books.journeys.finished()
        assert ["O1"] == books.found


class TestNoDuplicate:
    """Violations of O2: duplicates."""

    @pytest.mark.parametrize("stations", [("a", "dead"), ("dead", "a")])
    def test_a_rejected_message_that_is_in_both_places_after_a_fault(self, books, stations):
        """A rejected message is a duplicate if its dead letter was committed without its end in the queue."""
        (ident,) = books.publish(GIVEN_UP)
        books.journeys.known([books.journeys.rejected(books.deliver("a", ident))])
        books.died()
        for station in stations:
            deaths = BY_REJECT if station == "dead" else ()
            books.journeys.acked(books.deliver(station, ident, redelivered=True, deaths=deaths))
        assert ["O2"] == books.found

    def test_a_rejected_message_whose_dead_letter_was_on_disk(self, books):
        """A confirm for a later publish proves the dead letter on disk, so the message is not in its old place."""
        (ident,) = books.publish(GIVEN_UP)
        books.journeys.known([books.journeys.rejected(books.deliver("a", ident))])
        books.journeys.known([books.deliver("dead", ident, deaths=BY_REJECT)])
        books.died()
        books.deliver("a", ident, redelivered=True)
        assert ["O2"] == books.found

    @pytest.mark.parametrize("settle", ["acked", "rejected"])
    def test_a_settled_message_without_dead_letters_stays_away(self, books, settle):
        """A later publish was confirmed, so the ack, or the reject, was on disk."""
        (ident,) = books.publish(Way("a"))
        books.journeys.known([getattr(books.journeys, settle)(books.deliver("a", ident))])
        books.died()
        books.deliver("a", ident, redelivered=True)
        assert ["O2"] == books.found

    def test_an_acked_message_of_a_queue_with_dead_letters_stays_away(self, books):
        """An acked message does not come back though its queue has dead letters: only a reject may take its time."""
        (ident,) = books.publish(GIVEN_UP)
        books.journeys.known([books.journeys.acked(books.deliver("a", ident))])
        books.died()
        books.deliver("a", ident, redelivered=True)
        assert ["O2"] == books.found

    def test_a_dead_letter_that_is_still_in_its_queue(self, books):
        """A dead letter that is still in its queue without a fault is a duplicate."""
        (ident,) = books.publish(EXPIRES)
        books.journeys.acked(books.deliver("dead", ident, deaths=BY_TTL))
        books.deliver("a", ident)
        assert ["O2"] == books.found

    def test_a_move_that_was_on_disk_is_not_made_again(self, books):
        """A confirm for a later publish proves the move on disk, so it is not made again."""
        (ident,) = books.publish(EXPIRES)
        delivery = books.deliver("dead", ident, deaths=BY_TTL)
        books.journeys.known([delivery])
        books.died()
        books.deliver("a", ident, redelivered=True)
        assert ["O2"] == books.found

    def test_an_ack_that_was_on_disk(self, books):
        """An ack on disk ends a message, though its line is forgotten."""
        (ident,) = books.publish(EXPIRES)
        books.journeys.known([books.journeys.acked(books.deliver("dead", ident, deaths=BY_TTL))])
        books.journeys.forget()
        books.died()
        books.deliver("dead", ident, redelivered=True, deaths=BY_TTL)
        assert ["O2"] == books.found

    def test_a_message_that_was_refused(self, books):
        """A nack says that it is nowhere."""
        (ident,) = books.publish(Way("a"), confirmed=False)
        books.verdict(1, 1, ack=False)
        books.deliver("a", ident)
        assert ["O2"] == books.found

    def test_a_confirmed_message_was_not_refused(self, books):
        """A confirmed message has no dead letter of a refusal, not after a fault either."""
        (ident,) = books.publish(Way("a", refused="dead"))
        books.died()
        books.deliver("dead", ident, redelivered=True, deaths=(Death("a", "maxlen"),))
        assert ["O2"] == books.found

    def test_a_message_that_has_moved_is_in_one_place(self, books):
        """After a fault it is where it was or where it moved to, and never in both."""
        (ident,) = books.publish(EXPIRES)
        books.journeys.acked(books.deliver("dead", ident, deaths=BY_TTL))
        books.died()
        books.journeys.acked(books.deliver("dead", ident, redelivered=True, deaths=BY_TTL))
        books.deliver("a", ident, redelivered=True)
        assert ["O2"] == books.found

    def test_a_recovered_message_that_cannot_have_moved_is_marked(self, books):
        """A recovered message that was in its queue when the broker died is marked."""
        (ident,) = books.publish(Way("a"))
        books.died()
        books.deliver("a", ident)
        assert ["O2"] == books.found
        assert 1 == books.ledger.counts["unmarked"]

    def test_a_dead_letter_is_a_new_message(self, books):
        """A dead letter has no `redelivered`, though the message was delivered before it was rejected."""
        (ident,) = books.publish(GIVEN_UP)
        books.journeys.rejected(books.deliver("a", ident))
        books.deliver("dead", ident, redelivered=True, deaths=(Death("a", "rejected"),))
        assert ["O2"] == books.found


class TestOrder:
    """Violations of O3: disorder."""

    def test_dead_letters_come_in_the_order_of_their_queue(self, books):
        """Dead letters come in the order of their queue."""
        first, second = books.publish(EXPIRES, count=2)
        books.deliver("dead", second, deaths=BY_TTL)
        books.deliver("dead", first, deaths=BY_TTL)
        assert ["O3"] == books.found

    def test_groups_are_in_order_each_for_itself(self, books):
        """Groups are in order each for itself, as priorities overtake."""
        (low,) = books.publish(Way("a", ordered=["a"]), group=1)
        (high,) = books.publish(Way("a", ordered=["a"]), group=2)
        books.deliver("a", high)
        books.deliver("a", low)
        assert [] == books.found

    def test_priorities_fall_while_nobody_publishes(self, books):
        """A higher one after a lower one is out of order."""
        (low,) = books.publish(Way("a"), group=1)
        (high,) = books.publish(Way("a"), group=2)
        books.journeys.falling("a")
        books.deliver("a", low)
        books.deliver("a", high)
        assert ["O3"] == books.found


class TestProvenance:
    """Violations of O5: wrong provenance."""

    def test_what_was_never_published(self, books):
        """A message that was never published is a violation."""
        books.deliver("a", Id(1, 1, 1))
        assert ["O5"] == books.found

    def test_a_dead_letter_without_x_death(self, books):
        """A dead letter without x-death cannot have come by itself."""
        (ident,) = books.publish(EXPIRES)
        books.deliver("dead", ident)
        assert ["O5"] == books.found

    def test_a_dead_letter_of_another_reason(self, books):
        """A dead letter with the reason of a reject that did not happen is a violation."""
        (ident,) = books.publish(EXPIRES)
        books.deliver("dead", ident, deaths=(Death("a", "rejected"),))
        assert ["O5"] == books.found

    def test_a_changed_body(self, books):
        """A changed body is a violation."""
        (ident,) = books.publish(EXPIRES)
        books.journeys.delivered("dead", ident, b"another-", redelivered=False, deaths=BY_TTL)
        assert ["O5"] == books.found


class TestTime:
    """Violations of O6: messages before their time."""

    def test_a_delayed_message_that_is_early(self, books):
        """A delayed message that is a second early is a violation."""
        (ident,) = books.publish(LATER, not_before={"b": 10.0})
        books.deliver("b", ident, now=9.0)
        assert ["O6"] == books.found
        assert 10.0 == books.journeys.latest

    def test_a_delivery_limit_that_was_not_reached(self, books):
        """A delivery limit reached after one of two returns is a violation."""
        (ident,) = books.publish(LIMITED)
        books.journeys.requeued([books.deliver("a", ident)])
        books.deliver("dead", ident, deaths=(Death("a", "delivery_limit"),))
        assert books.found[-1] == "O6"

    def test_a_delivery_limit_that_was_reached(self, books):
        """Given back as often as it may be, and once more."""
        (ident,) = books.publish(LIMITED)
        for again in (False, True, True):
            books.journeys.requeued([books.deliver("a", ident, redelivered=again)])
        books.deliver("dead", ident, deaths=(Death("a", "delivery_limit"),))
        assert [] == books.found
