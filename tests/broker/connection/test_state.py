"""The table of states; that connections keep to it is checked in all tests of this folder."""

from leveret.broker.connection.state import CLOSED, CLOSING, HANDSHAKE, HEADER, LOST, OPEN, STATES


def test_every_state_can_be_reached_and_left():
    """The table names no state without a row, reaches all from the first, and the loss of the socket ends each."""
    reached = {HEADER}
    for _ in STATES:
        reached |= set().union(*(STATES[state].following for state in reached))

    assert set(STATES) == reached
    assert all(LOST in row.following for state, row in STATES.items() if state != LOST)
    assert not STATES[LOST].following


def test_each_state_of_the_handshake_accepts_one_method():
    """Before `open` there is one method, if any, that leads on; afterwards no way leads back."""
    assert {0, 1} == {len(STATES[state].accepts) for state in HANDSHAKE}
    assert all(len(STATES[state].following & (HANDSHAKE | {OPEN})) == 1 for state in HANDSHAKE)
    assert not any(STATES[state].following & HANDSHAKE for state in (OPEN, CLOSING, CLOSED))
