"""Standard confirms against a dictionary from numbers to what has become of them."""

from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from confirm.standard import Confirmation, StandardConfirms

OPEN, SETTLED, REFUSED, ACKED, NACKED = "open", "settled", "refused", "acked", "nacked"


class ConfirmsAgainstADict(RuleBasedStateMachine):
    """The model: the state of each number, and how many queues have still to answer."""

    def __init__(self) -> None:
        super().__init__()
        self.confirms = StandardConfirms()
        self.states: dict[int, str] = {}
        self.copies: dict[int, int] = {}

    def numbers(self, *states: str) -> list[int]:
        return [number for number, state in self.states.items() if state in states]

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        """Publishes that every queue accepts at once, or that no queue gets."""
        self.confirms.published(count)
        for _ in range(count):
            self.states[len(self.states) + 1] = SETTLED

    @rule(copies=st.integers(1, 3))
    def publish_open(self, copies: int) -> None:
        self.confirms.published()
        number = len(self.states) + 1
        self.confirms.open(number, copies)
        self.states[number] = OPEN
        self.copies[number] = copies

    @rule()
    def publish_refused(self) -> None:
        self.confirms.published()
        number = len(self.states) + 1
        self.confirms.refuse(number)
        self.states[number] = REFUSED

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        """One more queue accepts, perhaps after another has refused."""
        number = data.draw(st.sampled_from(sorted(self.copies)))
        self.confirms.accepted(number)
        self.copies[number] -= 1
        if not self.copies[number]:
            del self.copies[number]
            if self.states[number] == OPEN:
                self.states[number] = SETTLED

    @precondition(lambda self: self.numbers(OPEN))
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.numbers(OPEN)))
        self.confirms.refuse(number)
        self.states[number] = REFUSED

    @rule()
    def take(self) -> None:
        due = self.numbers(SETTLED, REFUSED)
        first = min(
            self.numbers(OPEN, SETTLED, REFUSED), default=0
        )  # what is below, the client has forgotten
        taken = self.confirms.take()
        for number, multiple, ack in taken:
            covered = range(first, number + 1) if multiple else (number,)
            for one in covered:
                state = self.states[one]

                assert state in (
                    (SETTLED, ACKED) if ack and one != number else (SETTLED if ack else REFUSED,)
                )
                self.states[one] = ACKED if ack else NACKED

        assert [] == self.numbers(SETTLED, REFUSED)
        assert sorted(taken, key=lambda c: (not c.ack, c.delivery_tag)) == taken
        self.check_fewest(taken, due, first)

    def check_fewest(self, taken: list[Confirmation], due: list[int], first: int) -> None:
        """A number takes a frame of its own only beyond the first open or refused one."""
        held = [number for number in self.states if self.states[number] in (OPEN, NACKED) and number >= first]
        free = [number for number in due if number < min(held, default=len(self.states) + 1)]

        assert len(due) - len(free) + bool(free) >= len(taken)

    @invariant()
    def counts_agree(self) -> None:
        without_verdict = self.numbers(OPEN, SETTLED, REFUSED)

        assert len(self.states) == self.confirms.seq_no
        assert len(without_verdict) == self.confirms.unconfirmed_count


TestConfirmsAgainstADict = ConfirmsAgainstADict.TestCase


@given(st.lists(st.integers(1, 5), min_size=1))
def test_a_turn_of_publishes_takes_one_frame(turns):
    """While nothing is open, each turn is told in one frame, `multiple` if it has more than one number."""
    confirms = StandardConfirms()
    for count in turns:
        confirms.published(count)

        assert [Confirmation(confirms.seq_no, count > 1, True)] == confirms.take()
        assert [] == confirms.take()


def test_what_an_open_number_held_back_is_told_singly():
    """Numbers above an open one get acks of their own, and the open one its own once it is accepted."""
    confirms = StandardConfirms()
    confirms.published(4)
    confirms.open(2, 1)

    assert [(1, False, True), (3, False, True), (4, False, True)] == confirms.take()
    confirms.accepted(2)
    assert [(2, False, True)] == confirms.take()


def test_no_multiple_ack_covers_a_nacked_number():
    """A refused number is nacked alone, and acks stay clear of it until everything below has its verdict."""
    confirms = StandardConfirms()
    confirms.published(3)
    confirms.open(1, 1)
    confirms.refuse(2)

    assert [(3, False, True), (2, False, False)] == confirms.take()
    confirms.published(2)
    assert [(4, False, True), (5, False, True)] == confirms.take()
    confirms.accepted(1)
    assert [(1, False, True)] == confirms.take()
    confirms.published(2)
    assert [(7, True, True)] == confirms.take()
