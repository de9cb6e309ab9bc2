"""Rights that backends decide about: the user whom they know, and their decisions, remembered for a time. Pure.

Theory. The rights of a user of the internal database are tables that answer at once. Other backends answer later, so
the same two objects that a channel asks (`broker.auth.users.Permissions`, `TopicPermissions`) have a second form here:
a decision that is remembered is given at once, for any other `NotYet` is raised, with which the connection waits. The
caller then executes its method again, and finds the decision. A decision is good for some seconds; a backend that could
not decide has refused, for a second only. While a backend cannot be reached, the decisions of before stay good: an open
connection keeps what it was doing. The number of decisions that are remembered is bounded, because clients choose the
names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from leveret.broker.auth.users import User
from leveret.broker.errors import NotYet

REMEMBERED = 1000
"""Maximum number of decisions about one user in one vhost; beyond it the oldest are forgotten."""
KEPT = 100
"""Maximum number of those that are over and kept, for the time in which a backend cannot be reached."""
LEAST_SECONDS = 1.0
"""Time for which a decision is good at least: the method that has waited for it is executed again within it."""


SESSION_SECONDS = 3600.0
"""Maximum duration of a session of a browser: what a backend has changed about the user is felt after it."""


class Question(NamedTuple):
    """A question to the backends: may the user do this?

    Attributes:
        kind: configure, write or read.
        what: exchange or queue.
        name: its name; '' is the default exchange.
        key: the routing key, or None if the question is not about one.
    """

    kind: str
    what: str
    name: str
    key: str | None = None


class Decision(NamedTuple):
    """The answer.

    Attributes:
        is_allowed: True if the user may.
        fault: what follows the text of the refusal if a backend could not decide; '' otherwise.
        is_unreachable: True if it could not be reached.
    """

    is_allowed: bool
    fault: str = ""
    is_unreachable: bool = False


ALLOWED = Decision(True)
REFUSED = Decision(False)


class Login(NamedTuple):
    """A user as one backend knows it.

    Attributes:
        name: name of the user, which may be another than that of the login.
        tags: the tags that this backend gives.
        data: what the backend needs to decide about the user later; only it looks at it.
        expires: seconds of the wall clock since the epoch at which the login ends; None for never.
    """

    name: str
    tags: tuple[str, ...] = ()
    data: Any = None
    expires: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BackendUser(User):
    """A user whom a chain of backends has let in.

    Attributes:
        authorizers: the backends that decide about the user, each with the user as it knows it; all have to allow.
        authenticator: position in the chain of the backend that has checked the password, for another password.
        expires: seconds of the wall clock since the epoch at which the login, or the session of a browser, ends; None
            for never.
        login_expires: those at which the login itself ends.
        vhosts: vhosts that the user may access, of those asked about so far; for the management API.
        rights: the rights by vhost; for the management API.
    """

    authorizers: tuple[tuple[Any, Login], ...] = ()
    authenticator: int = 0
    expires: float | None = None
    login_expires: float | None = None
    vhosts: frozenset[str] = frozenset()
    rights: "Mapping[str, Rights]" = field(default_factory=dict)

    @property
    def is_foreign(self) -> bool:
        """True: the tables of internal users do not concern it."""
        return True

    def may_see(self, vhost: str) -> bool:
        """Return whether the backends have allowed a vhost, as far as they were asked."""
        return vhost in self.vhosts

    def in_session(self, now: int) -> "BackendUser":
        """Return the user for a session of a browser, which ends earlier: it asks nobody for the password again.

        `now` is milliseconds since the epoch.
        """
        until = now / 1000 + SESSION_SECONDS
        return replace(self, expires=until if self.expires is None else min(self.expires, until))

    def is_over(self, now: int) -> bool:
        """Return whether the login has ended; `now` is milliseconds since the epoch."""
        return self.expires is not None and now >= self.expires * 1000

    def has_expired(self, now: int) -> bool:
        """Return whether the login itself has ended, as with a token; the end of a browser's session is none."""
        return self.login_expires is not None and now >= self.login_expires * 1000


class Asks(Protocol):
    """Asks the backends (`broker.auth.backends.access_control.AccessControl`).

    `epoch` grows when all decisions are to be forgotten.
    """

    epoch: int

    def ask(
        self, user: BackendUser, vhost: str, peer: str, question: Question, done: Callable[[Decision], object]
    ) -> None:
        """Ask all backends of a user, and call `done` with the decision in a later step of the loop."""


class Rights:
    """The decisions about one user in one vhost.

    Args:
        asks: asks the backends.
        user: the user.
        vhost: name of the vhost.
        peer: address of the client.
        seconds: time for which a decision is good.
        now: seconds of a monotonic clock.
    """

    __slots__ = (
        "_asks",
        "_epoch",
        "_known",
        "_looked_at",
        "_now",
        "_peer",
        "_seconds",
        "_vhost",
        "permissions",
        "topics",
        "user",
    )

    def __init__(
        self, asks: Asks, user: BackendUser, vhost: str, peer: str, seconds: float, now: Callable[[], float]
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
        self.permissions = AskedPermissions(self)
        self.topics = AskedTopics(self, needed=any(backend.has_topics for backend, _ in user.authorizers))

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

    def renew(self, user: BackendUser) -> None:
        """Decide about the user by a new login from now on."""
        self.user = user
        self.forget()


class AskedPermissions:
    """The permissions for queues and exchanges, as `broker.auth.users.Permissions`."""

    __slots__ = ("_rights",)

    def __init__(self, rights: Rights) -> None:
        self._rights = rights

    def check(self, kind: str, name: str, what: str = "") -> bool:
        """Return whether the user has this permission; raises NotYet if it has to be asked for first."""
        return self._rights.find(Question(kind, what, name)).is_allowed

    def fault(self, kind: str, name: str, what: str) -> str:
        """Return what follows the text of a refusal: the error of the backend, if it was one."""
        return self._rights.find(Question(kind, what, name)).fault


class AskedTopics:
    """The permissions for routing keys, as `broker.auth.users.TopicPermissions`; false if no backend has a say."""

    __slots__ = ("_needed", "_rights")

    def __init__(self, rights: Rights, *, needed: bool) -> None:
        self._rights = rights
        self._needed = needed

    def __bool__(self) -> bool:
        return self._needed

    def check(self, exchange: str, kind: str, routing_key: str) -> bool:
        """Return whether the user may use this key; raises NotYet if it has to be asked for first."""
        return self._rights.find(Question(kind, "topic", exchange, routing_key)).is_allowed

    def fault(self, exchange: str, kind: str, routing_key: str) -> str:
        """Return what follows the text of a refusal: the error of the backend, if it was one."""
        return self._rights.find(Question(kind, "topic", exchange, routing_key)).fault
