"""Authorization of administrators: what they may do, which objects they see; and the errors of operations."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from leveret.broker.auth.sessions import Sessions
from leveret.broker.auth.users import User, Users
from leveret.broker.channel.channel import Channel
from leveret.broker.connection.connection import Connection
from leveret.broker.connection.node import Node
from leveret.broker.errors import AMQPError, ReplyCode, did_you_mean, resource
from leveret.broker.metadata.directory import Directory
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.queue import Queue
from leveret.broker.statistics.node_figures import ListenerFacts
from leveret.broker.vhost.parameter_checks import check_keys, limit_checks
from leveret.broker.vhost.parameters import Parameters
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Exchange

if TYPE_CHECKING:
    from leveret.broker.statistics.statistics import Statistics


class AdministrationError(Exception):
    """An operation was not carried out, and nothing has changed. The text is for the caller.

    `reply_text` is the reply code and text that a client would have got, '' if the operation is none of a client's;
    `reason` is RabbitMQ's text where the management API has to answer with another one.
    """

    reply_text = ""
    reason = ""


class NotFoundError(AdministrationError):
    """The object of the operation does not exist."""


class BadRequestError(AdministrationError):
    """The request is invalid; RabbitMQ's text where it has one."""


class BusyError(AdministrationError):
    """As much of this kind is under way as may be: the request is possible when some of it is over."""


class MalformedError(BadRequestError):
    """A document is not what it should be at all, such as JSON."""


class ProtectedError(AdministrationError):
    """The object may not be deleted, because an administrator has protected it."""


class ForbiddenError(AdministrationError):
    """The user may not do this."""


class DefinitionsError(ValueError):
    """A definitions file is invalid. The text names the entry; `reason` is as in `AdministrationError`."""

    reason = ""


class Figures(NamedTuple):
    """Figures of a node of a cluster for metrics; `role` is 1 while it leads, 0 while it waits."""

    role: int
    epoch: int
    lag_batches: int
    lag_seconds: float
    append_seconds: float


class Delegation(NamedTuple):
    """Settings of what the broker does for users who are no administrators."""

    certificate_dir: str = ""  # directory of the certificate files that their shovels may name; '' for none
    has_setters_rights: bool = True  # whether local ends of their shovels have their rights; otherwise all
    may_reroute: bool = True  # whether their policies may send messages of queues and exchanges elsewhere


class AdministeredBroker(Node):
    """A broker as those see it who administer, serve and measure it (`broker.server.server.Server` is one)."""

    administration: Any  # the service layer (`administration.Administration`)
    backends: Any
    gate: Any  # the listeners and sockets (`broker.network.gate.Gate`)
    listeners: list[ListenerFacts]  # all bound listeners; code that starts one adds it
    resource_monitor: Any  # the memory and disk alarms (`broker.server.resource_monitor`)
    disk: Any  # the data store (`broker.persistence.data_store`); None for a broker without persistence
    shovels: Any  # the shovels (`broker.server.shovel_loader`)
    process: Any  # the process (`broker.cli.main`); None if it is an application's
    cluster: Any  # the cluster (`broker.replication.control.Control`); None if the log is not replicated
    logs: Any = None  # the logs of `vhosts.directory` (`broker.placement.logs.Logs`); None for none
    shared: Any = (
        None  # users that logs share (`broker.placement.shared_users`); None if they are this broker's
    )
    forwards: Any = None  # clients of other brokers (`broker.placement.forwarding`); None for none
    place: Literal["", "front", "process"] = ""  # which of the processes for virtual hosts it is; '' for none
    node_name: str
    directory: Directory
    parameters: Parameters
    delegation: Delegation
    sessions: Sessions

    def now(self) -> float:
        """Return seconds of the event loop's monotonic clock."""
        return self.loop.now()

    def admits_line(self, peer: str) -> bool:
        """Return whether one more line of the log about a client that was refused may be written now."""
        return self.logins.refusal_log.admit(peer, self.now())

    def wall_clock(self) -> int:
        """Return milliseconds since the epoch, by the time source."""
        return self.time_source.wall()

    def effective_settings(self) -> Iterable[str]:
        """Return the effective configuration in lines; passwords are masked."""
        return ()

    @property
    def blob_threshold(self) -> int:
        """Content size in bytes from which a body is written to a file of its own; without a disk none is."""
        return sys.maxsize if self.disk is None else int(self.disk.blob_threshold)

    @property
    def backups(self) -> Any:
        """The backups of the data; None without a data directory, and until it is in use."""
        return None if self.disk is None else self.disk.backups

    def run_read(self, read: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run a read of messages in a thread, and `done` in a step of the loop; only a broker with a disk needs it."""
        self.disk.run_read(read, done)

    @cached_property
    def statistics(self) -> "Statistics":
        """The samples behind the management API, loaded when it is first asked for."""
        from leveret.broker.statistics.statistics import Statistics  # noqa: PLC0415 - not without the API

        return Statistics(self, self.config.management.interval_ms / 1000)

    @property
    def changed_users(self) -> Users:
        """The users, to be changed; raises BadRequestError if they are those of another log, and says where."""
        self.check_shared()
        return self.users

    @property
    def users_refusal(self) -> str:
        """Reason for which users and global parameters, those of another log, cannot be changed here; '' for none."""
        return "" if self.shared is None else self.shared.refusal

    def check_shared(self) -> None:
        """Raise BadRequestError if users and global parameters are those of another log."""
        if refusal := self.users_refusal:
            raise BadRequestError(refusal)

    def has_vhost(self, name: str) -> bool:
        """Return whether users may have rights in a vhost: it is here, or in another log that shares them."""
        return name in self.vhosts or (self.shared is not None and name in self.shared.vhosts)

    def forget_decisions(self) -> None:
        """Forget what authentication backends have decided, so that connections ask them again within a second."""
        if self.backends is not None:
            self.backends.forget()

    @property
    def auth_counts(self) -> Mapping[str, tuple[Mapping[str, int], float]]:
        """The questions to authentication backends by outcome, and the seconds that they have taken."""
        return {} if self.backends is None else self.backends.counts


class Group:
    """Operations on what is administered. Every method takes the acting user first (`authorize`)."""

    def __init__(self, broker: AdministeredBroker) -> None:
        self._broker = broker


class Right(StrEnum):
    """The right that a request needs, named after the tag that grants it; an administrator has all of them."""

    MANAGEMENT = "management"  # view and, with permissions, change objects in accessible vhosts
    POLICYMAKER = "policymaker"  # change policies and parameters of accessible vhosts
    MONITORING = "monitoring"  # view everything
    ADMINISTRATOR = "administrator"  # change users, vhosts, permissions, and everything about all vhosts


_TAGS = {
    Right.MANAGEMENT: {Right.MANAGEMENT, Right.POLICYMAKER, Right.MONITORING, Right.ADMINISTRATOR},
    Right.POLICYMAKER: {Right.POLICYMAKER, Right.ADMINISTRATOR},
    Right.MONITORING: {Right.MONITORING, Right.ADMINISTRATOR},
    Right.ADMINISTRATOR: {Right.ADMINISTRATOR},
}
_NAMES = {Right.MONITORING: "monitor"}  # names of rights in the errors of RabbitMQ that differ from the tags
_SEE_ALL_VHOSTS = {Right.MONITORING, Right.ADMINISTRATOR}


def authorize(
    users: Users, actor: User | None, right: Right, vhost: str | None = None, *, change: bool = False
) -> None:
    """Check that a user may do something; the only place for this decision. Raises ForbiddenError with RabbitMQ's text.

    The actor None is the operator on the host; the vhost is None if none is concerned, or all those that the actor may
    see. With `change`, for operations that clients can do, an administrator, too, needs access to the vhost. A user's
    permissions on single queues and exchanges are checked where clients' are
    (`broker.channel.channel.Channel.check_permission`).
    """
    if actor is None:
        return
    if _TAGS[right].isdisjoint(actor.tags):
        raise ForbiddenError(f"Not {_NAMES.get(right, right)} user")
    if vhost is None:
        return
    everywhere = set(actor.tags) & (_SEE_ALL_VHOSTS if right is Right.MANAGEMENT else {Right.ADMINISTRATOR})
    if (change or not everywhere) and not users.sees(actor, vhost):
        raise ForbiddenError("User not authorised to access virtual host")


def sees_all(actor: User | None, *, change: bool = False) -> bool:
    """Return whether objects of all users and vhosts are shown to the actor, or may be changed by it."""
    everywhere = {Right.ADMINISTRATOR} if change else _SEE_ALL_VHOSTS
    return actor is None or not everywhere.isdisjoint(actor.tags)


def may_see(users: Users, actor: User | None, vhost: str) -> bool:
    """Return whether objects of a vhost are shown to the actor in listings."""
    return sees_all(actor) or (actor is not None and users.sees(actor, vhost))


def found_vhost(broker: AdministeredBroker, name: str) -> VHost:
    """Return the vhost of that name; raises NotFoundError."""
    vhost = broker.vhosts.get(name)
    if vhost is None:
        raise NotFoundError(f"Virtual host '{name}' does not exist{did_you_mean(name, broker.vhosts)}")
    return vhost


def entered(
    broker: AdministeredBroker,
    actor: User | None,
    name: str,
    right: Right = Right.MANAGEMENT,
    *,
    change: bool = False,
) -> VHost:
    """Return the vhost of that name, in which the actor has a right (`authorize`); raises NotFoundError."""
    authorize(broker.users, actor, right, name, change=change)
    return found_vhost(broker, name)


def queue_of(vhost: VHost, name: str) -> Queue:
    """Return the queue of that name; raises NotFoundError."""
    queue = vhost.queues.get(name)
    if queue is None:
        raise NotFoundError(f"no {resource('queue', name, vhost.name)}{did_you_mean(name, vhost.queues)}")
    return queue


def exchange_of(vhost: VHost, name: str) -> Exchange:
    """Return the exchange of that name; raises NotFoundError."""
    exchange = vhost.router.get(name)
    if exchange is None:
        near = did_you_mean(name, vhost.router.exchanges)
        raise NotFoundError(f"no {resource('exchange', name, vhost.name)}{near}")
    return exchange


def visible_vhosts(broker: AdministeredBroker, actor: User | None, name: str | None = None) -> list[VHost]:
    """Return the vhosts that the actor asks for: the one of that name, or all that the actor may see.

    Raises NotFoundError, and ForbiddenError as `authorize` does for the right to view.
    """
    authorize(broker.users, actor, Right.MANAGEMENT, name)
    if name is not None:
        return [found_vhost(broker, name)]
    return [vhost for vhost in broker.vhosts.values() if may_see(broker.users, actor, vhost.name)]


def found_user(broker: AdministeredBroker, name: str) -> User:
    """Return the user of that name; raises NotFoundError."""
    user = broker.users.get(name)
    if user is None:
        raise NotFoundError(f"User '{name}' does not exist")
    return user


@contextmanager
def as_client_errors() -> Iterator[None]:
    """Convert an error that would have closed a client's channel or connection."""
    try:
        yield
    except AMQPError as error:
        form = {ReplyCode.NOT_FOUND: NotFoundError, ReplyCode.ACCESS_REFUSED: ForbiddenError}
        refusal = form.get(error.code, BadRequestError)(error.explanation)
        refusal.reply_text = f"{int(error.code)} {error.reply_text}"
        raise refusal from None


@contextmanager
def refusals(cause: type[Exception], form: type[AdministrationError]) -> Iterator[None]:
    """Convert an error of what is below to one of these operations, with its text."""
    try:
        yield
    except cause as error:
        raise form(str(error)) from error


def checked_limits(value: Any, allowed: tuple[str, ...], term: str) -> dict[str, int]:
    """Return limits by name after RabbitMQ's checks, whose name for the set is `term`; raises BadRequestError."""
    faults = check_keys(term, limit_checks(allowed), value)
    if faults:
        raise BadRequestError("\n".join(faults))
    return dict(value)


# -- objects that an actor may see, and the end of connections --------------------------------------------------------
# The iterators check rights when they begin. They are lazy, so a caller that shows very many objects can serve others
# in between; objects that are created or deleted meanwhile may be listed or not.


class Listings(Group):
    """Objects by the rights of the acting user."""

    def queues(self, actor: User | None, vhost: str | None = None) -> Iterator[Queue]:
        """Return the queues of one vhost, or of all that the actor may see. Raises as `visible_vhosts`."""
        return (
            queue
            for place in visible_vhosts(self._broker, actor, vhost)
            for queue in tuple(place.queues.values())
            if not queue.deleted
        )

    def consumers(self, actor: User | None, vhost: str | None = None) -> Iterator[Consumer]:
        """Return the consumers of the queues that the actor may see; of no vhost that it may not see."""
        return (
            consumer
            for place in visible_vhosts(self._broker, actor)
            if vhost in {None, place.name}
            for queue in tuple(place.queues.values())
            for consumer in tuple(queue.consumers)
        )

    def connections(
        self, actor: User | None, vhost: str | None = None, *, user: str | None = None, change: bool = False
    ) -> Iterator[Connection]:
        """Return the open connections, all or those to one vhost or of one user, that the actor may see.

        An actor sees its own; with the tag monitoring those of others, too, unless it is to `change` them. The caller
        checks that the actor may know of the vhost.
        """
        return (
            each
            for each in tuple(self._broker.clients.connections)
            if vhost in {None, each.vhost.name}
            and user in {None, each.user.name}
            and is_own(actor, each, change=change)
        )

    def channels(self, actor: User | None, vhost: str | None = None) -> Iterator[Channel]:
        """Return the channels of these connections."""
        return (
            channel for each in self.connections(actor, vhost) for channel in tuple(each.channels.values())
        )

    def close_connections(
        self,
        actor: User | None,
        reason: str,
        vhost: str | None = None,
        *,
        user: str | None = None,
        most: int | None = None,
    ) -> int:
        """Close the connections that the actor may close, at most `most`, with 320; returns their number.

        Raises ForbiddenError: the actor may not see the vhost.
        """
        authorize(self._broker.users, actor, Right.MANAGEMENT, vhost)
        chosen = list(self.connections(actor, vhost, user=user, change=True))[:most]
        for connection in chosen:
            connection.force_close(reason)
        return len(chosen)


def is_own(actor: User | None, connection: Connection, *, change: bool = False) -> bool:
    """Return whether the actor may see a connection, or change it."""
    return sees_all(actor, change=change) or (actor is not None and connection.user.name == actor.name)
