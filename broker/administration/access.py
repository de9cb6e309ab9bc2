"""Who may administer what, and what an operation raises."""

from enum import StrEnum
from typing import Any, Protocol

from leveret.broker.auth.users import User, Users
from leveret.broker.connection.connection_tracking import ConnectionTracking
from leveret.broker.errors import AMQPError, ReplyCode
from leveret.broker.process.resource_alarms import Alarms
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.parameters import GlobalParameters, Parameters, check_integer, check_keys
from leveret.broker.vhost.vhost import VHost


class AdministrationError(Exception):
    """An operation was not carried out, and nothing has changed. The text is for whoever asked."""


class NotFoundError(AdministrationError):
    """What it is about does not exist."""


class BadRequestError(AdministrationError):
    """What was asked for cannot be; RabbitMQ's text where it has one."""


class ForbiddenError(AdministrationError):
    """The user may not do this."""


class Site(Protocol):
    """The broker that is administered (`broker.server.server.Server`)."""

    turn: Turn
    users: Users
    vhosts: dict[str, VHost]
    parameters: Parameters
    vhost_max: int | None
    clients: ConnectionTracking
    alarm: str

    @property
    def global_parameters(self) -> GlobalParameters:
        """Those of no vhost."""

    @property
    def watch(self) -> Alarms:
        """Who looks at memory and disk."""

    def now(self) -> float:
        """Seconds of a monotonic clock."""

    def add_vhost(
        self, name: str, *, description: str = "", tags: tuple[str, ...] = (), default_queue_type: str = ""
    ) -> VHost:
        """Add a vhost that does not exist yet."""

    def update_vhost(self, vhost: VHost) -> None:
        """Write down what its description, tags and default queue type are now."""

    def remove_vhost(self, vhost: VHost) -> None:
        """Delete a vhost with everything in it and all rights in it; its connections are closed before."""


class Right(StrEnum):
    """What a request needs, named after the tag that gives it; an administrator has all of them."""

    MANAGEMENT = "management"
    """To look at, or with permissions to change, what is in a vhost one may connect to."""
    POLICYMAKER = "policymaker"
    """To change policies and parameters of such a vhost."""
    MONITORING = "monitoring"
    """To look at everything."""
    ADMINISTRATOR = "administrator"
    """To change users, vhosts and rights, and whatever concerns all vhosts."""


_TAGS = {
    Right.MANAGEMENT: {Right.MANAGEMENT, Right.POLICYMAKER, Right.MONITORING, Right.ADMINISTRATOR},
    Right.POLICYMAKER: {Right.POLICYMAKER, Right.ADMINISTRATOR},
    Right.MONITORING: {Right.MONITORING, Right.ADMINISTRATOR},
    Right.ADMINISTRATOR: {Right.ADMINISTRATOR},
}
_SEE_ALL_VHOSTS = {Right.MONITORING, Right.ADMINISTRATOR}


def authorize(
    users: Users,
    actor: User | None,
    right: Right,
    vhost: str | None = None,
    *,
    change: bool = False,
) -> None:
    """Check that a user may do something: the only place that knows.

    What a user's permissions say of single queues and exchanges is checked where clients meet them as well
    (`broker.channel.channel.Channel.check_permission`).

    Args:
        users: has the permissions.
        actor: who asks; None is the operator at the machine.
        right: what it needs.
        vhost: where, or None if it is about no vhost or about those that the actor may see.
        change: it does there what a client does, for which an administrator has to be let in, too.

    Raises:
        ForbiddenError: with RabbitMQ's text.

    """
    if actor is None:
        return
    if not actor.tags & _TAGS[right]:
        raise ForbiddenError(f"Not {right} user")
    if vhost is None:
        return
    everywhere = actor.tags & (_SEE_ALL_VHOSTS if right is Right.MANAGEMENT else {Right.ADMINISTRATOR})
    if (change or not everywhere) and not users.may_access(actor.name, vhost):
        raise ForbiddenError("User not authorised to access virtual host")


def may_see(users: Users, actor: User | None, vhost: str) -> bool:
    """Whether what is in a vhost belongs into a listing for the actor."""
    return actor is None or bool(actor.tags & _SEE_ALL_VHOSTS) or users.may_access(actor.name, vhost)


def found_vhost(site: Site, name: str) -> VHost:
    """The vhost of that name; raises NotFoundError."""
    vhost = site.vhosts.get(name)
    if vhost is None:
        raise NotFoundError(f"Virtual host '{name}' does not exist")
    return vhost


def visible_vhosts(site: Site, actor: User | None, name: str | None = None) -> list[VHost]:
    """The vhosts whose contents the actor asks for: that of a name, or all that the actor may see.

    Raises NotFoundError, and ForbiddenError as `authorize` does for the right to look.
    """
    authorize(site.users, actor, Right.MANAGEMENT, name)
    if name is not None:
        return [found_vhost(site, name)]
    return [vhost for vhost in site.vhosts.values() if may_see(site.users, actor, vhost.name)]


def found_user(site: Site, name: str) -> User:
    """The user of that name; raises NotFoundError."""
    user = site.users.get(name)
    if user is None:
        raise NotFoundError(f"User '{name}' does not exist")
    return user


def translated(error: AMQPError) -> AdministrationError:
    """What a client would have been told by a close, for whoever asked here."""
    form = {ReplyCode.NOT_FOUND: NotFoundError, ReplyCode.ACCESS_REFUSED: ForbiddenError}
    return form.get(error.code, BadRequestError)(error.explanation)


def checked_limits(value: Any, allowed: tuple[str, str], term: str) -> dict[str, int]:
    """Limits as they were given, checked as RabbitMQ does.

    Args:
        value: limit by name.
        allowed: the names there are.
        term: what RabbitMQ calls them all together.

    Raises:
        BadRequestError: unknown names, or values that are no integers.

    """
    faults = check_keys(term, dict.fromkeys(allowed, (check_integer, False)), value)
    if faults:
        raise BadRequestError("\n".join(faults))
    return dict(value)


def shown_limits(**limits: int | None) -> dict[str, int]:
    """Limits by RabbitMQ's names, without those that are none."""
    return {name.replace("_", "-"): limit for name, limit in limits.items() if limit is not None}
