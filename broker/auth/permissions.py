"""Permissions: what users may do, and the decisions of backends about it, remembered for a time. Pure.

Theory. The permissions of a user of the internal database are tables that answer at once: three patterns for each user
and vhost (`broker.auth.name_patterns`), matched anywhere in a resource's name
(rabbit_auth_backend_internal:check_resource_access). Other backends answer later, so the same two objects that a
channel asks (`Permissions`, `TopicPermissions`) have a second form (`Asked`): a decision that
is remembered is given at once, for any other `NotYet` is raised, with which the connection waits. The caller then
executes its method again, and finds the decision. A decision is good for some seconds; a backend that could not decide
has refused, for a second only. While a backend cannot be reached, the decisions of before stay good: an open connection
keeps what it was doing. The number of decisions that are remembered is bounded, because clients choose the names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from leveret.broker.auth.name_patterns import Matcher, Patterns
from leveret.broker.errors import NotYet

Kind = Literal["configure", "write", "read"]
TopicKind = Literal["write", "read"]

DEFAULT_EXCHANGE = "amq.default"  # the name of the default exchange in permission checks

_CACHED_NAMES = 1024  # most cached results per permission; it is bounded because clients choose the names
REMEMBERED = 1000  # most decisions about one user in one vhost; beyond it the oldest are forgotten
KEPT = 100  # most of those that are over and kept, for the time in which a backend cannot be reached
LEAST_SECONDS = 1.0  # time for which a decision is good at least, so that the method that waited sees it


# -- of internal users ------------------------------------------------------------------------------------------------


class _Names:
    """A matcher with a cache of its results."""

    __slots__ = ("_known", "_search")

    def __init__(self, search: Matcher) -> None:
        self._search = search
        self._known: dict[str, bool] = {}

    def match(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            known = bool(self._search(name.encode("utf-8", "surrogateescape")))
            if len(self._known) >= _CACHED_NAMES:
                self._known.clear()
            self._known[name] = known
        return known


class Permissions:
    """Permissions of one user in one vhost. Immutable; `Users` creates a new object for each change.

    The patterns are those of names that the user may declare and delete, publish to or bind, and consume from or bind
    to; '' means `^$`, which allows nothing. Raises InvalidPatternError.
    """

    __slots__ = ("_configure", "_read", "_write", "configure", "read", "write")

    def __init__(
        self, configure: str, write: str, read: str, compiled: Callable[[str], Matcher] | None = None
    ) -> None:
        compiled = compiled or Patterns().compile
        self.configure = configure
        self.write = write
        self.read = read
        self._configure = _Names(compiled(configure))
        self._write = _Names(compiled(write))
        self._read = _Names(compiled(read))

    def check(self, kind: Kind, name: str, what: str = "") -> bool:
        """Return whether the user has this permission for a queue or exchange; '' is the default exchange."""
        del what
        if kind == "configure":
            return self._configure.match(name or DEFAULT_EXCHANGE)
        if kind == "write":
            return self._write.match(name or DEFAULT_EXCHANGE)
        return self._read.match(name or DEFAULT_EXCHANGE)

    def fault(self, *_about: str) -> str:
        """Return what follows the text of a refusal: nothing, because this backend always decides."""
        return ""

    def __repr__(self) -> str:
        return f"Permissions({self.configure!r}, {self.write!r}, {self.read!r})"


@dataclass(frozen=True, slots=True)
class _TopicRow:
    """A topic permission: its patterns as they were set, and compiled with their variables substituted."""

    write: str
    read: str
    write_keys: _Names
    read_keys: _Names


class TopicPermissions:
    """Topic permissions of one user in one vhost: the routing keys allowed with its topic exchanges.

    False if there are none, which allows everything; an exchange without a row allows everything too
    (rabbit_auth_backend_internal:check_topic_access). Immutable.
    """

    __slots__ = ("rows",)

    def __init__(self, rows: Mapping[str, _TopicRow]) -> None:
        self.rows = rows

    def __bool__(self) -> bool:
        return bool(self.rows)

    def having(
        self, exchange: str, write: str, read: str, compiled: Callable[[str], Matcher]
    ) -> "TopicPermissions":
        """Return the same with other patterns for an exchange; raises InvalidPatternError."""
        row = _TopicRow(write, read, _Names(compiled(write)), _Names(compiled(read)))
        return TopicPermissions({**self.rows, exchange: row})

    def check(self, exchange: str, kind: TopicKind, routing_key: str) -> bool:
        """Return whether the user may publish with this key ('write') or bind with it ('read')."""
        row = self.rows.get(exchange)
        return row is None or (row.write_keys if kind == "write" else row.read_keys).match(routing_key)

    def fault(self, *_about: str) -> str:
        """Return what follows the text of a refusal: nothing, because this backend always decides."""
        return ""


# -- decisions of backends --------------------------------------------------------------------------------------------


class Question(NamedTuple):
    """A question to the backends: may the user do this?"""

    kind: str  # configure, write or read
    what: str  # exchange or queue
    name: str  # its name; '' is the default exchange
    key: str | None = None  # the routing key, or None if the question is not about one


class Decision(NamedTuple):
    """The answer."""

    is_allowed: bool  # True if the user may
    fault: str = ""  # what follows the text of the refusal if a backend could not decide; '' otherwise
    is_unreachable: bool = False  # True if it could not be reached


ALLOWED = Decision(True)
REFUSED = Decision(False)


class Rights:
    """The decisions about one user (`broker.auth.users.BackendUser`) in one vhost, for a client at an address.

    `asks` asks the backends (`backends.access_control.AccessControl`); its `epoch` grows when all is to be forgotten.
    `seconds` is the time for which a decision is good, `now` seconds of a monotonic clock.
    """

    def __init__(
        self, asks: Any, user: Any, vhost: str, peer: str, seconds: float, now: Callable[[], float]
    ) -> None:
        self._asks = asks
        self._epoch = asks.epoch
        self._vhost = vhost
        self._peer = peer
        self._seconds = max(seconds, LEAST_SECONDS)
        self._now = now
        self._known: dict[Question, tuple[Decision, float]] = {}
        self._looked_at = float("-inf")
        self.user = user
        has_topics = any(backend.has_topics for backend, _ in user.authorizers)
        self.permissions = Asked(self, _about_object)
        self.topics = Asked(self, _about_key, needed=has_topics)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def is_local(self) -> bool:
        """True if the internal database decides about the user, alone or together with other backends."""
        return any(backend.is_local for backend, _ in self.user.authorizers)

    def find(self, question: Question) -> Decision:
        """Return the decision; raises NotYet if it has to be asked for first."""
        known = self._known.get(question)
        if known is not None and self._now() < known[1]:
            return known[0]

        def wait(resume: Callable[[], object]) -> None:
            self.fetch(question, lambda _decision: resume())

        raise NotYet(wait)

    def fetch(self, question: Question, then: Callable[[Decision], object]) -> None:
        """Ask for a decision, and call `then` with it."""
        user = self.user

        def decided(decision: Decision) -> None:
            if user is self.user:
                decision = self._remember(question, decision)
            then(decision)

        self._asks.ask(user, self._vhost, self._peer, question, decided)

    def _remember(self, question: Question, decision: Decision) -> Decision:
        """Remember a decision, or that of before if the backend cannot be reached; returns what is remembered."""
        before = self._known.pop(question, None)
        while len(self._known) >= REMEMBERED:
            del self._known[next(iter(self._known))]
        seconds = LEAST_SECONDS if decision.fault else self._seconds
        if decision.is_unreachable and before is not None:
            decision = before[0]
        self._known[question] = decision, self._now() + seconds
        return decision

    def expire(self) -> bool:
        """Return whether any decisions have become too old; forgets most of them. Call about once a second."""
        if self._epoch != self._asks.epoch:
            self._epoch = self._asks.epoch
            self.forget()
            return True
        before, self._looked_at = self._looked_at, self._now()
        old = [question for question, (_, until) in self._known.items() if until <= self._looked_at]
        is_news = any(self._known[question][1] > before for question in old)
        for question in old[:-KEPT]:
            del self._known[question]
        return is_news

    def forget(self) -> None:
        """Forget all decisions, because rights have changed."""
        self._known.clear()

    def users_changed(self) -> None:
        """Forget all decisions if they follow from the internal users, which have changed."""
        if self.is_local:
            self.forget()

    def renew(self, user: Any) -> None:
        """Decide about the user by a new login from now on."""
        self.user = user
        self.forget()


class Asked:
    """Permissions for queues and exchanges, or for routing keys, as `Permissions` or `TopicPermissions`.

    `question` makes a question of the arguments of these; false unless `needed`, if no backend has a say.
    """

    __slots__ = ("_needed", "_question", "_rights")

    def __init__(self, rights: Rights, question: Callable[..., Question], *, needed: bool = True) -> None:
        self._rights = rights
        self._question = question
        self._needed = needed

    def __bool__(self) -> bool:
        return self._needed

    def check(self, *about: str) -> bool:
        """Return whether the user has this permission; raises NotYet if it has to be asked for first."""
        return self._rights.find(self._question(*about)).is_allowed

    def fault(self, *about: str) -> str:
        """Return what follows the text of a refusal: the error of the backend, if it was one."""
        return self._rights.find(self._question(*about)).fault


def _about_object(kind: str, name: str, what: str = "") -> Question:
    return Question(kind, what, name)


def _about_key(exchange: str, kind: str, routing_key: str) -> Question:
    return Question(kind, "topic", exchange, routing_key)
