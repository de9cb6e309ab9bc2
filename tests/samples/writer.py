"""A queue's part of the journal, with commits to an environment, for tests of the data on disk."""

from leveret.storage.journal.blocks import Entry, Record, read_bitmap, read_header, read_records
from leveret.storage.journal.journal import Journal
from leveret.storage.journal.reads import Loaded
from leveret.storage.message import Message, Persistent
from leveret.storage.store.environment import Environment

SEGMENT = 64
QID = 1 << 32 | 1
ADDRESS = b"\x01x\x01k"


class Writer:
    """A queue's part of the journal that can commit."""

    def __init__(self, environment: Environment, journal: Journal | None = None, qid: int = QID) -> None:
        self.environment = environment
        self.journal = journal or Journal(first_msg_id=environment.boot << 40, embed_below=300)
        self.qid = qid
        self.segment = SEGMENT
        self.journal_fresh: list[Entry] = []
        self.journal_paged: list[Entry] = []
        self.journal_returns: dict[int, int] = {}
        self.journaled = False
        self.deleted = False

    def stored(self, entries: list[Entry]) -> None:
        raise AssertionError(entries)

    def unstored(self, entries: list[Entry]) -> None:
        """Keep the entries: they are still needed."""

    def write(
        self, *seq_ids: int, size: int = 10, paged: bool = False, copies: int = 1, body: int = 0
    ) -> list[Entry]:
        """Note messages and commit; `body` is the number of bytes recorded for their bodies."""
        content = bytes(11) + body.to_bytes(8, "big") if body else bytes(size)
        message = Persistent(ADDRESS, content, 1, None, 0, copies)
        return self.commit([self.note(message, seq_id, paged=paged) for seq_id in seq_ids])

    def note(self, message: Persistent, seq_id: int, *, paged: bool = False) -> Entry:
        mine: Message = message if paged else Persistent(ADDRESS, message.content, 1, None, 0, 1)
        if message.copies > 1:
            mine = message
        entry = Entry(seq_id, mine, len(message.content), durable=not paged)
        (self.journal_paged if paged else self.journal_fresh).append(entry)
        self.journal.touch(self)
        return entry

    def commit(self, entries: list[Entry] | None = None) -> list[Entry]:
        self.environment.commit(self.journal.cut())
        self.journal.settled()
        return entries or []

    def kill(self, *entries: Entry) -> None:
        for entry in entries:
            self.journal.dead(entry)
        self.commit()


def seq_ids(found: Loaded) -> list[int]:
    """Return the seq_ids that were read, in order."""
    ids = []
    for raw in found.blocks:
        header = read_header(raw.key, raw.value)
        records = read_records(raw.value, header, read_bitmap(raw.dead, header).dead)
        ids += [each.seq_id for each in records if isinstance(each, Record)]
    return sorted(ids)
