"""Rights that a user needs from the beginning of a long operation to its end."""

from typing import NamedTuple

from leveret.broker.administration.access import AdministeredBroker, AdministrationError, Right, authorize
from leveret.broker.administration.detached_channel import check_permission
from leveret.broker.auth.rights import BackendUser
from leveret.broker.auth.users import User
from leveret.broker.transfer.destinations import parsed
from leveret.broker.vhost.vhost import VHost


class Needed(NamedTuple):
    """Rights that a user needs as long as a transfer runs.

    Attributes:
        actor: the user.
        place: the vhost.
        queue: the queue.
        destination: the destination, to which the user must be able to write; '' for none.
        permissions: those for the queue.

    """

    actor: User | None
    place: VHost
    queue: str
    destination: str = ""
    permissions: tuple[str, ...] = ("read",)


def refusal(broker: AdministeredBroker, needed: Needed) -> str:
    """Return which right the user has lost since the transfer began; '' for none.

    Raises NotYet if an authentication backend has to be asked.
    """
    actor, place = needed.actor, needed.place
    if actor is None:
        return ""
    user = actor if isinstance(actor, BackendUser) else broker.users.get(actor.name)
    if user is None:
        return f"user '{actor.name}' was deleted"
    if isinstance(user, BackendUser) and user.has_expired(broker.wall_clock()):
        return f"the login of user '{actor.name}' has ended"
    try:
        authorize(broker.users, user, Right.MANAGEMENT, place.name, change=True)
        for permission in needed.permissions:
            check_permission(broker, user, place, permission, "queue", needed.queue)
        if needed.destination:
            kind, name, _ = parsed(needed.destination)
            check_permission(broker, user, place, "write", kind, name)
    except AdministrationError as error:
        return str(error)
    return ""
