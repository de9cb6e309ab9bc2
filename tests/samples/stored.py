"""A data directory with all kinds of records, written by the real storage without threads or sockets."""

from pathlib import Path

from leveret.broker.amqp.properties import build
from leveret.storage.journal.journal import Journal
from leveret.storage.message import Persistent
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.variable_queue import VariableQueue
from leveret.storage.store.environment import Environment
from leveret.storage.store.metadata_rows import ExchangeRow, QueueRow, VHostRow, encode
from leveret.storage.store.recovery import saved_rows

NO_ARGUMENTS = bytes(4)
ADDRESS = b"\x00\x02k1"
SEGMENT = 64


def content_of(text: str) -> bytes:
    """Return the frames of a message with this body."""
    header, body = build(len(text), delivery_mode=2), text.encode()
    frames = b"\x02\x00\x01" + len(header).to_bytes(4, "big") + header + b"\xce"
    return frames + b"\x03\x00\x01" + len(body).to_bytes(4, "big") + body + b"\xce"


class Stored:
    """An open data directory and its queues.

    Args:
        data_dir: its path.
        names: of its durable queues, which are in the vhost `/`.

    """

    def __init__(self, data_dir: Path, *names: str) -> None:
        self.environment = Environment(data_dir, sync=False)
        boot = self.environment.boot
        self.journal = Journal(boot << 40)
        self.pager = Pager(self.journal, lambda _: None, segment=SEGMENT, blob_threshold=20_000)
        ids = iter(range((boot << 32) + 1, (boot << 32) + 1000))
        vhost = VHostRow(next(ids), b"/")
        rows = [vhost, ExchangeRow(next(ids), vhost.id, b"x", b"direct", False, False, NO_ARGUMENTS)]
        self.queues: dict[str, VariableQueue] = {}
        for name in names:
            row = QueueRow(next(ids), vhost.id, name.encode(), False, NO_ARGUMENTS)
            rows.append(row)
            self.queues[name] = VariableQueue(self.pager, row.id, durable=True, next_seq=boot << 40)
        for row in rows:
            self.journal.put("defs", row.key(), encode(row))
        self.commit()

    def publish(self, text: str, *names: str) -> None:
        message = Persistent(ADDRESS, content_of(text), 1, None, 0, len(names))
        for name in names:
            self.queues[name].publish([message], persistent=True)

    def take(self, name: str, count: int, *keep: int) -> None:
        """Fetch and ack that many messages from the head, except those at these places among them."""
        seq_ids = []
        while len(seq_ids) < count:
            found = self.queues[name].fetch(count - len(seq_ids), ack_required=True).seq_ids
            assert found, "it was paged to disk, and nothing is read here"
            seq_ids += found
        self.queues[name].ack([seq_id for place, seq_id in enumerate(seq_ids) if place not in keep])

    def commit(self) -> None:
        """Commit all changes so far, files first."""
        for msg_id, (message, _) in list(self.journal.files.items()):
            octets = self.environment.bodies.checksum(msg_id, message.content) + message.content
            self.environment.bodies.path(msg_id).write_bytes(octets)
            self.journal.file_written(msg_id)
        unlink = self.environment.commit(self.journal.cut())
        self.journal.settled()
        for msg_id in unlink:
            self.environment.bodies.path(msg_id).unlink()

    def close(self, *, clean: bool = False) -> None:
        """Close, with or without the records of a clean stop."""
        if clean:
            self.environment.save(saved_rows(self.queues.values()))
        self.environment.close()


def example(data_dir: Path, *, clean: bool = False) -> None:
    """Make two queues with messages in rows, apart and in files, some of them settled.

    `one` has 200 messages with a dead one among each three of the first 90, `two` shares ten of 5000 octets with
    it, and one of 30,000.
    """
    stored = Stored(data_dir, "one", "two", "empty")
    for number in range(200):
        stored.publish(f"message {number}", "one")
    stored.commit()
    for number in range(10):
        stored.publish(f"{number}" * 5000, "one", "two")
    stored.publish("f" * 30_000, "two")
    stored.commit()
    stored.take("one", 90, *range(0, 90, 3), *range(1, 90, 3))
    stored.take("two", 2)
    stored.commit()
    stored.close(clean=clean)
