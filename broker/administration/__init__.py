"""Administration: the operations for administrators, independent of their transport (command, HTTP, file at boot).

Theory. Every operation takes the acting `User`, or None for the operator on the host, who may do everything; one
function, `access.authorize`, decides what a user's tags and permissions allow, with the rules of RabbitMQ's management
plugin. Results are plain values under RabbitMQ's names, which can be written as JSON unchanged. All errors are
`access.AdministrationError`. Operations of the management API alone are in `broker.management`.

Nothing here waits, reads a clock or uses a socket. Operations take effect at once and journal what is durable; the
caller must call the server's `run_turn` afterwards, and may reply only after `Journal.when_safe`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    from leveret.broker.administration import (
        access as _access,
        definitions as _definitions,
        detached_channel as _detached_channel,
        explaining as _explaining,
        held as _held,
        known_ids as _known_ids,
        messages as _messages,
        policies as _policies,
        tailing as _tailing,
        topology as _topology,
        transfers as _transfers,
        users as _users,
    )  # fmt: skip

__all__ = [
    "AdministeredBroker", "Administration", "AdministrationError", "BadRequestError", "BusyError", "DefinitionsError",
    "ForbiddenError", "NotFoundError", "ProtectedError",
]  # fmt: skip


class Administration:
    """The administration of one broker, grouped by what is administered.

    A group is loaded when it is first used: most embedded brokers are asked for few of them, and loading all would make
    up a tenth of an import of `leveret`.
    """

    users: "_users.UserAdministration"
    vhosts: "_topology.VHostAdministration"
    policies: "_policies.PolicyAdministration"
    topology: "_topology.TopologyAdministration"
    listings: "_access.Listings"
    messages: "_messages.MessageAdministration"
    explaining: "_explaining.Explaining"
    publishing: "_detached_channel.Publishing"
    transfers: "_transfers.Transfers"
    held: "_held.HeldMessages"
    known_ids: "_known_ids.KnownIds"
    tailing: "_tailing.Tailing"
    definitions: "_definitions.DefinitionsAdministration"

    def __init__(self, broker: AdministeredBroker) -> None:
        self._broker = broker

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Load a group, whose module and class its annotation names."""
            if name not in Administration.__annotations__:
                raise AttributeError(name)
            module, _, group = Administration.__annotations__[name].removeprefix("_").partition(".")
            made = getattr(import_module(f"{__name__}.{module}"), group)(self._broker)
            setattr(self, name, made)
            return made

    def stop(self) -> None:
        """End what still runs for administrators: transfers of messages."""
        if "transfers" in vars(self):
            self.transfers.stop()
