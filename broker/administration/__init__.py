"""Administration: the operations for administrators, independent of their transport (command, HTTP, file at boot).

Theory. Every operation takes the acting `User`, or None for the operator on the host, who may do everything; one
function, `access.authorize`, decides what a user's tags and permissions allow, with the rules of RabbitMQ's management
plugin. Results are plain values under RabbitMQ's names, which can be written as JSON unchanged. There are three errors,
all of them `access.AdministrationError`.

Nothing here waits, reads a clock or uses a socket. Operations take effect at once and journal what is durable; the
caller must call the server's `run_turn` afterwards, and may reply only after `Journal.when_safe`.
"""

from leveret.broker.administration.access import (
    AdministeredBroker,
    AdministrationError,
    BadRequestError,
    ForbiddenError,
    NotFoundError,
    ProtectedError,
)
from leveret.broker.administration.definitions import DefinitionsAdministration
from leveret.broker.administration.explaining import Explaining
from leveret.broker.administration.listings import Listings
from leveret.broker.administration.messages import MessageAdministration
from leveret.broker.administration.node import NodeAdministration
from leveret.broker.administration.peeking import Peeking
from leveret.broker.administration.policies import PolicyAdministration
from leveret.broker.administration.publishing import Publishing
from leveret.broker.administration.shovels import ShovelAdministration
from leveret.broker.administration.tailing import Tailing
from leveret.broker.administration.topology import TopologyAdministration
from leveret.broker.administration.transfers import Transfers
from leveret.broker.administration.users import UserAdministration
from leveret.broker.administration.vhosts import VHostAdministration

__all__ = [
    "AdministeredBroker",
    "Administration",
    "AdministrationError",
    "BadRequestError",
    "ForbiddenError",
    "NotFoundError",
    "ProtectedError",
]  # fmt: skip


class Administration:
    """The administration of one broker, grouped by what is administered.

    Args:
        broker: the administered broker.

    """

    def __init__(self, broker: AdministeredBroker) -> None:
        self.users = UserAdministration(broker)
        self.vhosts = VHostAdministration(broker)
        self.policies = PolicyAdministration(broker)
        self.shovels = ShovelAdministration(broker, self.policies)
        self.topology = TopologyAdministration(broker)
        self.listings = Listings(broker)
        self.messages = MessageAdministration(broker)
        self.peeking = Peeking(broker)
        self.explaining = Explaining(broker, self.peeking)
        self.publishing = Publishing(broker)
        self.transfers = Transfers(broker)
        self.tailing = Tailing(broker)
        self.definitions = DefinitionsAdministration(broker)
        self.node = NodeAdministration(broker)
