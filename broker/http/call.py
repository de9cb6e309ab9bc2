"""A call of the API: what a handler is given, and what it may answer."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from leveret.broker.administration import AdministeredBroker, Administration
from leveret.broker.auth.login_throttle import HTTPLogins, LoginThrottle, RefusalLog
from leveret.broker.auth.name_patterns import Patterns
from leveret.broker.auth.users import User
from leveret.broker.http.errors import bad_request
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.statistics.node_facts import NodeFacts
from leveret.broker.statistics.statistics import Statistics

TRUE = {"true": True, "false": False}
DIGITS = 20
_LINE = 80
"""Characters of a line in which Erlang prints a term."""
_ENCODED_TWICE = (
    "invalid payload: the request body JSON-decoded to a string. Is the input doubly-JSON-encoded?"
)


class Stored(NamedTuple):
    """A need of a handler in steps: everything changed so far must be on disk; True is sent back, False if it is full.

    Attributes:
        files: also bodies that are written to files of their own.

    """

    files: bool = False


class Callback(NamedTuple):
    """A need of a handler in steps: a call of a function, whose argument is sent back.

    Attributes:
        subscribe: called with that function.

    """

    subscribe: Callable[[Callable[[Any], object]], object]


Need = None | Stored | Callback | Callable[[], Any]
"""Yielded by a step: None to let others have a turn, or a need; a plain function is a read to be run in a thread."""


class Listing(NamedTuple):
    """An answer: a list, which is sorted, and filtered and divided into pages if the request asks for it.

    Attributes:
        rows: the objects, one for each item.
        fields: by the name of each key of an item, the function that computes it from the object; None if the objects
            are the items.
        sort: the keys by which the list is sorted unless the request names one; () to keep the order.
        is_paged: False for a list that is never divided into pages.

    """

    rows: Iterable[Any]
    fields: Mapping[str, Callable[[Any], Any]] | None = None
    sort: tuple[str, ...] = ("vhost", "name")
    is_paged: bool = True


class Item(NamedTuple):
    """An answer: one object as JSON.

    Attributes:
        value: the object.
        headers: further headers.

    """

    value: Any
    headers: Mapping[str, str] = {}
    status: int = 200


class Content(NamedTuple):
    """An answer that is not an object of the API: a file, a page.

    Attributes:
        pieces: its octets, and None where others may have a turn.
        content_type: their type.
        headers: further headers.

    """

    pieces: Iterable[bytes | None]
    content_type: str
    headers: Mapping[str, str] = {}


class Done(NamedTuple):
    """An answer without a body to a change, which is given once the change is on disk.

    Attributes:
        status: 201 if something was created, 303 for a browser that is to go elsewhere, 204 otherwise.
        location: the place of what was created, relative to the path of the request, or where to go.

    """

    status: int = 204
    location: str = ""


Answer = Listing | Item | Content | Done
Steps = Generator[Need, Any, Answer]


class BoundListener(NamedTuple):
    """An address at which clients may connect.

    Attributes:
        protocol: RabbitMQ's name: amqp, http, http/prometheus.
        host: the address.
        port: the port.

    """

    protocol: str
    host: str
    port: int


class ManagedBroker(AdministeredBroker, Protocol):
    """The managed broker (`broker.server.server.Server`)."""

    administration: Administration

    patterns: Patterns
    context: NodeContext
    login_throttle: LoginThrottle
    refusal_log: RefusalLog
    auth_failure_delay: float

    statistics: Statistics
    http_logins: HTTPLogins

    @property
    def node_name(self) -> str:
        """The name of the node."""

    @property
    def cluster_name(self) -> str:
        """The name of the cluster, which clients see."""

    def node_facts(self) -> NodeFacts:
        """Return facts about the node."""

    def node_counts(self) -> Mapping[str, int]:
        """Return the sampled figures of the node but its open files."""

    def disk_counts(self) -> tuple[int, int]:
        """Return the numbers of messages read from disk and written to it."""

    @property
    def listeners(self) -> list[BoundListener]:
        """All bound listeners."""

    def rename_cluster(self, name: str) -> None:
        """Set the name that clients see, permanently."""

    def effective_settings(self) -> Iterator[str]:
        """Yield the effective configuration in lines; passwords are masked."""

    @property
    def obstacle(self) -> str:
        """Reason why clients may not connect; '' if they may."""

    @property
    def backups(self) -> Any:
        """The backups of its data; None if it has none on disk."""


@dataclass(slots=True)
class Call:
    """A request whose route was found and whose user may call it.

    Attributes:
        broker: the broker.
        actor: the user; None for the operator on the host.
        names: the names in the path, decoded.
        query: the parameters of the query; of repeated ones the first.
        content: the body.
        headers: the headers of the request by their names in lower case.
        peer: address of the client; '' on the socket of the data directory.

    """

    broker: ManagedBroker
    actor: User | None
    names: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    peer: str = ""

    @property
    def administration(self) -> Administration:
        """The service layer."""
        return self.broker.administration

    @property
    def vhost(self) -> str | None:
        """The vhost of the path or, for lists, of the header `X-Vhost`; None if there is none."""
        return self.names.get("vhost", self.headers.get("x-vhost") or None)

    def body(self, *required: str) -> dict[str, Any]:
        """Return the body, a JSON object; an empty one for none.

        Args:
            required: keys that it must have.

        Raises:
            ApiError: it is something else, or keys are missing.

        """
        if self.content.strip() in {b"", b"null", b"undefined"}:
            value: Any = {}
        else:
            try:
                value = msgspec.json.decode(self.content)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise bad_request("not_json") from None
        if isinstance(value, str):
            raise bad_request(_ENCODED_TWICE)
        if not isinstance(value, dict):
            raise bad_request("not_json")
        require(value, *required)
        return value


def require(values: Mapping[str, Any], *keys: str) -> None:
    """Raise ApiError if keys of a body are missing, with RabbitMQ's text, an Erlang term."""
    if missing := [f"{{key_missing,{key}}}" for key in keys if key not in values]:
        line = f"[{','.join(missing)}]"
        raise bad_request(line if len(line) <= _LINE else line.replace("},{", "},\n {"))


def flag(values: Mapping[str, Any], key: str, default: bool = False) -> bool:
    """Return a boolean of a body or query, which may be a text as rabbitmqadmin sends it; raises ApiError."""
    value = values.get(key, default)
    if isinstance(value, str):
        value = TRUE.get(value.lower(), value)
    if not isinstance(value, bool):
        raise bad_request(["not_boolean", value])
    return value


def number(values: Mapping[str, Any], key: str, default: int) -> int:
    """Return a whole number of a body or query, which may be a text; raises ApiError."""
    value = values.get(key, default)
    if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < DIGITS:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise bad_request(["not_integer", value])
    return value


def text(values: Mapping[str, Any], key: str, default: str = "") -> str:
    """Return a text of a body or query; raises ApiError."""
    value = values.get(key, default)
    if not isinstance(value, str):
        raise bad_request(f"'{key}' must be a text")
    return value


def table(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return an object of a body, {} if it is not there; raises ApiError."""
    value = values.get(key) or {}
    if not isinstance(value, dict):
        raise bad_request(f"'{key}' must be an object")
    return value


def in_pieces(rows: Iterable[Any]) -> Iterator[None]:
    """Yield once for each item of an iterable."""
    return (None for _ in rows)
