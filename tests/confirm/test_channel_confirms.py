"""Standard confirms against a dictionary from numbers to what has become of them."""

from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leveret.confirm.channel_confirms import ChannelConfirms, Confirmation

HELD, SETTLED, REFUSED, ACKED, NACKED = "held", "settled", "refused", "acked", "nacked"


class ConfirmsAgainstADict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.confirms = ChannelConfirms()
        self.states: dict[int, str] = {}
        self.given_up: list[int] = []

    def numbers(self, *states: str) -> list[int]:
        return [number for number, state in self.states.items() if state in states]

    def number(self, state: str, count: int = 1) -> int:
        """Publish `count` numbers; the first of them."""
        first = len(self.states) + 1
        self.confirms.seq_no += count
        self.states.update(dict.fromkeys(range(first, first + count), state))
        return first

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        """Publishes that every queue accepts at once."""
        self.number(SETTLED, count)

    @rule(count=st.integers(1, 4))
    def publish_held(self, count: int) -> None:
        self.confirms.hold(self.number(HELD, count), count)

    @rule()
    def publish_refused(self) -> None:
        """A publish that a queue refuses at once."""
        self.confirms.refused(self.number(REFUSED))

    @rule()
    def publish_without_queue(self) -> None:
        """Publish a message that no queue gets: the caller confirms it, at once."""
        number = len(self.states) + 1

        assert number == self.confirms.confirm_now()
        self.states[number] = ACKED

    @precondition(lambda self: self.numbers(HELD))
    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        """Accept some held number, whether or not others were published before or after it."""
        number = data.draw(st.sampled_from(self.numbers(HELD)))
        self.confirms.accepted(number)
        self.states[number] = SETTLED

    @precondition(lambda self: self.numbers(HELD))
    @rule(data=st.data())
    def accept_a_run(self, data: st.DataObject) -> None:
        """A commit makes many safe at once, mostly the oldest."""
        held = self.numbers(HELD)
        for number in held[: data.draw(st.integers(1, len(held)))]:
            self.confirms.accepted(number)
            self.states[number] = SETTLED

    @precondition(lambda self: self.numbers(HELD))
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        """A commit has found no room."""
        number = data.draw(st.sampled_from(self.numbers(HELD)))
        self.confirms.refused(number)
        self.states[number] = REFUSED

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        """Give up the open numbers up to one that has waited for too long."""
        last = data.draw(st.integers(0, len(self.states)))
        overdue = [number for number in self.numbers(HELD) if number <= last]

        assert len(overdue) == self.confirms.give_up(last)
        self.states.update(dict.fromkeys(overdue, REFUSED))
        self.given_up += overdue

    @precondition(lambda self: self.given_up)
    @rule(data=st.data(), safe=st.booleans())
    def settle_too_late(self, data: st.DataObject, safe: bool) -> None:
        """Settle a number that was given up, which has no effect."""
        number = data.draw(st.sampled_from(self.given_up))
        (self.confirms.accepted if safe else self.confirms.refused)(number)

    @rule()
    def take(self) -> None:
        due = self.numbers(SETTLED, REFUSED)
        first = min(self.numbers(HELD, SETTLED, REFUSED), default=0)
        taken = self.confirms.take()
        for number, multiple, ack in taken:
            # what is below, the client has forgotten; of a nack also earlier verdicts of the same turn
            lowest = first if ack else min(self.numbers(HELD, SETTLED, REFUSED))
            covered = range(lowest, number + 1) if multiple else (number,)
            for one in covered:
                reported_before = ACKED if one != number else SETTLED

                assert self.states[one] in ((SETTLED, reported_before) if ack else (REFUSED,))
                self.states[one] = ACKED if ack else NACKED

        assert [] == self.numbers(SETTLED, REFUSED)
        assert sorted(taken, key=lambda each: (not each[2], each[0])) == taken
        self.check_fewest(taken, due, first)

    def check_fewest(self, taken: list[Confirmation], due: list[int], first: int) -> None:
        """A number takes a frame of its own only beyond the first held or refused one."""
        stops = [
            number for number in self.states if self.states[number] in (HELD, NACKED) and number >= first
        ]
        free = [number for number in due if number < min(stops, default=len(self.states) + 1)]

        assert len(due) - len(free) + bool(free) >= len(taken)

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.states) == self.confirms.seq_no
        assert self.numbers(HELD) == sorted(self.confirms.held)
        assert len(self.numbers(HELD, SETTLED, REFUSED)) == self.confirms.unconfirmed_count


TestConfirmsAgainstADict = ConfirmsAgainstADict.TestCase


@given(st.lists(st.integers(1, 5), min_size=1))
def test_a_turn_of_publishes_takes_one_frame(turns):
    """Confirms of a turn without held numbers take one frame, `multiple` if it has more than one number."""
    confirms = ChannelConfirms()
    for count in turns:
        confirms.seq_no += count

        assert [(confirms.seq_no, count > 1, True)] == confirms.take()
        assert [] == confirms.take()


def test_what_a_held_number_held_back_is_confirmed_singly():
    """Numbers above a held one get acks of their own, and the held one its own once it is accepted."""
    confirms = ChannelConfirms()
    confirms.seq_no += 4
    confirms.hold(2)

    assert [(1, False, True), (3, False, True), (4, False, True)] == confirms.take()
    assert [] == confirms.take()
    confirms.accepted(2)
    assert [(2, False, True)] == confirms.take()


def test_what_is_safe_within_its_turn_was_never_held():
    """A number that is held and accepted before a confirm is sent costs no frame of its own."""
    confirms = ChannelConfirms()
    confirms.seq_no += 3
    confirms.hold(1, 3)
    for number in (2, 1, 3):
        confirms.accepted(number)

    assert [(3, True, True)] == confirms.take()


def test_a_commit_is_confirmed_in_one_frame():
    """Numbers held together and accepted together take one `multiple` ack, also in part."""
    confirms = ChannelConfirms()
    confirms.seq_no += 6
    confirms.hold(1, 6)
    assert [] == confirms.take()
    for number in (3, 1, 4, 2):
        confirms.accepted(number)

    assert [(4, True, True)] == confirms.take()
    confirms.accepted(6)
    assert [(6, False, True)] == confirms.take()
    confirms.accepted(5)
    assert [(5, False, True)] == confirms.take()


def test_what_was_confirmed_at_once_is_not_confirmed_again():
    """A number that the caller confirmed has no other ack, whatever is open or settled around it."""
    confirms = ChannelConfirms()
    confirms.hold(1)
    confirms.seq_no += 1
    assert [2, 3] == [confirms.confirm_now(), confirms.confirm_now()]
    confirms.seq_no += 1

    assert [(4, False, True)] == confirms.take()
    assert 1 == confirms.unconfirmed_count
    assert 5 == confirms.confirm_now()
    assert (1, 4) == (confirms.unconfirmed_count, confirms.confirmed_count)
    assert [] == confirms.take()
    confirms.accepted(1)
    assert [(1, False, True)] == confirms.take()
    assert 6 == confirms.confirm_now()
    assert [] == confirms.take()
    confirms.seq_no += 2
    assert [(8, True, True)] == confirms.take()


def test_no_multiple_ack_covers_a_nacked_number():
    """A refused number is nacked alone, and acks stay clear of it until everything below has its verdict."""
    confirms = ChannelConfirms()
    confirms.seq_no += 3
    confirms.hold(1)
    confirms.refused(2)

    assert [(3, False, True), (2, False, False)] == confirms.take()
    confirms.seq_no += 2
    assert [(4, False, True), (5, False, True)] == confirms.take()
    confirms.accepted(1)
    assert [(1, False, True)] == confirms.take()
    confirms.seq_no += 2
    assert [(7, True, True)] == confirms.take()


def test_a_held_number_that_is_refused_later_is_nacked():
    """A commit that finds no room nacks what it held, each number alone, and what follows goes on."""
    confirms = ChannelConfirms()
    confirms.seq_no += 3
    confirms.hold(1, 3)
    assert [] == confirms.take()
    confirms.refused(1)
    confirms.refused(3)

    assert [(1, False, False), (3, False, False)] == confirms.take()
    assert 1 == confirms.unconfirmed_count
    confirms.accepted(2)
    assert [(2, False, True)] == confirms.take()
    confirms.seq_no += 1
    assert [(4, False, True)] == confirms.take()


def test_giving_up_walks_along_each_number_once():
    """Numbers are looked at once each when they are given up, however often that happens among others."""
    confirms = ChannelConfirms()
    confirms.held = held = CountingSet()
    for _ in range(1000):
        confirms.seq_no += 10
        confirms.hold(confirms.seq_no - 9, 10)
        confirms.take()
        held.asked = 0

        assert 10 == confirms.give_up(confirms.seq_no)
        assert 30 >= held.asked
        assert [(confirms.seq_no, True, False)] == confirms.take()


class CountingSet(set):
    """A set that counts how often it is asked for a number."""

    asked = 0

    def __contains__(self, number: object) -> bool:
        self.asked += 1
        return super().__contains__(number)


def test_a_million_held_numbers_cost_no_more_each_than_a_few():
    """Held numbers that are accepted from the front are looked at a few times each, however many wait behind."""
    count, commit = 1_000_000, 1000
    confirms = ChannelConfirms()
    confirms.held = held = CountingSet()
    confirms.seq_no += count
    confirms.hold(1, count)

    assert [] == confirms.take()
    for first in range(1, count + 1, commit):
        for number in range(first, first + commit):
            confirms.accepted(number)

        assert [(first + commit - 1, True, True)] == confirms.take()
    assert 3 * count >= held.asked
    assert (0, []) == (confirms.unconfirmed_count, confirms.take())


def test_a_million_held_numbers_behind_one_are_confirmed_once():
    """Numbers behind a held first one get acks of their own, and none is looked at again."""
    count, commit = 200_000, 1000
    confirms = ChannelConfirms()
    confirms.held = held = CountingSet()
    confirms.seq_no += count
    confirms.hold(1, count)
    confirms.take()
    for first in range(2, count, commit):
        numbers = range(first, min(first + commit, count + 1))
        for number in numbers:
            confirms.accepted(number)

        assert [(number, False, True) for number in numbers] == confirms.take()
    assert 3 * count >= held.asked
    confirms.accepted(1)
    assert [(1, False, True)] == confirms.take()


def test_a_run_of_refused_numbers_is_nacked_in_one_frame():
    """Refused numbers with nothing open or settled among or below them take one `multiple` nack."""
    confirms = ChannelConfirms()
    confirms.seq_no += 8
    confirms.hold(1, 8)
    confirms.accepted(1)
    for number in (4, 2, 3, 6):
        confirms.refused(number)

    assert [(1, False, True), (4, True, False), (6, False, False)] == confirms.take()
    assert 4 == confirms.nacked_count
    for number in (5, 7, 8):
        confirms.accepted(number)
    assert [(5, False, True), (7, False, True), (8, False, True)] == confirms.take()
