from bisect import bisect_left, insort
from collections import Counter
from time import process_time

import pytest
from hypothesis import example, given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leveret.storage import delayed
from leveret.storage.delayed import (
    DelayedRows,
    Start,
    Window,
    new_row,
    pack_count,
    pack_key,
    pack_line,
    pack_reference,
    pack_row,
    read_rows,
    reference_of,
    unpack_count,
    unpack_key,
    unpack_row,
)
from leveret.storage.errors import DamagedError

SIZE, OCTETS = 2, 2000
LINE = 7


def place(count, when, now=0):
    """Return the place of a message, whose row is in a bucket."""
    return new_row(LINE, when, count, now, b"", b"")[0]


class Cursor:
    """A cursor of LMDB on the rows of a line, which are given by their places."""

    def __init__(self, rows):
        self.rows = {pack_key(LINE, due): value for due, value in rows.items()}
        self.rows[pack_line(LINE)] = self.rows[pack_line(LINE + 1)] = b"count"
        self.keys = sorted(self.rows)
        self.at = self.visited = 0

    def set_range(self, key):
        self.at = bisect_left(self.keys, key)
        return self.at < len(self.keys)

    def iternext(self, *, keys, values):
        assert keys
        assert not values
        for at in range(self.at, len(self.keys)):
            self.visited += 1
            yield self.keys[at]

    def get(self, key):
        return self.rows.get(key)


class Schedule(RuleBasedStateMachine):
    """A window and its disk beside a sorted list of what is pending."""

    def __init__(self):
        super().__init__()
        self.most_ahead, delayed.AHEAD = delayed.AHEAD, 12
        self.now = 1000
        self.number = 0
        self.disk = {}
        self.begin([])

    def begin(self, pending):
        """Start on what is on disk; what was not committed is lost."""
        self.pending = pending
        self.window = Window(stored=True, size=SIZE, octets=OCTETS)
        self.window.recovered(len(pending))
        self.put, self.taken = {}, []
        self.applied = []
        self.start = self.found = None
        self.met = 0

    @rule(
        delays=st.lists(st.integers(1, 60), min_size=1, max_size=6),
        scale=st.sampled_from((1, 1, 1, 1, 1000, 10**7)),
        octets=st.sampled_from((1, 1, 1, 1, 1, 900, 5000)),
    )
    def publish(self, delays, scale, octets):
        rows = {}
        for delay in delays:
            self.number += 1
            due = place(self.number, self.now + delay * scale, self.now)
            rows[due] = bytes(octets)
            insort(self.pending, due)
        self.put |= rows
        self.window.put(rows)

    @rule()
    def release(self):
        """The first message that is due is taken: it is the first of all, unless that is being read."""
        first = self.window.take(self.now)
        if first is None:
            assert not self.pending or self.pending[0][0] > self.now or not len(self.window)
        else:
            due, _ = first
            assert self.pending.pop(0) == due
            assert due[0] <= self.now
            self.taken.append(due)

    @rule(seconds=st.integers(1, 30), scale=st.sampled_from((1, 1, 1, 1000, 10**6)))
    def wait(self, seconds, scale):
        """Let time pass."""
        self.now += seconds * scale

    @rule(seconds=st.integers(1, 30), scale=st.sampled_from((1, 1000)))
    def turn_back(self, seconds, scale):
        self.now = max(0, self.now - seconds * scale)

    @rule(which=st.lists(st.integers(0, 30), max_size=4))
    def discard(self, which):
        """Some messages are removed wherever they are; of one that was taken nothing is found."""
        asked = {self.pending[at % len(self.pending)] for at in which} if self.pending else set()
        found = self.window.discard({*asked, *self.taken[-1:]})
        assert found <= asked
        assert asked - found <= {due for due in asked if due <= self.window._latest}
        for due in found:
            self.pending.remove(due)
            self.taken.append(due)

    @rule()
    def commit(self):
        """Commit what was noted; the window is not notified yet."""
        self.disk |= self.put
        for due in self.taken:
            del self.disk[due]
        self.applied.append((list(self.put), self.taken))
        self.put, self.taken = {}, []

    @rule()
    def tell(self):
        """The loop learns of the commits."""
        for put, taken in self.applied:
            self.window.committed(put, taken)
        self.applied = []

    @invariant()
    def ask(self):
        if self.start is None:
            self.start = self.window.wanted()

    @precondition(lambda self: self.start is not None and self.found is None)
    @rule(limit=st.integers(1, 6))
    def read(self, limit):
        """The thread reads what is on disk just now."""
        self.found = read_rows(Cursor(self.disk), LINE, self.start, limit=limit)

    @precondition(lambda self: self.found is not None)
    @rule()
    def take_in(self):
        """The result of the read arrives, sooner or later."""
        self.met = len(self.window._fresh)
        assert self.window.loaded(self.found) == 0
        self.start = self.found = None

    @rule()
    def crash(self):
        """The broker is killed and starts again."""
        self.begin(sorted(self.disk))

    @invariant()
    def counts(self):
        assert len(self.pending) == self.window.count

    @invariant()
    def bounded(self):
        """Memory has two windows at most, and besides what was read, and what is on its way to disk or was when that arrived."""
        assert len(self.window) <= 2 * SIZE + 12 + max(self.met, len(self.window._fresh))

    def teardown(self):
        """Take all messages in the end: they come out in order."""
        self.tell()
        self.now = 10**12
        out = []
        while self.pending:
            self.release()
            self.commit()
            self.tell()
            self.ask()
            if self.start is not None:
                if self.found is None:
                    self.read(3)
                self.take_in()
            out.append(len(self.pending))
            assert len(out) < 10_000
        delayed.AHEAD = self.most_ahead
        assert 0 == self.window.count
        assert (0, 0) == (len(self.window), self.window.octets)


TestSchedule = Schedule.TestCase
TestSchedule.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)


def remembered(window: Window) -> int:
    """Return the number of rows that a window remembers for reads: recently added ones and removed ones."""
    return len(window._fresh) + len(window._gone)


def small_window() -> Window:
    """A window of one message that knows (5, 1) and (9, 2); what is due from (9, 2) on it has left to the disk."""
    window = Window(stored=True, size=1)
    for due in ((5, 1), (9, 2), (12, 3)):
        window.put({due: b"row"})
    window.committed([(5, 1), (9, 2), (12, 3)], [])
    assert 1 == len(window)
    return window


def test_what_was_taken_does_not_come_back_with_a_read_that_still_sees_it():
    """A taken message does not come back with a read that still sees its row, after the clock was set back."""
    window = small_window()
    assert ((5, 1), b"row") == window.take(5)
    window.loaded(DelayedRows([((9, 2), b"row"), ((12, 3), b"row")], next=None)) if window.wanted() else None
    assert ((9, 2), b"row") == window.take(9)
    for number in (4, 5, 6, 7):
        window.put({(number, number): b"row"})
    window.committed([(4, 4), (5, 5), (6, 6), (7, 7)], [])
    assert ((4, 4), b"row") == window.take(8)
    assert (5, 5) == window.wanted().due
    rows = [(5, 5), (6, 6), (7, 7), (9, 2), (12, 3)]
    window.loaded(DelayedRows([(due, b"row") for due in rows], next=None))
    assert [(5, 5), (6, 6), (7, 7), (12, 3)] == [window.take(99)[0] for _ in range(4)]
    assert window.take(99) is None


def test_a_commit_during_a_read_may_have_come_too_late_for_it():
    """Messages committed after a read began are not in its result, and are kept until then."""
    window = small_window()
    window.take(5)
    assert (9, 2) == window.wanted().due
    window.put({(10, 4): b"new"})
    window.committed([(10, 4)], [(5, 1)])
    window.loaded(DelayedRows([((9, 2), b"row"), ((12, 3), b"row")], next=None))
    assert [(9, 2), (10, 4), (12, 3)] == [window.take(99)[0] for _ in range(3)]
    assert 3 == remembered(window)  # those that are gone, until that is committed


def test_a_read_that_begins_behind_a_gap_is_of_no_use():
    """The window's end came nearer while it was under way: it is read again from there."""
    window = small_window()
    window.take(5)
    assert (9, 2) == window.wanted().due
    for number in (4, 5, 6, 7):
        window.put({(number, number): b"row"})
    window.committed([(4, 4), (5, 5), (6, 6), (7, 7)], [])
    window.loaded(DelayedRows([((9, 2), b"row"), ((12, 3), b"row")], next=None))
    assert ((4, 4), b"row") == window.take(99)
    assert (5, 5) == window.wanted().due
    rows = [(5, 5), (6, 6), (7, 7), (9, 2), (12, 3)]
    window.loaded(DelayedRows([(due, b"row") for due in rows], next=None))
    assert rows == [window.take(99)[0] for _ in range(5)]


@given(st.lists(st.integers(1, 1000)), st.integers(0, 1000))
def test_without_a_disk_messages_come_out_by_time_and_then_in_the_order_they_came(delays, now):
    """Due messages come out sorted by the time they are due; others do not, and nothing is to be read."""
    window = Window(stored=False, size=SIZE)
    for number, delay in enumerate(delays):
        window.put({(delay, number): b""})
    out = []
    while (first := window.take(now)) is not None:
        out.append(first[0])
    assert sorted((delay, number) for number, delay in enumerate(delays) if delay <= now) == out
    assert len(delays) - len(out) == window.count
    assert window.wanted() is None


def test_a_million_messages_in_any_order_take_no_more_memory_than_a_window():
    """The window keeps at most twice its size of messages on disk, whether they come in order or not."""
    window = Window(stored=True)
    most = 0
    for number in range(20_000):
        due = 1000 + number * 7919 % 20_000, number
        window.put({due: b"row"})
        window.committed([due], [])
        most = max(most, len(window))
    assert 20_000 == window.count
    assert 2 * 2048 == most
    assert 0 == remembered(window)


def test_octets_bound_the_window_too():
    """The window is filled by few large messages as by many small ones; it keeps one however large."""
    window = Window(stored=True, size=1000, octets=10_000)
    for number in range(100):
        window.put({(number, number): bytes(3000)})
    assert len(window) <= 7
    alone = Window(stored=True, size=1000, octets=10_000)
    alone.put({(1, 1): bytes(100_000)})
    assert 1 == len(alone)


@pytest.mark.parametrize("more", [[75], [55, 56, 57, 58, 59, 61]])
def test_messages_that_come_when_the_next_keys_are_known_are_among_them(more):
    """Messages that come behind the window, or push others out of it, leave in their turn, between those known before."""
    window, disk = Window(stored=True, size=2), {}

    def publish(times):
        for when in times:
            due = place(len(disk) + 1, when, when - 1000)
            disk[due] = b"row"
            window.put({due: b"row"})
            window.committed([due], [])

    def next_out():
        while (start := window.wanted()) is not None:
            window.loaded(read_rows(Cursor(disk), LINE, start, limit=2))
        return window.take(999)[0][0]

    publish(range(10, 300, 10))
    assert [10, 20, 30, 40, 50] == [next_out() for _ in range(5)]
    publish(more)
    assert sorted([*range(60, 300, 10), *more]) == [next_out() for _ in range(24 + len(more))]
    assert 0 == window.count


def read_all(cursor: Cursor, **limits: int) -> list:
    start, found = Start((0, 0)), []
    while start is not None:
        rows, start = read_rows(cursor, LINE, start, **limits)
        found += [due for due, _ in rows]
    return found


@given(
    st.sets(
        st.tuples(
            st.one_of(st.integers(0, 2000), st.integers(0, 2**41), st.integers(0, 2**63 - 1)),
            st.integers(1, 2**40),
            st.booleans(),
        ),
        max_size=60,
    ),
    st.integers(1, 9),
)
def test_rows_of_all_buckets_and_of_earlier_builds_are_read_by_time(messages, limit):
    """Reads return all rows by time, and rows due together by number, however wide the buckets and small the reads."""
    places = {
        (place(count, due) if is_new else (due, count)): bytes(8) for due, count, is_new in sorted(messages)
    }
    most_ahead, delayed.AHEAD = delayed.AHEAD, 7
    try:
        assert sorted(places) == read_all(Cursor(places), limit=limit, octets=40)
    finally:
        delayed.AHEAD = most_ahead


@given(st.integers(1, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**62), st.binary(min_size=1))
@example(2**60, 1, 0, b"m")
@example(2**63, 1, 0, b"m")
def test_the_row_of_a_new_message_is_as_any_other(count, when, now, content):
    """Its place gives its key, which gives time and line back, and its value has the checksum over both."""
    due, key, value = new_row(LINE, when, count, now, b"\0\1q", content)
    assert (key, value) == (pack_key(LINE, due), pack_row(key, b"\0\1q", content))
    assert (LINE, *due) == unpack_key(key)


def test_messages_due_together_leave_in_the_order_in_which_they_came():
    """A later message, whose bucket is narrower, is behind the earlier ones that are due in the same millisecond."""
    due = 10**12
    delays = enumerate((10**11, 10**9, 10**6, 1000, 1), 1 << 40)
    places = [place(count, due, due - delay) for count, delay in delays]
    assert sorted(places) == places
    assert places == read_all(Cursor(dict.fromkeys(places, b"")))


@pytest.mark.parametrize("hours", [0.05, 1, 24, 24 * 365])
def test_messages_with_any_times_are_appended_at_few_places(hours):
    """Four in five messages with random times from now on are in 80 buckets, however long that is."""
    buckets = Counter()
    for count in range(5000):
        due = int(hours * 3_600_000 * (count * 7919 % 5000) / 5000)
        buckets[pack_key(LINE, place(count, 10**12 + due, 10**12))[:17]] += 1
    assert sum(count for _, count in buckets.most_common(80)) > 4000


def test_a_line_is_read_with_few_looks_at_each_key():
    """Reading a line takes a few looks at each key, be its rows due at one time or in one bucket."""
    for places in (
        [(0, number) for number in range(50_000)],
        [place(number, at, at - 10**6) for number in range(50_000) for at in (10**12 + number % 3000,)],
    ):
        cursor = Cursor(dict.fromkeys(places, b"row"))
        assert sorted(places) == read_all(cursor)
        assert cursor.visited < 8 * len(places)


def test_what_a_read_cannot_find_is_reported():
    """Rows that are fewer than were counted are reported, and no longer counted."""
    window = Window(stored=True)
    window.recovered(5)
    assert Start((0, 0)) == window.wanted()
    assert window.wanted() is None
    assert 3 == window.loaded(DelayedRows([((1, 1), b"a"), ((2, 2), b"b")], next=None))
    assert 2 == window.count
    assert 1 == window.next_due


CONTENTS = st.binary(max_size=300).filter(lambda content: content[:1] != b"\xff")


@given(st.binary(max_size=255), st.binary(max_size=255), CONTENTS)
def test_a_row_says_what_was_written(exchange, routing_key, content):
    """Address and content come back as they were."""
    address = bytes((len(exchange),)) + exchange + bytes((len(routing_key),)) + routing_key
    key = pack_key(7, (1_700_000_000_000, 3))
    assert (7, 1_700_000_000_000, 3) == unpack_key(key)
    row = pack_row(key, address, content)
    assert (address, content, 0) == unpack_row(key, row)
    assert 0 == reference_of(key, row)
    row = pack_row(key, address, pack_reference(1 << 40, 5000))
    assert (address, content, 1 << 40) == unpack_row(key, row + content)
    assert 1 << 40 == reference_of(key, row)


@given(st.integers(0, 60), st.integers(1, 255))
def test_a_changed_octet_is_noticed(at, change):
    """A row with any octet changed, or under any other key, is not served."""
    key = pack_key(7, (1_700_000_000_000, 3))
    row = bytearray(pack_row(key, b"\x01x\x03key", b"content of the message, 28."))
    assert 37 == len(row)
    octets = bytearray(key) + row
    octets[at % len(octets)] ^= change
    with pytest.raises(DamagedError):
        unpack_row(bytes(octets[:24]), bytes(octets[24:]))
    with pytest.raises(DamagedError):
        unpack_row(key, b"")


@given(st.integers(0, 60), st.integers(1, 255))
def test_a_damaged_row_refers_to_nothing(at, change):
    """A row with any octet changed, or under any other key, has no body that could be deleted."""
    key = pack_key(7, (1_700_000_000_000, 3))
    octets = bytearray(key + pack_row(key, b"\x01x\x03key", pack_reference(1 << 40, 5000)))
    octets[at % len(octets)] ^= change
    assert 0 == reference_of(bytes(octets[:24]), bytes(octets[24:]))


def test_keys_of_a_line_begin_with_its_count_and_sort_by_time_and_number():
    """The row that counts a line lies before its messages, which lie in the order they are due."""
    keys = [pack_line(1), pack_key(1, (5, 9)), pack_key(1, (6, 1)), pack_key(1, (256, 0)), pack_line(2)]
    assert sorted(keys) == keys
    assert 12 == unpack_count(1, pack_count(1, 12))
    with pytest.raises(DamagedError):
        unpack_count(2, pack_count(1, 12))
    with pytest.raises(DamagedError):
        unpack_count(1, b"")


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 20)),
            st.tuples(st.just("take"), st.integers(0, 20)),
            st.tuples(st.just("discard"), st.sets(st.integers(1, 30))),
        ),
        max_size=60,
    )
)
def test_without_a_disk_what_is_discarded_is_gone(steps):
    """A window in memory has what was put and neither taken nor discarded, in order, though the clock is set back."""
    window = Window(stored=False)
    pending = []
    known, discarded = {}, set()
    for step, value in steps:
        if step == "put":
            number = len(known) + 1
            known[number] = value, number
            window.put({known[number]: b"row"})
            insort(pending, known[number])
        elif step == "take":
            expected = pending.pop(0) if pending and pending[0][0] <= value else None
            found = window.take(value)
            assert expected == (None if found is None else found[0])
        else:
            asked = {known[number] for number in value if number in known} - discarded
            discarded |= asked
            expected = asked.intersection(pending)
            assert expected == window.discard(asked)
            pending = [due for due in pending if due not in expected]
        assert len(pending) == window.count == len(window)
        assert (pending[0][0] if pending else None) == window.next_due
        assert pending == sorted(window.peek()[0])
    assert window.octets or not pending


def test_without_a_disk_a_discard_goes_through_few_messages():
    """To discard a hundred thousand messages piece by piece takes no look at all of them for each piece."""
    window = Window(stored=False)
    dues = [(1000 + number, number) for number in range(100_000)]
    for due in dues:
        window.put({due: b""})
    began = process_time()
    for at in range(0, len(dues), 100):
        window.discard(dues[at : at + 100])
    assert process_time() - began < 5
    assert 0 == window.count
