"""The faults in effect, and how they change octets. No broker."""

import itertools

import pytest
from hypothesis import given, strategies as st

from leveret.broker.amqp.fastpath import pack_confirm, unpack_ack, unpack_method
from leveret.broker.embedded.fault_state import (
    AFTER_CONFIRM,
    BEFORE_CONFIRM,
    LONGEST_DISTANCE,
    MID_BODY,
    Duplicates,
    FaultState,
    SingleConfirms,
    distance_of_duplicate,
    interleaved,
    middle_of_body,
)


def frame(channel, payload, kind=1):
    return bytes([kind]) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"


def test_a_new_broker_has_no_faults():
    """Without faults nothing is watched, answered late or shaped."""
    state = FaultState()

    assert not state.watches_publishes
    assert not state.answers_late
    assert not state.shapes_output
    assert "" == state.moment


@pytest.mark.parametrize("moment", [BEFORE_CONFIRM, AFTER_CONFIRM, MID_BODY])
def test_drops_are_counted(moment):
    """A moment drops as many connections as asked for, and no connection at another moment."""
    state = FaultState()
    state.change({"moment": moment, "drops": 2})
    others = {BEFORE_CONFIRM, AFTER_CONFIRM, MID_BODY} - {moment}

    assert not any(map(state.take_drop, others))
    assert [True, True, False] == [state.take_drop(moment) for _ in range(3)]
    assert "" == state.moment


def test_faults_are_looked_at_where_they_matter():
    """Each fault has its place: publishes, confirms of unroutable messages, output."""
    places = {}
    for name, value in {"nacks": 1, "holds_confirms": True, "delay": 1.0, "rate": 1.0, "seed": 0}.items():
        state = FaultState()
        setattr(state, name, value)
        places[name] = state.watches_publishes, state.answers_late, state.shapes_output

    assert {
        "nacks": (True, False, False),
        "holds_confirms": (False, True, False),
        "delay": (False, False, True),
        "rate": (False, False, True),
        "seed": (False, True, True),
    } == places


def test_the_middle_of_a_body_is_found():
    """A cut is within the first body of two octets or more; without such a body there is none."""
    method, short, body = frame(1, b"m" * 20), frame(1, b"x", 3), frame(1, b"y" * 10, 3)

    assert 0 == middle_of_body(method + short)
    cut = middle_of_body(method + short + body)
    assert 5 == (method + short + body)[:cut].count(b"y")


FRAMES = st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=3)), max_size=12)


@given(frames=FRAMES, seed=st.text(max_size=3))
def test_interleaving_keeps_the_order_of_each_channel(frames, seed):
    """Interleaved frames are the same frames, in the same order for each channel, and the same for the same seed."""
    packed = [(channel, frame(channel, payload)) for channel, payload in frames]
    octets = b"".join(each for _, each in packed)
    mixed = interleaved(octets, seed) if octets else b""

    assert len(octets) == len(mixed)
    rest = {channel: [each for number, each in packed if number == channel] for channel in range(4)}
    at = 0
    while at < len(mixed):
        channel = int.from_bytes(mixed[at + 1 : at + 3], "big")
        following = rest[channel].pop(0)
        assert mixed.startswith(following, at)
        at += len(following)
    assert not octets or mixed == interleaved(octets, seed)


def test_a_quarter_of_the_messages_is_duplicated():
    """About a quarter of the messages is delivered twice, after each distance; the seed alone says which ones."""
    chosen = {seed: [distance_of_duplicate(seed, seq_id) for seq_id in range(4000)] for seed in (1, 2)}

    assert chosen[1] == [distance_of_duplicate(1, seq_id) for seq_id in range(4000)]
    assert chosen[1] != chosen[2]
    for distances in chosen.values():
        assert 800 < 4000 - distances.count(None) < 1200
        assert {None, *range(LONGEST_DISTANCE + 1)} == set(distances)


def test_a_duplicate_is_due_after_its_distance():
    """A message is due when as many younger ones have been delivered as its distance says, or is taken before that."""
    seq_ids = range(1000)
    (far, *_) = [each for each in seq_ids if distance_of_duplicate(7, each) == LONGEST_DISTANCE]
    once = [each for each in seq_ids if distance_of_duplicate(7, each) is None]
    duplicates = Duplicates()

    assert duplicates.delivered(7, far)
    for each in once[:LONGEST_DISTANCE]:
        assert not duplicates.is_due
        assert [] == duplicates.take_due()
        assert not duplicates.delivered(7, each)
    assert duplicates.is_due
    assert [far] == duplicates.take_due()
    assert not duplicates
    assert duplicates.delivered(7, far)
    assert [far] == duplicates.take_all()
    assert not duplicates


@given(sizes=st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=8))
def test_confirms_are_taken_apart(sizes):
    """Each number gets exactly one confirm, of the right kind, whether it was covered by a multiple one or not."""
    single, low, expected, found = SingleConfirms(), 0, {}, {}
    for count, ack in sizes:
        numbers = range(low + 1, low + count + 1)
        low += count
        expected |= dict.fromkeys(numbers, ack)
        if count > 1:
            single_first = numbers[0], False, ack  # a multiple ack may cover a single one
            confirms = [single_first, (low, True, ack)]
        else:
            confirms = [(low, False, ack)]
        for packed in single.told(confirms, 1, "seed"):
            tag, bits, _ = unpack_ack(packed, 11)
            assert not bits & 1
            assert tag not in found
            found[tag] = unpack_method(packed, 0)[3] == (60 << 16 | 80)

    assert expected == found


def test_without_a_seed_confirms_are_only_recorded():
    """Confirms that were sent as they are count for the time when they are taken apart."""
    single = SingleConfirms()
    before = list(itertools.chain(single.told([(2, True, True), (4, False, True)], 1, "")))
    after = single.told([(5, True, True)], 1, "seed")

    assert [] == before
    assert {
        pack_confirm(1, 3, multiple=False, ack=True),
        pack_confirm(1, 5, multiple=False, ack=True),
    } == set(after)
