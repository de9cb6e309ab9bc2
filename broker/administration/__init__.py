"""Administration: the operations for administrators, independent of their transport (command, HTTP, file at boot).

Theory. Every operation takes the acting `User`, or None for the operator on the host, who may do everything; one
function, `access.authorize`, decides what a user's tags and permissions allow, with the rules of RabbitMQ's management
plugin. Results are plain values under RabbitMQ's names, which can be written as JSON unchanged. All errors are
`access.AdministrationError`. What only the management API can ask for is told there, in `broker.management`.

Nothing here waits, reads a clock or uses a socket. Operations take effect at once and journal what is durable; the
caller must call the server's `run_turn` afterwards, and may reply only after `Journal.when_safe`.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.administration.access import (
    AdministeredBroker,
    AdministrationError,
    BadRequestError,
    BusyError,
    DefinitionsError,
    ForbiddenError,
    NotFoundError,
    ProtectedError,
)

if TYPE_CHECKING:
    from leveret.broker.administration.definitions import DefinitionsAdministration
    from leveret.broker.administration.detached_channel import Publishing
    from leveret.broker.administration.explaining import Explaining
    from leveret.broker.administration.listings import Listings
    from leveret.broker.administration.messages import MessageAdministration
    from leveret.broker.administration.policies import PolicyAdministration
    from leveret.broker.administration.tailing import Tailing
    from leveret.broker.administration.topology import TopologyAdministration
    from leveret.broker.administration.transfers import Transfers
    from leveret.broker.administration.users import UserAdministration
    from leveret.broker.administration.vhosts import VHostAdministration

__all__ = [
    "AdministeredBroker", "Administration", "AdministrationError", "BadRequestError", "BusyError", "DefinitionsError",
    "ForbiddenError", "NotFoundError", "ProtectedError",
]  # fmt: skip

_GROUPS: Final[Mapping[str, tuple[str, str]]] = {
    "users": ("users", "UserAdministration"),
    "vhosts": ("vhosts", "VHostAdministration"),
    "policies": ("policies", "PolicyAdministration"),
    "topology": ("topology", "TopologyAdministration"),
    "listings": ("listings", "Listings"),
    "messages": ("messages", "MessageAdministration"),
    "explaining": ("explaining", "Explaining"),
    "publishing": ("detached_channel", "Publishing"),
    "transfers": ("transfers", "Transfers"),
    "tailing": ("tailing", "Tailing"),
    "definitions": ("definitions", "DefinitionsAdministration"),
}
"""The module and the class of each group of operations."""


class Administration:
    """The administration of one broker, grouped by what is administered.

    A group is loaded when it is first used: most embedded brokers are asked for few of them, and loading all would make
    up a tenth of an import of `leveret`.
    """

    users: "UserAdministration"
    vhosts: "VHostAdministration"
    policies: "PolicyAdministration"
    topology: "TopologyAdministration"
    listings: "Listings"
    messages: "MessageAdministration"
    explaining: "Explaining"
    publishing: "Publishing"
    transfers: "Transfers"
    tailing: "Tailing"
    definitions: "DefinitionsAdministration"

    def __init__(self, broker: AdministeredBroker) -> None:
        self._broker = broker

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Load a group."""
            if name not in _GROUPS:
                raise AttributeError(name)
            module, group = _GROUPS[name]
            made = getattr(import_module(f"{__name__}.{module}"), group)(self._broker)
            setattr(self, name, made)
            return made

    def stop(self) -> None:
        """End what still runs for administrators: transfers of messages."""
        if "transfers" in vars(self):
            self.transfers.stop()
