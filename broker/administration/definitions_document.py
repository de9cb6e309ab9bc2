"""RabbitMQ's definitions as JSON: the forms of their entries, their values, and the writing of files.

RabbitMQ's command line writes some objects as lists of pairs (the limits of a vhost, the definition of an operator
policy, the outermost level of a global parameter), which it cannot read itself. They are taken for objects here.
"""

import base64
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec

from leveret.broker.administration.access import DefinitionsError
from leveret.broker.amqp.errors import MalformedTable
from leveret.broker.amqp.tables import Field, Table, decode_whole_table, encode_table
from leveret.broker.auth.passwords import SHA256
from leveret.broker.vhost.parameter_checks import MAX_DEPTH, is_too_deep


class Entry(msgspec.Struct, kw_only=True):
    """One element of a section."""


class VHostMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a virtual host."""

    description: str | msgspec.UnsetType | None = msgspec.UNSET
    tags: str | list[str] | msgspec.UnsetType | None = msgspec.UNSET
    default_queue_type: str | msgspec.UnsetType | None = msgspec.UNSET
    protected_from_deletion: bool | msgspec.UnsetType | None = msgspec.UNSET


class VHostEntry(Entry, kw_only=True):
    """A virtual host. RabbitMQ's command line writes in `metadata` what its API writes beside the name."""

    name: str
    description: str = ""
    tags: str | list[str] = []
    default_queue_type: str | msgspec.UnsetType | None = msgspec.UNSET
    metadata: VHostMetadata = VHostMetadata()
    limits: dict[str, int] | list[tuple[str, int]] = {}


class UserEntry(Entry, kw_only=True):
    """A user; without a password or hash an existing user keeps its own."""

    name: str
    password_hash: str | msgspec.UnsetType | None = msgspec.UNSET
    password: str | msgspec.UnsetType | None = msgspec.UNSET
    hashing_algorithm: str = SHA256
    tags: str | list[str]
    limits: dict[str, int] | list[tuple[str, int]] = {}


class PermissionEntry(Entry, kw_only=True):
    """The permissions of a user in a virtual host."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


class TopicPermissionEntry(Entry, kw_only=True):
    """The routing keys that a user may use."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


class ParameterEntry(Entry, kw_only=True):
    """A parameter of a virtual host, including its limits and operator policies."""

    vhost: str
    component: str
    name: str
    value: Any


class GlobalParameterEntry(Entry, kw_only=True):
    """A global parameter."""

    name: str
    value: Any


class PolicyEntry(Entry, kw_only=True):
    """A policy."""

    vhost: str
    name: str
    pattern: str
    definition: dict[str, Any] | list[tuple[str, Any]]
    priority: int | float = 0
    apply_to: str = msgspec.field(default="all", name="apply-to")


class QueueEntry(Entry, kw_only=True):
    """A queue."""

    vhost: str
    name: str
    durable: bool = True
    auto_delete: bool = False
    arguments: dict[str, Any] = {}
    type: str = "classic"


class ExchangeEntry(Entry, kw_only=True):
    """An exchange."""

    vhost: str
    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, Any] = {}


class BindingEntry(Entry, kw_only=True):
    """A binding."""

    vhost: str
    source: str
    destination: str
    destination_type: Literal["queue", "exchange"]
    routing_key: str
    arguments: dict[str, Any] = {}


class Document(msgspec.Struct, kw_only=True):
    """All definitions, in the order in which they are created."""

    rabbit_version: str = ""
    rabbitmq_version: str = ""
    product_name: str = ""
    product_version: str = ""
    vhosts: list[VHostEntry] = []
    users: list[UserEntry] = []
    permissions: list[PermissionEntry] = []
    topic_permissions: list[TopicPermissionEntry] = []
    parameters: list[ParameterEntry] = []
    global_parameters: list[GlobalParameterEntry] = []
    policies: list[PolicyEntry] = []
    exchanges: list[ExchangeEntry] = []
    queues: list[QueueEntry] = []
    bindings: list[BindingEntry] = []


SECTIONS: Final[Mapping[str, type[Entry]]] = {
    "vhosts": VHostEntry,
    "users": UserEntry,
    "permissions": PermissionEntry,
    "topic_permissions": TopicPermissionEntry,
    "parameters": ParameterEntry,
    "global_parameters": GlobalParameterEntry,
    "policies": PolicyEntry,
    "exchanges": ExchangeEntry,
    "queues": QueueEntry,
    "bindings": BindingEntry,
}

T = TypeVar("T")


VHOST_SECTIONS: Final = frozenset({"parameters", "policies", "exchanges", "queues", "bindings"})
"""The sections of a file that is imported into one vhost."""


def writing(document: Document) -> Generator[None, None, bytes]:
    """Write definitions as RabbitMQ does, but indented for readers and version control, one entry per step."""
    parts: list[bytes] = []
    for name in Document.__struct_fields__:
        value = getattr(document, name)
        parts += b",\n" if parts else b"{\n", b'  "', name.encode(), b'": '
        if name not in SECTIONS or not value:
            parts.append(msgspec.json.encode(value))
            continue
        opening = b"[\n    "
        for entry in value:
            text = msgspec.json.format(msgspec.json.encode(entry), indent=2)
            parts += opening, text.replace(b"\n", b"\n    ")  # strings have no line feeds in JSON
            opening = b",\n    "
            yield
        parts.append(b"\n  ]")
    parts.append(b"\n}\n")
    return b"".join(parts)


def at_once(steps: Generator[None, None, T] | Iterator[None]) -> T:
    """Run all steps; returns the result of the generator."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def where(section: str, at: int, entry: object) -> str:
    """Describe an entry for an error message: its position in the file, and its name."""
    if isinstance(entry, Entry):
        entry = msgspec.structs.asdict(entry)
    identity = ""
    if isinstance(entry, dict):
        keys = ("name", "user", "component", "source", "destination", "exchange", "vhost")
        named = [f"{key} '{entry[key]}'" for key in keys if isinstance(entry.get(key), str)]
        identity = f" ({', '.join(named)})" if named else ""
    return f"{section}[{at}]{identity}"


# -- values -----------------------------------------------------------------------------------------------------------


def as_object(value: Any) -> Any:
    """Return a list of pairs as an object; anything else unchanged. An empty list may be an empty object."""
    if isinstance(value, list) and value and all(_is_pair(item) for item in value):
        return dict(value)
    return value


def _is_pair(item: object) -> bool:
    return isinstance(item, (list, tuple)) and len(item) == 2 and isinstance(item[0], str)  # noqa: PLR2004 - a pair


def as_words(tags: Any) -> list[str]:
    """Return tags, which were a comma-separated string before RabbitMQ 3.9, as a list."""
    return [word.strip() for word in tags.split(",") if word.strip()] if isinstance(tags, str) else list(tags)


def table_of(arguments: Mapping[str, Any]) -> Table:
    """Convert arguments to the types that RabbitMQ uses (rabbit_misc:to_amqp_table): every integer is a 'long'.

    Raises:
        DefinitionsError: a value that RabbitMQ does not accept either: null, or an integer of more than 64 bits; or one
        that could not be decoded again as a table.

    """
    if is_too_deep(arguments):
        raise DefinitionsError(f"invalid arguments: the table is nested deeper than {MAX_DEPTH} levels")
    table = _fields(arguments)
    try:
        decode_whole_table(encode_table(table))
    except (ValueError, MalformedTable) as error:
        raise DefinitionsError(f"invalid arguments: {error}") from None
    return table


def _fields(arguments: Mapping[str, Any]) -> Table:
    return {name: _field(name, value) for name, value in arguments.items()}


def _field(name: str, value: Any) -> Field:
    match value:
        case bool():
            return "bool", value
        case int() if -(2**63) <= value < 2**63:
            return "long", value
        case float():
            return "double", value
        case str():
            return "longstr", value
        case list():
            return "array", [_field(name, item) for item in value]
        case dict():
            return "table", _fields(value)
    error = DefinitionsError(f"invalid value of argument '{name}': {'null' if value is None else value}")
    error.reason = "null_not_allowed" if value is None else ""
    raise error


def plain_arguments(table: Table) -> dict[str, Any]:
    """Convert a table to plain values as RabbitMQ does (rabbit_misc:amqp_table), even without an equivalent in JSON.

    Then a void is the word `undefined`, bytes that are not valid UTF-8 are a sentence with their base64, and a decimal
    is its scale and its digits separated by a point: the conversion back gives other arguments.
    """
    return {json_text(name): _plain(field) for name, field in table.items()}


def _plain(field: Field) -> Any:
    kind, value = field
    form = _PLAIN.get(kind)
    return value if form is None else form(value)


def json_text(text: str) -> str:
    """Return a text, or RabbitMQ's sentence for bytes that are not valid UTF-8 (rabbit_data_coercion, `utf8_safe`)."""
    octets = text.encode("utf-8", "surrogateescape")
    try:
        octets.decode("utf-8")
    except UnicodeDecodeError:
        return f"Not UTF-8, base64 is: {base64.b64encode(octets).decode()}"
    return text


_PLAIN: Final[Mapping[str, Callable[[Any], Any]]] = {
    "table": plain_arguments,
    "array": lambda items: [_plain(item) for item in items],
    "longstr": json_text,
    "binary": lambda octets: json_text(octets.decode("utf-8", "surrogateescape")),
    "void": lambda _nothing: "undefined",
    "decimal": lambda parts: float(f"{parts[0]}.{parts[1]}"),
}
