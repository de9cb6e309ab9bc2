"""What an administrator may ask of the broker, whoever carries it there: a command, an HTTP request, a file at boot.

Theory. Every operation takes the `User` who asks, or None for the operator at the machine, who may everything; one
function, `access.authorize`, decides what a user's tags and permissions allow, with the rules of RabbitMQ's
management plugin. Results are plain values under RabbitMQ's names, so that they can be written as JSON as they are.
Errors are `access.AdministrationError`, of which there are three.

Nothing here waits, reads a clock or knows a socket. Operations change things at once and note what is durable in
the journal; whoever calls one owes the server's `run_turn` afterwards, and an answer only `Journal.when_safe`.
"""

from leveret.broker.administration.access import (
    AdministrationError,
    BadRequestError,
    ForbiddenError,
    NotFoundError,
    Site,
)
from leveret.broker.administration.definitions import DefinitionsAdministration
from leveret.broker.administration.listings import Listings
from leveret.broker.administration.policies import PolicyAdministration
from leveret.broker.administration.topology import TopologyAdministration
from leveret.broker.administration.users import UserAdministration
from leveret.broker.administration.vhosts import VHostAdministration

__all__ = [
    "Administration", "AdministrationError", "BadRequestError", "ForbiddenError", "NotFoundError", "Site",
]  # fmt: skip


class Administration:
    """The administration of one broker, by what is administered.

    Args:
        site: the broker.

    """

    def __init__(self, site: Site) -> None:
        self.users = UserAdministration(site)
        self.vhosts = VHostAdministration(site)
        self.policies = PolicyAdministration(site)
        self.topology = TopologyAdministration(site)
        self.listings = Listings(site)
        self.definitions = DefinitionsAdministration(site)
