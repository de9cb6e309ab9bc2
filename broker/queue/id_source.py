"""The ids of the messages of a queue or an exchange that takes each message once, and the key of their hash."""

from collections.abc import Sequence
from hashlib import sha256
from zlib import crc32

from leveret.broker.amqp.properties import Properties, message_ids
from leveret.broker.errors import precondition_failed
from leveret.broker.queue.arguments import BODY, DEDUPLICATE_MODES, HEADER, MESSAGE_ID
from leveret.storage.message import Message
from leveret.storage.message_ids import fingerprint, fingerprints

MOST_HASHED = 1024 * 1024
"""Largest body in bytes that is an id: to hash more takes too long for one step."""


class IdSource:
    """Reads the ids of the messages of one queue; `source` is as in `QueueSettings.deduplicate`, `key` of the hash."""

    def __init__(self, source: str | None, key: int) -> None:
        self.source = source
        self._key = key
        self._name = (source or "").removeprefix(HEADER) if (source or "").startswith(HEADER) else ""
        self._octets = octets(self._name)

    def mark_of_id(self, text: str) -> bytes:
        """Return the fingerprint of an id: of a body that is the SHA-256, in hexadecimal digits."""
        return fingerprint(self._key, octets(text))

    def mark(self, message: Message) -> bytes | None:
        """Return the fingerprint of the id of a message; None if it has none."""
        return self.marks((message,))[0] or None

    def marks(self, messages: Sequence[Message]) -> list[bytes]:
        """Return the fingerprints of the ids of messages; empty for one without."""
        if self.source == MESSAGE_ID:
            return fingerprints(self._key, message_ids([message.content for message in messages]))
        read = self._body if self.source == BODY else self._header
        return fingerprints(self._key, [octets(read(message)) for message in messages])

    def _body(self, message: Message) -> str:
        return sha256(message.body).hexdigest() if message.body_size <= MOST_HASHED else ""

    def _header(self, message: Message) -> str:
        header = message.header
        if not self._name or self._octets not in header:
            return ""
        field = (Properties(header).headers or {}).get(self._name)
        return "" if field is None or field[1] is None else str(field[1])

    def check(self, message: Message, where: str) -> None:
        """Raise 406 if the body of a message that is published is its id, and too large for that."""
        if self.source == BODY and message.body_size > MOST_HASHED:
            raise precondition_failed(
                f"a body of {message.body_size} bytes cannot be the id of a message in {where}: x-deduplicate=body "
                f"takes at most {MOST_HASHED} bytes; larger messages need a message_id or a header"
            )


def tagged(key: int, once: tuple[str | None, str]) -> int:
    """Return a key of the hash with the settings (`QueueSettings.once`) in it: mode in two bits, source in 14."""
    source, mode = once
    return key >> 16 << 16 | DEDUPLICATE_MODES.index(mode) << 14 | crc32(octets(source or "")) >> 18


def octets(text: str) -> bytes:
    """Return the bytes of an id."""
    return text.encode("utf-8", "surrogateescape")
