"""RabbitMQ's definitions as JSON: the forms of their entries, their values, and the reading of files.

RabbitMQ's command line writes some objects as lists of pairs (the limits of a vhost, the definition of an operator
policy, the outermost level of a global parameter), which it cannot read itself. They are taken for objects here.

Every entry of a file is validated by itself, and all that are invalid are found; whether they fit existing objects is
checked by `definitions_import`. Unknown keys and sections are ignored as in RabbitMQ, whose later versions write more
of them than earlier ones, and missing sections are accepted.
"""

import base64
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import count
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args

import msgspec

from leveret.broker.administration.access import DefinitionsError
from leveret.broker.administration.json_parts import (
    WINDOW,
    NotDivisibleError,
    Part,
    key_of,
    members,
    unmarked,
    whole,
)
from leveret.broker.amqp.errors import MalformedTable
from leveret.broker.amqp.tables import Field, Table, decode_whole_table, encode_table
from leveret.broker.auth.passwords import MD5, SHA256
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
    limits: dict[str, Any] | list[Any] = {}


class UserEntry(Entry, kw_only=True):
    """A user; without a password or hash an existing user keeps its own."""

    name: str
    password_hash: str | msgspec.UnsetType | None = msgspec.UNSET
    password: str | msgspec.UnsetType | None = msgspec.UNSET
    hashing_algorithm: str = SHA256
    tags: str | list[str]
    limits: dict[str, Any] | list[Any] = {}


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
    routing_key: str = ""
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
    name: get_args(form)[0] for name, form in Document.__annotations__.items() if form is not str
}

VHOST_SECTIONS: Final = frozenset({"parameters", "policies", "exchanges", "queues", "bindings"})
"""The sections of a file that is imported into one vhost."""


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


def limits_of(value: Any) -> Any:
    """Return limits as an object of numbers by names, also a list of pairs or of objects as the API lists them."""
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        return as_object(value) or {}
    found: dict[str, Any] = {}
    for each in value:
        limit = each.get("value")
        found |= limit if isinstance(limit, dict) else {each["name"]: limit} if "name" in each else each
    return found


def as_words(tags: Any) -> list[str]:
    """Return tags, which were a comma-separated string before RabbitMQ 3.9, as a list."""
    return [word.strip() for word in tags.split(",") if word.strip()] if isinstance(tags, str) else list(tags)


def table_of(arguments: Mapping[str, Any]) -> Table:
    """Convert arguments to the types that RabbitMQ uses (rabbit_misc:to_amqp_table): every integer is a 'long'.

    Raises DefinitionsError for what RabbitMQ does not accept either (null, integers of more than 64 bits), and for what
    could not be decoded again as a table.
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


def encoded(value: Any) -> bytes:
    """Encode a value as JSON, with RabbitMQ's sentence for each text that is not UTF-8 (`json_text`)."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(readable(msgspec.to_builtins(value)))


def readable(value: Any) -> Any:
    """Return a value with sentences for texts that are not UTF-8, such as headers of a client's message."""
    if isinstance(value, str):
        return json_text(value)
    if isinstance(value, Mapping):
        return {readable(key): readable(each) for key, each in value.items()}
    return list(map(readable, value)) if isinstance(value, list | tuple) else value


# -- reading ----------------------------------------------------------------------------------------------------------


PASSED_OVER: Final = frozenset(
    (
        "rabbit_version", "rabbitmq_version", "product_name", "product_version", "rabbitmq_definition_format",
        "original_cluster_name", "original_vhost_name", "explanation", "metadata", "description",
    )
)  # fmt: skip
"""Metadata of the file itself, which is ignored."""

_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels"

MOST_PROBLEMS: Final = 10_000  # number of invalid entries in a section after which the rest of it is not read
MOST_OCTETS: Final = 256 * 1024  # maximum size of an entry in bytes
_WITH_MD5: Final = re.compile(r"3\.[0-5]\.")
"""Versions of RabbitMQ that wrote hashes without their algorithm, which was MD5; others, such as the 0.0.0 of builds
from source, have the default (rabbit_definitions:hashing_algorithm/2)."""
_OBJECT, _ARRAY = "an object", "an array"
_KINDS = {  # the kinds of values by their first octets
    b"{": _OBJECT,
    b"[": _ARRAY,
    b'"': "a string",
    b"t": "a boolean",
    b"f": "a boolean",
    b"n": "null",
} | {bytes((digit,)): "a number" for digit in b"-0123456789"}
_ENDS = {b"{": b"}", b"[": b"]"}

_NULLABLE: Final[Mapping[type[Entry], tuple[str, ...]]] = {  # keys that may be null
    VHostEntry: ("description", "tags", "metadata", "limits"),
    UserEntry: ("hashing_algorithm",),
    ExchangeEntry: ("internal",),
}

_EntryType = TypeVar("_EntryType", bound=Entry)


class NotJSONError(DefinitionsError):
    """The file is not a JSON object."""


class Problem(NamedTuple):
    """An entry of the file that cannot be imported, or a section as a whole, which has no position `at`; and why."""

    section: str
    at: int | None
    entry: object
    text: str

    def __str__(self) -> str:
        if self.at is None:
            return f"{self.section} {self.text}"
        return f"{where(self.section, self.at, self.entry)}: {self.text}"


class Reading(NamedTuple):
    """The entries of a file that are valid by themselves, the problems of the others, and the keys that are ignored.

    `positions`, if it is not None, has the position of each valid entry in its section of the file.
    """

    document: Document
    problems: list[Problem]
    unknown: list[str]
    positions: dict[str, list[int]] | None = None

    def positions_of(self, section: str) -> Iterator[int]:
        """Yield the position of each valid entry of a section."""
        if self.positions is not None:
            return iter(self.positions[section])
        refused = {each.at for each in self.problems if each.section == section}
        return (at for at in count() if at not in refused)


def read_document(octets: bytes, vhost: str | None = None) -> Generator[None, None, Reading]:
    """Read a definitions file, one entry per step.

    With a vhost only what is in a vhost is read, and taken for this one, whatever it names. Raises NotJSONError if it
    is not a JSON object, and DefinitionsError if something that is ignored is nested too deeply.
    """
    try:
        return (yield from _read(unmarked(octets), vhost))
    except NotDivisibleError as error:
        raise _not_json(error) from None


def _read(octets: bytes, vhost: str | None) -> Generator[None, None, Reading]:
    content = yield from _sections(octets)
    unknown = content.keys() - SECTIONS.keys() - PASSED_OVER
    reading = Reading(Document(), [], sorted(unknown))
    part = content.get("rabbit_version")
    version = "" if part is None or part.stop - part.start > WINDOW else _decoded(octets[slice(*part)])
    has_md5 = isinstance(version, str) and _WITH_MD5.match(version) is not None
    for section in SECTIONS:
        if section in content and (vhost is None or section in VHOST_SECTIONS):
            yield from _read_section(octets, content[section], section, vhost, reading, has_md5=has_md5)
    return reading


def _sections(octets: bytes) -> Generator[None, None, dict[str, Part]]:
    """Divide a file, which may be large, in steps; returns its values by their keys."""
    outer = whole(octets)
    if (kind := _kind(octets, outer)) != _OBJECT:
        raise NotJSONError(f"the file is not a JSON object but {kind}")
    found: dict[str, Part] = {}
    for member in members(octets, outer):
        if member is not None:
            key, value = key_of(octets, member)
            found[key] = value
            if key not in SECTIONS and value.stop - value.start <= WINDOW:
                _decoded(octets[slice(*value)])  # only so that what is no JSON is refused
        yield
    return found


def _read_section(
    octets: bytes, part: Part, section: str, vhost: str | None, reading: Reading, *, has_md5: bool
) -> Generator[None, None, None]:
    """Decode the entries of a section, one per step; with `has_md5` hashes without an algorithm are of MD5."""
    part = whole(octets, part)
    if (kind := _kind(octets, part)) != _ARRAY:
        reading.problems.append(Problem(section, None, None, f"is not an array but {kind}"))
        return
    read = getattr(reading.document, section)
    most = len(reading.problems) + MOST_PROBLEMS
    at = -1
    for each in members(octets, part):
        yield
        if each is None:
            continue
        at += 1
        if len(reading.problems) == most:
            reading.problems.append(Problem(section, None, None, "was not read further"))
            return
        value: object = None
        try:
            value = _entry(octets, each)
            if vhost is not None and isinstance(value, dict):
                value["vhost"] = vhost
            if has_md5 and section == "users" and isinstance(value, dict) and value.get("password_hash"):
                value.setdefault("hashing_algorithm", MD5)
            read.append(_read_entry(value, SECTIONS[section]))
        except NotJSONError:
            raise
        except DefinitionsError as error:
            reading.problems.append(Problem(section, at, value, str(error)))


def _entry(octets: bytes, part: Part) -> object:
    """Decode an entry. One that is larger than any that can be imported would take too long."""
    size = part.stop - part.start
    if size > MOST_OCTETS:
        raise DefinitionsError(f"it has {size} bytes, more than {MOST_OCTETS}")
    return _decoded(octets[slice(*part)])


def _decoded(octets: bytes) -> Any:
    try:
        return msgspec.json.decode(octets)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _not_json(error) from None
    except RecursionError:
        raise DefinitionsError(_TOO_DEEP) from None


def _not_json(error: Exception) -> NotJSONError:
    return NotJSONError(f"the file is not JSON: {error}")


def _read_entry(value: object, form: type[_EntryType]) -> _EntryType:
    if is_too_deep(value):
        raise DefinitionsError(_TOO_DEEP)
    if isinstance(value, dict):
        value = {key: each for key, each in value.items() if not _is_nothing(form, key, each)}
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        raise DefinitionsError(str(error).replace(" - at `$.", " at `")) from None


def _is_nothing(form: type[Entry], key: str, value: Any) -> bool:
    """Return whether RabbitMQ takes a value for the default; an empty object is a list in PHP."""
    return (value is None and key in _NULLABLE.get(form, ())) or (key == "arguments" and value == [])


def _kind(octets: bytes, part: Part) -> str:
    """Return the kind of a value, by its first octet; raises NotJSONError if it can be none."""
    first = octets[part.start : part.start + 1]
    kind = _KINDS.get(first)
    if kind is None:
        raise NotJSONError(
            "the file is not JSON: " + ("it ends early" if not first else "it has something else")
        )
    end = _ENDS.get(first)
    if end is not None and (part.stop - part.start == 1 or octets[part.stop - 1 : part.stop] != end):
        raise NotJSONError("the file is not JSON: it ends early")
    return kind
