"""The table of known ids, and their rows."""

from itertools import islice

import pytest
from hypothesis import given, settings, strategies as st

from leveret.storage import message_ids
from leveret.storage.delayed import checked, pack_key
from leveret.storage.errors import DamagedError
from leveret.storage.message_ids import (
    FREE,
    LOGGED,
    PRESENT,
    KnownIds,
    Room,
    copies_of,
    fingerprint,
    frees,
    is_known,
    lasts,
    of_copies,
    pack_ids,
    pack_value,
    time_of,
    value_until,
)

NOW = 1_790_000_000_000


def table(room: Room | None = None, now: int = NOW) -> KnownIds:
    """Return a table at a time."""
    return KnownIds(room or Room(), lambda: now)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "add", "replace", "remove", "pass"]), st.integers(0, 60), st.integers(0, 400)
    ),
    max_size=300,
)


@settings(deadline=None)
@given(STEPS)
def test_it_is_a_dict_whose_entries_expire(steps):
    """Whatever is added, changed and removed, exactly those ids are known whose time has not come, however it grows."""
    known, model, now = KnownIds(Room(), lambda: now), dict[bytes, int](), NOW
    for what, number, time in steps:
        mark = fingerprint(1, b"%d" % number)
        if what == "put":
            model[mark] = value_until(now + time)
            known.put(mark, model[mark])
        elif what == "add":
            marks = [fingerprint(1, b"%d" % each) for each in range(number, 60, 7)]
            new = [each for each in marks if not known.has_any([each])]
            known.add_all(new, value_until(now + time))
            assert all(is_known(model.get(each, FREE), now) is False for each in new)
            model |= dict.fromkeys(new, value_until(now + time))
        elif what == "replace":
            old = model.get(mark, PRESENT)
            new = value_until(now + time) if time % 3 else FREE
            marks = [fingerprint(1, b"%d" % each) for each in {number, *range(number % 7, 60, 7)}]
            others = known.replace_all(marks, old, new)
            for each in marks:
                if model.get(each) == old and (each not in others or is_known(old, now)):
                    assert each not in others
                    model[each] = new
        elif what == "remove":
            model.pop(mark, None)
            known.put(mark, FREE)
        else:
            now += time
        for each in range(60):
            mark = fingerprint(1, b"%d" % each)
            assert is_known(model.get(mark, FREE), now) is is_known(known.get(mark), now)
            assert known.has_any((b"x" * 10, mark)) is bool(known.get(mark))
    found = dict(known.entries())
    assert {mark: value for mark, value in model.items() if is_known(value, now)}.items() <= found.items()
    assert known.earliest <= min(found.values(), default=PRESENT)
    assert known.latest >= max(found.values(), default=FREE)


@pytest.mark.parametrize("most", [20, 4000])
@pytest.mark.parametrize("count", [0, 1, 300, 20_000])
def test_a_table_is_loaded_from_its_parts(count, most, monkeypatch):
    """Its parts have all ids that stay, and were there before the first, though it grows while they are made."""
    monkeypatch.setattr(message_ids, "BUCKET", 3)
    marks = [fingerprint(1, b"%d" % number) for number in range(2 * count)]
    known, room, at, copied = table(), Room(), 0, [0]
    known.add_all(marks[:count], PRESENT)
    later = iter(marks[count:])
    loaded = table(room)
    while at >= 0:
        part, at = known.part(at, most)
        loaded.load(part, 5, copied)
        known.add_all([*islice(later, 20)], value_until(NOW))
        known.put(marks[count - 1], FREE) if count else None
    assert set(marks[: count - 1]) <= dict(loaded.entries()).keys() <= {*marks}
    assert len(dict(loaded.entries())) == loaded.count == room.count
    assert all(PRESENT == loaded.get(mark) for mark in marks[: count - 1])


def test_it_grows_and_gives_room_back():
    """Thousands of ids are all found; the room of those that have expired is used again by the next ones."""
    now = NOW
    known = KnownIds(Room(), lambda: now)
    for number in range(20_000):
        known.put(fingerprint(2, b"%d" % number), value_until(NOW + 100))
    assert 20_000 == known.count
    assert all(known.get(fingerprint(2, b"%d" % number)) for number in range(20_000))
    assert not any(known.get(fingerprint(2, b"%d" % number)) for number in range(20_000, 40_000))
    now += 200
    for number in range(20_000, 60_000):
        known.put(fingerprint(2, b"%d" % number), value_until(now + number))
    assert known.count < 50_000
    assert all(known.get(fingerprint(2, b"%d" % number)) for number in range(20_000, 60_000))


@pytest.mark.parametrize(("splits", "most"), [(0, 1), (65_000, 2)])
def test_ids_are_whole_though_their_buckets_leave_bytes_out(splits, most, monkeypatch):
    """Whatever the number of buckets, all ids are found, listed, changed and removed with their whole fingerprints."""
    monkeypatch.setattr(message_ids, "BUCKET", 0)  # one more with each id
    known, model, told = table(), dict[bytes, int](), set()
    for _ in range(splits):
        known._split()
    for first in range(0, 1_100, 100):
        marks = [fingerprint(3, b"%d" % number) for number in range(first, first + 100)]
        known.add_all(marks, PRESENT)
        told |= {known._told(0), known._told(known._split_at)}
        until = value_until(NOW + 1000 + first)
        assert not known.replace_all(marks[:10], PRESENT, until)
        assert [b"unknown id"] == known.replace_all([marks[10], b"unknown id"], PRESENT, FREE)
        known.put(marks[11], FREE)
        known.put(marks[12], value_until(NOW + 900))
        model |= dict.fromkeys(marks[12:], PRESENT) | dict.fromkeys(marks[:10], until)
        model[marks[12]] = value_until(NOW + 900)
        assert all(known.get(mark) == model.get(mark, FREE) for mark in marks)
        assert known.has_any(marks)
        assert not known.has_any([mark[:9] + b"?" for mark in marks if mark[9:] != b"?"])
    assert {most - 1, most} == told
    assert model == dict(known.entries())
    assert len(model) == known.count


def test_ids_whose_time_begins_later_give_their_room_back():
    """Ids that were known without a time are removed like others once one was set, and has come."""
    now = NOW
    known = KnownIds(Room(), lambda: now)
    for number in range(20_000):
        mark = fingerprint(2, b"%d" % number)
        known.put(mark, PRESENT)
        known.put(mark, value_until(NOW + 100))
    now += 200
    for number in range(20_000, 60_000):
        known.put(fingerprint(2, b"%d" % number), PRESENT)
    assert known.count < 50_000


def test_a_bucket_with_the_bytes_of_an_id_across_two_entries_does_not_have_it():
    """Only whole fingerprints agree: the same bytes elsewhere in a bucket are those of no id."""
    known, value = table(), value_until(NOW)
    octets = pack_value(value)
    across, other = b"bcdefghij" + octets[:1], int.from_bytes(octets[1:] + b"k", "big")
    known.put(b"abcdefghij", value)
    known.put(b"klmnopqrst", value)
    assert not known.get(across)
    known.put(across, other)
    known.put(across, FREE)
    assert (value, value, FREE) == (known.get(b"abcdefghij"), known.get(b"klmnopqrst"), known.get(across))
    assert 2 == known.count


def test_values_say_how_long_an_id_is_known():
    """A time is rounded up to 16 ms; an id of a message that is there is known for ever."""
    for when in (NOW, NOW + 1, NOW + 15, NOW + 16):
        assert when <= time_of(value_until(when)) < when + 16
        assert is_known(value_until(when), when - 16)
        assert not is_known(value_until(when), when + 16)
    assert is_known(PRESENT, NOW * 4)
    assert not is_known(FREE, 0)


@pytest.mark.parametrize("copies", [1, 2, 3, 1000, 1 << 24])
@pytest.mark.parametrize("known", [True, False])
def test_values_say_how_many_messages_have_an_id(copies, known):
    """A number of copies is no time, lasts for ever, and says whether the id is known."""
    value = of_copies(copies, is_known=known)
    assert (copies, known, True) == (copies_of(value), is_known(value, NOW * 2), lasts(value, NOW * 2))
    assert 0 == copies_of(value_until(NOW * 2))
    assert PRESENT == of_copies(1, is_known=True)
    assert FREE == of_copies(0, is_known=True)


def test_a_queue_may_know_as_many_ids_as_there_is_room_for():
    """One queue alone gets half of the room, a second one a third of it; what is removed gives its room back."""
    room = Room(30)
    tables = [table(room), table(room, NOW + 100)]
    for number, each in enumerate(tables):
        while room.has_place(each.count):
            each.put(fingerprint(number, b"%d" % each.count), PRESENT)
    assert [15, 8] == [each.count for each in tables]
    tables[0].clear()
    tables[1].put(fingerprint(1, b"0"), FREE)
    assert (0, 7) == (tables[0].count, room.count)
    tables[1].put(b"expired id", value_until(NOW))
    tables[1].clean()
    assert 7 == room.count


def test_a_damaged_row_is_noticed_and_a_row_of_another_queue_too():
    """The checksum of a row covers its key: neither other bytes nor another line have its ids."""
    entries = fingerprint(1, b"a") + pack_value(PRESENT)
    key, row = pack_ids(7, (LOGGED, 4), entries)
    assert entries == checked(key, row)
    for line, number, octets in ((8, 4, row), (7, 5, row), (7, 4, row[:-1] + b"x")):
        with pytest.raises(DamagedError):
            checked(pack_key(line, (LOGGED, number)), octets)
    assert not frees(key, row)
    assert not frees(key, None)
    assert frees(pack_ids(7, (LOGGED, 5), entries)[0], row)
    assert frees(key[: message_ids.TABLE and 8], None)


def test_two_queues_have_different_fingerprints_of_an_id():
    """The key of the hash is part of it, so nobody can choose ids that meet in one bucket."""
    assert fingerprint(1, b"a") != fingerprint(2, b"a")
