"""A call of the API: what a handler is given, and what it may answer."""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from leveret.broker.administration import (
    AdministeredBroker,
    Administration,
    AdministrationError,
    ForbiddenError,
    NotFoundError,
)
from leveret.broker.administration.json_parts import NotDivisibleError, object_of, unmarked
from leveret.broker.auth.users import User
from leveret.broker.http.errors import ApiError, bad_request, not_authorised, not_found, vhost_not_found
from leveret.broker.http.feeds import Topic
from leveret.broker.vhost.parameter_checks import MAX_DEPTH, is_too_deep
from leveret.broker.vhost.vhost import VHost

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})  # methods that change nothing
TRUE = {"true": True, "false": False}
DIGITS = 20
REFUSED = "Access refused."
SMALL = 1024  # octets of a body that may be no more than space
_LINE = 80  # characters of a line in which Erlang prints a term
_ENCODED_TWICE = (
    "invalid payload: the request body JSON-decoded to a string. Is the input doubly-JSON-encoded?"
)


class Stored(NamedTuple):
    """A need of a handler in steps: all changes so far must be on disk; True is sent back, False if it is full."""


class Callback(NamedTuple):
    """A need of a handler in steps: a call of a function, whose argument is sent back."""

    subscribe: Callable[[Callable[[Any], object]], object]


def signal(subscribe: Callable[[Callable[[], object]], object]) -> Callback:
    """Return the need of a call without an argument, such as of `NotYet.subscribe`."""
    return Callback(lambda done: subscribe(lambda: done(None)))


Need = None | Stored | Callback | Callable[[], Any]
"""Yielded by a step: None to let others have a turn, or a need; a plain function is a read to be run in a thread."""


class Listing(NamedTuple):
    """An answer: a list, which is sorted, and filtered and divided into pages if the request asks for it.

    `fields` has the functions that compute the keys of an item from its row, None if the rows are the items; `sort` the
    keys by which it is sorted unless the request names one, () to keep the order; `octets` is what the items keep in
    memory, as far as it is much.
    """

    rows: Iterable[Any]
    fields: Mapping[str, Callable[[Any], Any]] | None = None
    sort: tuple[str, ...] = ("vhost", "name")
    is_paged: bool = True
    octets: int = 0
    headers: Mapping[str, str] = {}


class Item(NamedTuple):
    """An answer: one object as JSON."""

    value: Any
    headers: Mapping[str, str] = {}
    status: int = 200


class Content(NamedTuple):
    """An answer that is not an object of the API: its octets in pieces, and None where others may have a turn."""

    pieces: Iterable[bytes | None]
    content_type: str
    headers: Mapping[str, str] = {}
    status: int = 200


class Events(NamedTuple):
    """An answer that goes on until the client leaves: what topics say, whenever it has changed.

    `renewed` is called every few seconds, and returns the topics to which the client has a right now, () for none. The
    answer ends if they are not the same: the client asks again then.
    """

    topics: tuple[Topic, ...]
    renewed: Callable[[], tuple[Topic, ...]]


class Stream(NamedTuple):
    """An answer that goes on until its reader leaves."""

    pieces: Iterator[bytes | None]  # its octets; None where others may have a turn, b"" for none as yet
    when_there: Callable[[Callable[[], object]], object]  # has a function called once there are more
    close: Callable[[], object]  # must be called when the reader has left, or the answer has ended
    content_type: str  # the type of its octets
    idle: bytes  # octets sent after some time without any, so that a reader that has left is noticed
    last: bytes  # octets that end it when the broker stops


class Done(NamedTuple):
    """An answer without a body to a change, which is given once the change is on disk.

    The status is 201 if something was created, 303 for a browser that is to go elsewhere. The location is relative to
    the path of the request.
    """

    status: int = 204
    location: str = ""
    headers: Mapping[str, str] = {}


Answer = Listing | Item | Content | Events | Stream | Done
Steps = Generator[Need, Any, Answer]


class Request(NamedTuple):
    """A request as it was received; headers have names in lower case.

    `peer` is the address of the client, '' for the socket of the data directory, whose users may do everything; and
    `host_names` are names under which browsers may reach a listener on loopback, None if any will do.
    """

    method: str
    path: str
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    peer: str = ""
    host_names: Collection[str] | None = None


class Values(dict[str, Any]):
    """The values of a body, a query or a path by their keys. The methods raise ApiError for one of another type."""

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a boolean, which may be a text as rabbitmqadmin sends it."""
        value = self.get(key, default)
        if isinstance(value, str):
            value = TRUE.get(value.lower(), value)
        if not isinstance(value, bool):
            raise bad_request(["not_boolean", value])
        return value

    def number(self, key: str, default: int) -> int:
        """Return a whole number, which may be a text."""
        value = self.get(key, default)
        if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) < DIGITS:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise bad_request(["not_integer", value])
        return value

    def number_or_none(self, key: str) -> int | None:
        """Return a whole number; None if it is not there, or null."""
        return None if self.get(key) is None else self.number(key, 0)

    def text(self, key: str, default: str = "") -> str:
        """Return a text."""
        value = self.get(key, default)
        if not isinstance(value, str):
            raise bad_request(f"'{key}' must be a text")
        return value

    def table(self, key: str) -> "Values":
        """Return an object, {} if it is not there; one that is nested too deep to be used is an error, too."""
        value = self.get(key) or {}
        if not isinstance(value, dict):
            raise bad_request(f"'{key}' must be an object")
        if is_too_deep(value):
            raise bad_request(f"'{key}' is nested deeper than {MAX_DEPTH} levels")
        return Values(value)


@dataclass(slots=True)
class Call:
    """A request whose route was found and whose user may call it.

    The actor is None for the operator on the host. Names in the path are decoded, of repeated parameters of the query
    the first counts, and headers have names in lower case.
    """

    broker: AdministeredBroker
    actor: User | None
    names: Values = field(default_factory=Values)
    query: Values = field(default_factory=Values)
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    peer: str = ""
    is_head: bool = False

    @property
    def administration(self) -> Administration:
        """The service layer."""
        administration: Administration = self.broker.administration
        return administration

    @property
    def vhost(self) -> str | None:
        """The vhost of the path or, for lists, of the header `X-Vhost`; None if there is none."""
        return self.names.get("vhost", self.headers.get("x-vhost") or None)

    @property
    def asked_vhost(self) -> str | None:
        """The vhost of the path, which exists, or of the header `X-Vhost`; None if there is none. Raises ApiError."""
        return self.found_vhost().name if "vhost" in self.names else self.vhost

    def found_vhost(self) -> VHost:
        """Return the vhost of the path; raises ApiError if it does not exist."""
        vhost: VHost | None = self.broker.vhosts.get(self.vhost or "")
        if vhost is None:
            raise not_found()
        return vhost

    def check_node_name(self) -> None:
        """Check that the node of the path, if there is one, is this one; raises ApiError."""
        node = self.broker.node_name
        if self.names.get("node", node) != node:
            raise not_found()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Declare, bind or delete in the vhost of the path as a client of the user, with errors spelt as in RabbitMQ.

        ApiError is 404 without the vhost or the object, or 401.
        """
        if self.vhost not in self.broker.vhosts:
            raise vhost_not_found()
        try:
            with naming_the_missing():
                yield
        except ForbiddenError:
            raise not_authorised(REFUSED) from None

    @contextmanager
    def on_channel(self, *, queue: bool = False) -> Iterator[None]:
        """Publish or fetch in the vhost of the path as a client of the user; errors are those that close a channel.

        Raises ApiError: 401 if the user may not connect to the vhost, 404 for a missing `queue`, otherwise 400. In
        RabbitMQ 4.3 a missing vhost or exchange is 404 as well, and the reason has no name.
        """
        if self.vhost not in self.broker.vhosts:
            raise vhost_not_found() if self.is_4 else not_authorised(REFUSED)
        try:
            yield
        except AdministrationError as error:
            text = error.reply_text
            if not text:
                raise not_authorised(REFUSED) if isinstance(error, ForbiddenError) else error from None
            if isinstance(error, NotFoundError) and (queue or self.is_4):
                short = "queue_not_found" if queue else "exchange_not_found"
                raise ApiError(404, "not_found", short if self.is_4 else text.partition(" ")[2]) from None
            raise bad_request(text) from None

    @property
    def is_4(self) -> bool:
        """True if answers are those of RabbitMQ 4.3, where they differ from 3.13."""
        return bool(self.broker.config.compatibility.profile == "4.3")

    def has(self, etag: str) -> bool:
        """Return whether the client has the answer with this entity tag already: it gets 304 without a body."""
        known = self.headers.get("if-none-match", "")
        return etag in known or known.strip() == "*"

    def body(self, *required: str) -> Values:
        """Return the body, a JSON object with these keys, an empty one for none; raises ApiError."""
        if self._is_empty:
            return checked_body({}, *required)
        try:
            return checked_body(msgspec.json.decode(unmarked(self.content)), *required)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise bad_request("not_json") from None

    def large_body(self, *required: str) -> Generator[None, None, Values]:
        """Return the body as `body` does, in steps; of a large one the values must be texts, or small."""
        if self._is_empty:
            return checked_body({}, *required)
        try:
            value = yield from object_of(self.content)
        except NotDivisibleError:
            raise bad_request("not_json") from None
        return checked_body(value, *required)

    @property
    def _is_empty(self) -> bool:
        return len(self.content) <= SMALL and self.content.strip() in {b"", b"null", b"undefined"}


def checked_body(value: Any, *required: str) -> Values:
    """Return a decoded body; raises ApiError if it is no object, or keys are missing."""
    if isinstance(value, str):
        raise bad_request(_ENCODED_TWICE)
    if not isinstance(value, dict):
        raise bad_request("not_json")
    require(value, *required)
    return Values(value)


def require(values: Mapping[str, Any], *keys: str) -> None:
    """Raise ApiError if keys of a body are missing, with RabbitMQ's text, an Erlang term."""
    if missing := [f"{{key_missing,{key}}}" for key in keys if key not in values]:
        line = f"[{','.join(missing)}]"
        raise bad_request(line if len(line) <= _LINE else line.replace("},{", "},\n {"))


@contextmanager
def naming_the_missing() -> Iterator[None]:
    """Answer 404 with the name of what does not exist, where RabbitMQ has no text that has to be the same."""
    try:
        yield
    except NotFoundError as error:
        raise ApiError(404, "not_found", str(error)) from None
