"""The rows of ids, over kills: a start knows what the last commit had, however much of the table was copied then."""

from random import Random

import pytest

from leveret.broker.queue import id_log
from leveret.broker.queue.id_log import IdLog
from leveret.storage import message_ids
from leveret.storage.delayed import pack_line, unpack_key
from leveret.storage.message_ids import (
    FREE,
    PRESENT,
    KnownIds,
    Room,
    fingerprint,
    frees,
    is_known,
    value_until,
)

NOW = 1_790_000_000_000
MARKS = [fingerprint(1, b"%d" % number) for number in range(200)]
KEY = 5


class Disk:
    """A journal whose commits are all in a dict, or, on a full disk, what frees ids."""

    def __init__(self, stored: dict[bytes, bytes]) -> None:
        self.journal, self.commits = self, 0
        self.stored = stored
        self.batch: list[tuple[bytes, bytes | None]] = []
        self.cuts = []

    def before_cut(self, write):
        self.cuts.append(write)
        return True

    def put(self, table, key, value):
        self.batch.append((key, value))

    def delete(self, table, key):
        self.batch.append((key, None))

    def commit(self, *, is_full=False):
        cuts, self.cuts = self.cuts, []
        for write in cuts:
            write()
        for key, value in [each for each in self.batch if not is_full or frees(*each)]:
            if value is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = value
        if not is_full:
            self.batch.clear()
            self.commits += 1

    def rows(self):
        return [(unpack_key(key)[1:], value) for key, value in sorted(self.stored.items()) if len(key) > 8]


@pytest.mark.parametrize("seed", range(12))
def test_a_start_knows_what_the_last_commit_had(seed, monkeypatch):
    """Whatever was copied, deleted or cut off by a full disk at a kill: then only ends of ids are there."""
    rnd, now = Random(seed), NOW
    monkeypatch.setattr(message_ids, "BUCKET", 3)
    monkeypatch.setattr(id_log, "LEAST_COPIED", 1)
    monkeypatch.setattr(id_log, "FEW_CHANGES", rnd.choice([-(1 << 40), 5, 50]))
    monkeypatch.setattr(id_log, "FEW_ROWS", rnd.choice([4, 64]))
    monkeypatch.setattr(id_log, "COPIED_EACH", rnd.choice([1, 4]))
    monkeypatch.setattr(id_log, "ROW", rnd.choice([30, 90]))
    stored: dict[bytes, bytes] = {}
    disk, room, model, safe = Disk(stored), Room(), dict[bytes, int](), dict[bytes, int]()
    log, most = IdLog(7, disk, KnownIds(room, lambda: now)), 0
    log.key = KEY
    for _ in range(1500):
        what, mark, value = rnd.random(), rnd.choice(MARKS), value_until(now + rnd.randrange(20_000))
        if what < 0.3:
            marks = [mark for mark in rnd.sample(MARKS, 5) if not log.known.get(mark)]
            log.known.add_all(marks, value)
            model |= dict.fromkeys(marks, value)
        elif what < 0.4:
            model[mark] = PRESENT
            log.known.put(mark, PRESENT)
        elif what < 0.5:
            model.pop(mark, None)
            log.known.put(mark, FREE, is_end=True)
        elif what < 0.55:
            now += rnd.randrange(1000)
        elif what < 0.58:
            disk.commit(is_full=True)
            safe = {mark: value for mark, value in safe.items() if mark in model}
        elif what < 0.6:
            disk, room = Disk(stored), Room()
            log = IdLog(7, disk, KnownIds(room, lambda: now))  # noqa: B023 - it is the time
            if line := stored.get(pack_line(7)):
                log.recover(7, line, disk.rows, lambda key: key == KEY)
            log.key = KEY
            known, expected = (
                [each for each in ids if is_known(each[1], now)]
                for ids in (log.known.entries(), safe.items())
            )
            assert not {*known} ^ {*expected}
            model = dict(safe)
        else:
            disk.commit()
            safe = dict(model)
            most = max(most, len(stored))
    assert 0 < most < 1000
