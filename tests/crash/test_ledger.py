"""Each oracle objects to a forged history, and none to an honest one."""

import pytest
from crash.ledger import BodyError, Id, Ledger, make_body, read_body

DIGEST = b"digest--"


def publish(ledger, channel, *queues, **options):
    ident = ledger.next_id(channel)
    ledger.published(ident, queues or ("q",), DIGEST, **options)
    return ident


def confirmed(ledger, count=1, *queues, **options):
    """Messages of a new channel, confirmed with one ack."""
    channel = ledger.open_channel()
    idents = [publish(ledger, channel, *queues, **options) for _ in range(count)]
    ledger.verdict(channel, count, multiple=True, ack=True)
    return idents


def deliver(ledger, *idents, queue="q", redelivered=False):
    return [ledger.delivered(queue, ident, DIGEST, redelivered=redelivered) for ident in idents]


def found(ledger):
    return [violation.oracle for violation in ledger.violations]


class TestBodies:
    """Identity and digest in a body."""

    def test_a_body_says_which_message_it_is(self):
        """The id and the digest come out as they went in."""
        body = make_body(Id(3, 2, 1), b"filling")
        assert (Id(3, 2, 1), body[-8:]) == read_body(body)

    @pytest.mark.parametrize("at", [0, 5, 9, 12, 20, 25, 33])
    def test_a_changed_octet_is_noticed(self, at):
        """A changed octet is noticed anywhere in the body."""
        body = bytearray(make_body(Id(1, 1, 1), b"filling"))
        body[at] ^= 1
        with pytest.raises(BodyError):
            read_body(bytes(body))

    @pytest.mark.parametrize("body", [b"", b"x" * 30, make_body(Id(1, 1, 1), b"filling")[:-1]])
    def test_a_torn_body_is_noticed(self, body):
        """A torn body is noticed, and so is one of another origin."""
        with pytest.raises(BodyError):
            read_body(body)


class TestHonestHistories:
    """Histories without a violation: none is found."""

    def test_a_run_without_faults(self):
        """Published, confirmed, delivered, acknowledged, drained."""
        ledger = Ledger()
        idents = confirmed(ledger, 10)
        ledger.depth("q", 10)
        ledger.acked(deliver(ledger, *idents))
        ledger.depth("q", 0)
        ledger.drained("q")
        assert [] == ledger.violations
        assert 10 == ledger.counts["confirmed"]

    def test_what_was_confirmed_comes_back_redelivered(self):
        """Held or not; what was acked without proof may come back or not."""
        ledger = Ledger()
        idents = confirmed(ledger, 6)
        copies = deliver(ledger, *idents[:4])
        ledger.acked(copies[:2])
        ledger.died()
        ledger.depth("q", 4)
        ledger.depth("q", 6)
        deliver(ledger, *idents[1:], redelivered=True)
        ledger.drained("q")
        assert [] == ledger.violations
        assert 4 == ledger.counts["recovered"]

    def test_what_was_not_confirmed_may_come_back_or_not(self):
        """An unconfirmed message may come back or not, but stays once it came back."""
        ledger = Ledger()
        channel = ledger.open_channel()
        first, second = publish(ledger, channel), publish(ledger, channel)
        ledger.died()
        ledger.depth("q", 1)
        deliver(ledger, first, redelivered=True)
        ledger.drained("q")
        assert [] == ledger.violations
        ledger.died()
        ledger.depth("q", 1)
        ledger.drained("q")
        assert ["O1"] == found(ledger)
        assert second.seq == 2

    def test_transient_messages_go_with_the_run(self):
        """Transient messages count as long as the run lasts."""
        ledger = Ledger()
        confirmed(ledger, 3, persistent=False)
        ledger.depth("q", 3)
        ledger.died()
        ledger.depth("q", 0)
        ledger.drained("q")
        assert [] == ledger.violations

    def test_requeued_messages_come_back_before_younger_ones(self):
        """Requeued messages come back before younger ones, in their order, redelivered."""
        ledger = Ledger()
        idents = confirmed(ledger, 6)
        copies = deliver(ledger, *idents[:4])
        ledger.acked(copies[:1])
        ledger.placed("q", ledger.requeued(copies[1:]))
        deliver(ledger, *idents[1:4], redelivered=True)
        deliver(ledger, *idents[4:])
        assert [] == ledger.violations

    def test_a_clean_stop_keeps_what_was_never_delivered_unmarked(self):
        """Delivered messages are marked after a clean stop; those that may have been on their way may be."""
        ledger = Ledger()
        idents = confirmed(ledger, 3)
        deliver(ledger, idents[0])
        ledger.stopped()
        deliver(ledger, idents[0], redelivered=True)
        deliver(ledger, idents[1], redelivered=False)
        deliver(ledger, idents[2], redelivered=True)
        assert [] == ledger.violations

    def test_unroutable_messages_are_returned_and_confirmed(self):
        """Unroutable messages are returned and confirmed, in this order."""
        ledger = Ledger()
        channel = ledger.open_channel()
        ident = ledger.next_id(channel)
        ledger.published(ident, (), DIGEST, mandatory=True)
        ledger.returned(ident)
        ledger.verdict(channel, 1, multiple=False, ack=True)
        ledger.quiet(channel)
        assert [] == ledger.violations


class TestNoLoss:
    """Violations of O1: losses."""

    def test_a_confirmed_message_that_does_not_come_back(self):
        """A confirmed message that does not come back is lost."""
        ledger = Ledger()
        idents = confirmed(ledger, 3)
        ledger.died()
        deliver(ledger, idents[0], idents[2], redelivered=True)
        ledger.drained("q")
        assert ["O1"] == found(ledger)
        assert 1 == ledger.counts["lost"]

    def test_one_copy_of_a_fanned_out_message(self):
        """A lost copy of a fanned-out message is a violation in every queue."""
        ledger = Ledger()
        (ident,) = confirmed(ledger, 1, "q", "r")
        ledger.died()
        deliver(ledger, ident, redelivered=True)
        ledger.drained("q")
        ledger.drained("r")
        assert ["O1"] == found(ledger)

    def test_a_message_that_was_unacked(self):
        """A message that was unacked must come back: a delivery is no excuse."""
        ledger = Ledger()
        deliver(ledger, *confirmed(ledger))
        ledger.died()
        ledger.drained("q")
        assert ["O1"] == found(ledger)

    def test_a_transient_message_without_a_fault(self):
        """A transient message is lost if it is missing within its run."""
        ledger = Ledger()
        confirmed(ledger, 1, persistent=False)
        ledger.drained("q")
        assert ["O1"] == found(ledger)

    def test_a_queue_that_is_gone(self):
        """A queue that is gone has lost all its messages."""
        ledger = Ledger()
        confirmed(ledger, 2)
        ledger.died()
        ledger.missing("q")
        assert ["O1", "O1", "O1"] == found(ledger)


class TestNoUnexplainedDuplicate:
    """Violations of O2: unexplained duplicates."""

    def test_a_second_delivery_without_redelivered_after_a_fault(self):
        """The flag has to be there."""
        ledger = Ledger()
        idents = confirmed(ledger)
        deliver(ledger, *idents)
        ledger.died()
        deliver(ledger, *idents)
        assert ["O2"] == found(ledger)
        assert 1 == ledger.counts["unmarked"]

    def test_a_recovered_message_without_redelivered(self):
        """A message recovered after a fault must be marked."""
        ledger = Ledger()
        idents = confirmed(ledger)
        ledger.died()
        deliver(ledger, *idents)
        assert ["O2"] == found(ledger)

    def test_a_requeued_message_without_redelivered(self):
        """A requeued message without `redelivered` is a violation without a crash, too."""
        ledger = Ledger()
        idents = confirmed(ledger)
        ledger.requeued(deliver(ledger, *idents))
        deliver(ledger, *idents)
        assert ["O2"] == found(ledger)

    def test_a_delivery_while_it_is_unacked(self):
        """A delivery of an unacked message is a violation: two consumers cannot hold it."""
        ledger = Ledger()
        idents = confirmed(ledger)
        deliver(ledger, *idents)
        deliver(ledger, *idents, redelivered=True)
        assert ["O2"] == found(ledger)

    def test_a_delivery_after_its_ack_in_the_same_run(self):
        """An ack is not forgotten when its channel closes."""
        ledger = Ledger()
        idents = confirmed(ledger)
        ledger.acked(deliver(ledger, *idents))
        deliver(ledger, *idents, redelivered=True)
        assert ["O2"] == found(ledger)

    def test_a_delivery_after_an_ack_that_was_on_disk(self):
        """A fault does not excuse it."""
        ledger = Ledger()
        idents = confirmed(ledger)
        copies = deliver(ledger, *idents)
        ledger.acked(copies)
        ledger.known(copies)
        ledger.died()
        deliver(ledger, *idents, redelivered=True)
        assert ["O2"] == found(ledger)

    def test_a_delivery_after_a_clean_stop(self):
        """Acks are kept by a clean stop."""
        ledger = Ledger()
        idents = confirmed(ledger)
        ledger.acked(deliver(ledger, *idents))
        ledger.stopped()
        deliver(ledger, *idents, redelivered=True)
        assert ["O2"] == found(ledger)

    def test_a_delivery_after_a_purge(self):
        """Purged is purged, once the broker has said so."""
        ledger = Ledger()
        first, second = confirmed(ledger, 2)
        copies = ledger.purging("q")
        ledger.died()
        deliver(ledger, first, redelivered=True)  # it never said so
        assert [] == ledger.violations
        ledger.purged(copies[1:])
        ledger.died()
        deliver(ledger, second, redelivered=True)
        assert ["O2"] == found(ledger)

    def test_a_delivery_of_what_was_forgotten(self):
        """The ledger forgets lines, not that they are over."""
        ledger = Ledger()
        idents = confirmed(ledger)
        copies = deliver(ledger, *idents)
        ledger.acked(copies)
        ledger.known(copies)
        ledger.forget()
        deliver(ledger, *idents, redelivered=True)
        assert ["O2"] == found(ledger)

    def test_a_transient_message_of_an_earlier_run(self):
        """A transient message of an earlier run must not be on disk."""
        ledger = Ledger()
        idents = confirmed(ledger, 1, persistent=False)
        ledger.died()
        deliver(ledger, *idents, redelivered=True)
        assert ["O2"] == found(ledger)

    def test_redelivered_on_a_first_delivery(self):
        """A first delivery with `redelivered` is a violation."""
        ledger = Ledger()
        deliver(ledger, *confirmed(ledger), redelivered=True)
        assert ["O2"] == found(ledger)

    def test_a_consumer_that_was_cut_off_explains_it(self):
        """A cut consumer explains `redelivered`: deliveries may have been on their way to it."""
        ledger = Ledger()
        idents = confirmed(ledger)
        ledger.disturbed("q")
        deliver(ledger, *idents, redelivered=True)
        assert [] == ledger.violations


class TestOrder:
    """Violations of O3: disorder."""

    def test_first_deliveries_out_of_order(self):
        """First deliveries out of order within one run are a violation."""
        ledger = Ledger()
        first, second = confirmed(ledger, 2)
        deliver(ledger, second, first)
        assert "O3" in found(ledger)
        assert ledger.counts["disordered"]

    def test_recovered_ones_out_of_order(self):
        """Recovered messages out of order are a violation, whether they were delivered before the fault or not."""
        ledger = Ledger()
        first, second, third = confirmed(ledger, 3)
        deliver(ledger, first, second, third)
        ledger.died()
        deliver(ledger, second, first, third, redelivered=True)
        assert ["O3"] == found(ledger)

    def test_a_requeued_one_at_the_tail(self):
        """A younger one is delivered before it, although the broker knew."""
        ledger = Ledger()
        first, second = confirmed(ledger, 2)
        ledger.placed("q", ledger.requeued(deliver(ledger, first)))
        deliver(ledger, second)
        deliver(ledger, first, redelivered=True)
        assert "O3" in found(ledger)

    def test_requeued_ones_out_of_order(self):
        """Requeued messages come back in the order of their publishing."""
        ledger = Ledger()
        first, second = confirmed(ledger, 2)
        ledger.placed("q", ledger.requeued(deliver(ledger, first, second)))
        deliver(ledger, second, first, redelivered=True)
        assert "O3" in found(ledger)

    def test_a_younger_one_on_its_way_is_no_fault(self):
        """The broker may have sent it before it heard of the requeue."""
        ledger = Ledger()
        first, second, third = confirmed(ledger, 3)
        number = ledger.requeued(deliver(ledger, first))
        deliver(ledger, second)
        deliver(ledger, first, redelivered=True)
        ledger.placed("q", number)
        deliver(ledger, third)
        assert [] == ledger.violations

    def test_channels_have_no_order_between_them(self):
        """Messages of different channels, and of different queues, have no order between them."""
        ledger = Ledger()
        (one,) = confirmed(ledger, 1, "q", "r")
        (other,) = confirmed(ledger, 1, "q", "r")
        deliver(ledger, other, one)
        deliver(ledger, one, other, queue="r")
        assert [] == ledger.violations


class TestConfirms:
    """Violations of O4: confirms."""

    def test_a_second_verdict(self):
        """A second verdict, an ack after a nack, is a violation."""
        ledger = Ledger()
        channel = ledger.open_channel()
        publish(ledger, channel)
        ledger.verdict(channel, 1, multiple=False, ack=False)
        ledger.verdict(channel, 1, multiple=False, ack=True)
        assert ["O4"] == found(ledger)

    def test_a_nack_below_an_earlier_multiple(self):
        """The multiple ack was over an open number."""
        ledger = Ledger()
        channel = ledger.open_channel()
        for _ in range(3):
            publish(ledger, channel)
        ledger.verdict(channel, 3, multiple=True, ack=True)
        ledger.verdict(channel, 2, multiple=False, ack=False)
        assert ["O4"] == found(ledger)

    def test_a_number_that_was_never_published(self):
        """A verdict for a number that was never published is a violation."""
        ledger = Ledger()
        channel = ledger.open_channel()
        publish(ledger, channel)
        ledger.verdict(channel, 2, multiple=True, ack=True)
        assert ["O4"] == found(ledger)

    def test_a_number_without_verdict(self):
        """A number without a verdict is a violation when everything has been sent."""
        ledger = Ledger()
        channel = ledger.open_channel()
        publish(ledger, channel)
        ledger.quiet(channel)
        assert ["O4"] == found(ledger)

    def test_an_ack_without_its_return(self):
        """A mandatory message without a queue comes back first."""
        ledger = Ledger()
        channel = ledger.open_channel()
        ident = ledger.next_id(channel)
        ledger.published(ident, (), DIGEST, mandatory=True)
        ledger.verdict(channel, 1, multiple=False, ack=True)
        ledger.returned(ident)
        assert ["O4", "O4"] == found(ledger)

    def test_a_return_of_a_message_that_has_a_queue(self):
        """A return of a message that has a queue is a violation."""
        ledger = Ledger()
        channel = ledger.open_channel()
        ledger.returned(publish(ledger, channel, mandatory=True))
        assert ["O4"] == found(ledger)


class TestNoInvention:
    """Violations of O5: inventions."""

    def test_a_message_that_was_never_published(self):
        """A message with a number too high was never published."""
        ledger = Ledger()
        (ident,) = confirmed(ledger)
        deliver(ledger, ident._replace(seq=2))
        assert ["O5"] == found(ledger)

    def test_a_body_that_is_another(self):
        """A body with another digest is a violation."""
        ledger = Ledger()
        (ident,) = confirmed(ledger)
        ledger.delivered("q", ident, b"another-", redelivered=False)
        assert ["O5"] == found(ledger)

    def test_a_body_that_is_none_of_ours(self):
        """The reader of the body says so."""
        ledger = Ledger()
        ledger.damaged("q", "torn")
        assert ["O5"] == found(ledger)

    def test_a_queue_it_was_not_routed_to(self):
        """A delivery from a queue that the message was not routed to is a violation."""
        ledger = Ledger()
        (ident,) = confirmed(ledger)
        deliver(ledger, ident, queue="r")
        assert ["O2"] == found(ledger)


class TestDepth:
    """Violations of O9: depths."""

    @pytest.mark.parametrize("ready", [1, 3])
    def test_a_depth_that_is_not_in_less_out(self, ready):
        """A depth of two is right; others are violations."""
        ledger = Ledger()
        idents = confirmed(ledger, 4)
        copies = deliver(ledger, *idents[:2])
        ledger.acked(copies[:1])
        ledger.depth("q", ready)
        assert ["O9"] == found(ledger)

    @pytest.mark.parametrize("ready", [0, 3])
    def test_after_a_fault_doubt_has_its_limits(self, ready):
        """A depth after a fault is between the certain messages and those that were not confirmed."""
        ledger = Ledger()
        confirmed(ledger)
        publish(ledger, ledger.open_channel())
        ledger.died()
        ledger.depth("q", ready)
        assert ["O9"] == found(ledger)


class TestReady:
    """Violations of O10: late starts."""

    def test_a_start_that_takes_too_long(self):
        """A start may take two seconds, and one more for 200,000 messages."""
        ledger = Ledger()
        ledger.ready(2.9, 200_000)
        assert [] == ledger.violations
        ledger.ready(3.1, 200_000)
        assert ["O10"] == found(ledger)
