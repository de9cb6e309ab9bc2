"""Rows of the metadata store: vhosts, users, permissions, policies, exchanges, queues and bindings.

Theory. Entities (vhosts, exchanges, queues) have an id that is never assigned twice, and their key is the kind and that
id. Other rows refer to them by id, so no remains of a deleted queue can ever apply to a new one of the same name.
Relations and users are identified by their contents, so their key is the kind and a digest of those: writing one again
replaces it, and deleting it needs no index in memory. Names are in the values only, because a key may have at most 511
bytes and a binding has several names of up to 255.

A value is a crc32 of the rest and a msgpack array; fields are only ever added at its end, with a default. Names are
bytes here: AMQP does not guarantee that they are text. Arguments are an encoded AMQP table, policy definitions and
parameter values are JSON.
"""

import hashlib
from struct import Struct
from typing import ClassVar

import msgspec
from zlib_ng.zlib_ng import crc32

from leveret.storage.errors import DamagedError

_ID = Struct(">Q").pack
_CRC = Struct(">I")
_LENGTH = Struct(">I").pack
_DIGEST_SIZE = 16


def entity_key(kind: bytes, number: int) -> bytes:
    """Return the key of an entity with an id (u64)."""
    return kind + _ID(number)


def relation_key(kind: bytes, *parts: bytes) -> bytes:
    """Return the key of a row that is identified by these parts, in this order."""
    digest = hashlib.blake2b(digest_size=_DIGEST_SIZE)
    for part in parts:
        digest.update(_LENGTH(len(part)) + part)
    return kind + digest.digest()


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One row: a subclass for each kind, which is the first byte of the key."""

    kind: ClassVar[bytes]
    key_fields: ClassVar[tuple[str, ...]] = ()  # the fields, of bytes, that identify a relation

    def key(self) -> bytes:
        """Return the key of the row."""
        return relation_key(self.kind, *[getattr(self, name) for name in self.key_fields])


class EntityRow(Row, frozen=True):
    """A row with an id, by which others refer to it."""

    id: int

    def key(self) -> bytes:
        """Return the key of the row."""
        return entity_key(self.kind, self.id)


class VHostRow(EntityRow, frozen=True):
    """A vhost; its default queue type is kept for clients that query it."""

    kind: ClassVar[bytes] = b"V"
    name: bytes
    description: bytes = b""
    tags: list[bytes] = []
    default_queue_type: bytes = b""
    protected: bool = False


class VHostLimitsRow(Row, frozen=True):
    """The limits of a vhost; None is unlimited. The vhost need not exist."""

    kind: ClassVar[bytes] = b"L"
    key_fields = ("vhost",)
    vhost: bytes
    max_connections: int | None
    max_queues: int | None
    max_publish_rate: int | None = None
    max_publish_bytes: int | None = None


class UserRow(Row, frozen=True):
    """A user: see `broker.auth.users.User`."""

    kind: ClassVar[bytes] = b"U"
    key_fields = ("name",)
    name: bytes
    password_hash: bytes
    hashing_algorithm: bytes
    tags: list[bytes]


class UserLimitsRow(Row, frozen=True):
    """The limits of a user; None is unlimited."""

    kind: ClassVar[bytes] = b"M"
    key_fields = ("user",)
    user: bytes
    max_connections: int | None
    max_channels: int | None
    max_publish_rate: int | None = None
    max_publish_bytes: int | None = None


class PermissionRow(Row, frozen=True):
    """The permissions of a user in a vhost: three patterns."""

    kind: ClassVar[bytes] = b"P"
    key_fields = ("user", "vhost")
    user: bytes
    vhost: bytes
    configure: bytes
    write: bytes
    read: bytes


class TopicPermissionRow(Row, frozen=True):
    """The topic permissions of a user on an exchange: two patterns, as they were set."""

    kind: ClassVar[bytes] = b"T"
    key_fields = ("user", "vhost", "exchange")
    user: bytes
    vhost: bytes
    exchange: bytes
    write: bytes
    read: bytes


class PolicyRow(Row, frozen=True):
    """A policy or operator policy of a vhost: see `broker.vhost.policies.Policy`."""

    kind: ClassVar[bytes] = b"Y"
    vhost: int
    operator: bool
    name: bytes
    pattern: bytes
    definition: bytes
    priority: int | float
    apply_to: bytes

    def key(self) -> bytes:
        """Return the key of the row."""
        return policy_key(self.vhost, self.name, operator=self.operator)


def policy_key(vhost: int, name: bytes, *, operator: bool) -> bytes:
    """Return the key of a policy's row."""
    return relation_key(PolicyRow.kind, _ID(vhost), bytes([operator]), name)


class ParameterRow(Row, frozen=True):
    """A parameter of a vhost that has no row of another kind, such as a shovel; the setter as in `VHostParameters`."""

    kind: ClassVar[bytes] = b"R"
    vhost: int
    component: bytes
    name: bytes
    value: bytes
    setter: bytes = b""

    def key(self) -> bytes:
        """Return the key of the row."""
        return parameter_key(self.vhost, self.component, self.name)


def parameter_key(vhost: int, component: bytes, name: bytes) -> bytes:
    """Return the key of a parameter's row."""
    return relation_key(ParameterRow.kind, _ID(vhost), component, name)


class GlobalParameterRow(Row, frozen=True):
    """A global parameter."""

    kind: ClassVar[bytes] = b"G"
    key_fields = ("name",)
    name: bytes
    value: bytes


class ExchangeRow(EntityRow, frozen=True):
    """A durable exchange."""

    kind: ClassVar[bytes] = b"E"
    vhost: int
    name: bytes
    type: bytes
    auto_delete: bool
    internal: bool
    arguments: bytes


class QueueRow(EntityRow, frozen=True):
    """A durable queue; its id is the qid under which its messages are stored. An operator may have paused it."""

    kind: ClassVar[bytes] = b"Q"
    vhost: int
    name: bytes
    auto_delete: bool
    arguments: bytes
    paused: bool = False


class BindingRow(Row, frozen=True):
    """A binding of a durable exchange (`source`) to a durable queue or exchange (`destination`), all by id.

    `identity` is a canonical form of the arguments, the same for all tables that are equal for a binding: their order
    does not matter. `order` increases with each new binding of an exchange to which the order matters, else it is 0.
    """

    kind: ClassVar[bytes] = b"B"
    source: int
    destination: int
    binding_key: bytes
    arguments: bytes
    identity: bytes
    order: int = 0

    def key(self) -> bytes:
        """Return the key of the row."""
        ends = _ID(self.source) + _ID(self.destination)
        return relation_key(self.kind, ends, self.binding_key, self.identity)


_KINDS: tuple[type[Row], ...] = (
    VHostRow,
    VHostLimitsRow,
    UserRow,
    UserLimitsRow,
    PermissionRow,
    TopicPermissionRow,
    PolicyRow,
    ParameterRow,
    GlobalParameterRow,
    ExchangeRow,
    QueueRow,
    BindingRow,
)
_DECODERS = {row.kind: msgspec.msgpack.Decoder(row) for row in _KINDS}
_encode = msgspec.msgpack.Encoder().encode


def encode(row: Row) -> bytes:
    """Return the value of a row."""
    body = _encode(row)
    return _CRC.pack(crc32(body)) + body


def decode(key: bytes, value: bytes) -> Row:
    """Parse a row; raises DamagedError if the bytes are not those that were written, or not under this key."""
    decoder = _DECODERS.get(key[:1])
    if decoder is None:
        raise DamagedError(f"definition {key.hex()} is of an unknown kind")
    body = value[_CRC.size :]
    if value[: _CRC.size] != _CRC.pack(crc32(body)):
        raise DamagedError(f"definition {key.hex()} is damaged: wrong checksum")
    try:
        row = decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise DamagedError(f"definition {key.hex()} is damaged: {error}") from None
    if row.key() != key:
        raise DamagedError(f"definition {key.hex()} is damaged: stored under a wrong key")
    return row
