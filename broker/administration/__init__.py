"""Administration: the operations for administrators, independent of their transport (command, HTTP, file at boot).

Theory. Every operation takes the acting `User`, or None for the operator on the host, who may do everything; one
function, `access.authorize`, decides what a user's tags and permissions allow, with the rules of RabbitMQ's management
plugin. Results are plain values under RabbitMQ's names, which can be written as JSON unchanged. All errors are
`access.AdministrationError`.

Nothing here waits, reads a clock or uses a socket. Operations take effect at once and journal what is durable; the
caller must call the server's `run_turn` afterwards, and may reply only after `Journal.when_safe`.
"""

from functools import cached_property
from typing import TYPE_CHECKING

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
    from leveret.broker.administration.cluster import ClusterAdministration
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
    "BusyError",
    "DefinitionsError",
    "ForbiddenError",
    "NotFoundError",
    "ProtectedError",
]  # fmt: skip


class Administration:
    """The administration of one broker, grouped by what is administered.

    A group is loaded when it is first used: most embedded brokers are asked for few of them, and loading all would make
    up a tenth of an import of `leveret`.

    Args:
        broker: the administered broker.

    """

    def __init__(self, broker: AdministeredBroker) -> None:
        self._broker = broker

    @cached_property
    def users(self) -> "UserAdministration":
        """Users."""
        from leveret.broker.administration.users import UserAdministration  # noqa: PLC0415

        return UserAdministration(self._broker)

    @cached_property
    def vhosts(self) -> "VHostAdministration":
        """Virtual hosts."""
        from leveret.broker.administration.vhosts import VHostAdministration  # noqa: PLC0415

        return VHostAdministration(self._broker)

    @cached_property
    def policies(self) -> "PolicyAdministration":
        """Policies, parameters and limits."""
        from leveret.broker.administration.policies import PolicyAdministration  # noqa: PLC0415

        return PolicyAdministration(self._broker)

    @cached_property
    def shovels(self) -> "ShovelAdministration":
        """Shovels."""
        from leveret.broker.administration.shovels import ShovelAdministration  # noqa: PLC0415

        return ShovelAdministration(self._broker, self.policies)

    @cached_property
    def topology(self) -> "TopologyAdministration":
        """Exchanges, queues and bindings."""
        from leveret.broker.administration.topology import TopologyAdministration  # noqa: PLC0415

        return TopologyAdministration(self._broker)

    @cached_property
    def listings(self) -> "Listings":
        """Lists of everything."""
        from leveret.broker.administration.listings import Listings  # noqa: PLC0415

        return Listings(self._broker)

    @cached_property
    def messages(self) -> "MessageAdministration":
        """Messages of a queue."""
        from leveret.broker.administration.messages import MessageAdministration  # noqa: PLC0415

        return MessageAdministration(self._broker)

    @cached_property
    def peeking(self) -> "Peeking":
        """Looking at messages."""
        from leveret.broker.administration.peeking import Peeking  # noqa: PLC0415

        return Peeking(self._broker)

    @cached_property
    def explaining(self) -> "Explaining":
        """Explanations of messages, queues and routes."""
        from leveret.broker.administration.explaining import Explaining  # noqa: PLC0415

        return Explaining(self._broker, self.peeking)

    @cached_property
    def publishing(self) -> "Publishing":
        """Publishing."""
        from leveret.broker.administration.publishing import Publishing  # noqa: PLC0415

        return Publishing(self._broker)

    @cached_property
    def transfers(self) -> "Transfers":
        """Moving messages."""
        from leveret.broker.administration.transfers import Transfers  # noqa: PLC0415

        return Transfers(self._broker)

    @cached_property
    def tailing(self) -> "Tailing":
        """Following what is published."""
        from leveret.broker.administration.tailing import Tailing  # noqa: PLC0415

        return Tailing(self._broker)

    @cached_property
    def definitions(self) -> "DefinitionsAdministration":
        """Import and export of definitions."""
        from leveret.broker.administration.definitions import DefinitionsAdministration  # noqa: PLC0415

        return DefinitionsAdministration(self._broker)

    @cached_property
    def node(self) -> "NodeAdministration":
        """The node itself."""
        from leveret.broker.administration.node import NodeAdministration  # noqa: PLC0415

        return NodeAdministration(self._broker)

    @cached_property
    def cluster(self) -> "ClusterAdministration":
        """The nodes of a replicated log."""
        from leveret.broker.administration.cluster import ClusterAdministration  # noqa: PLC0415

        return ClusterAdministration(self._broker)

    def stop(self) -> None:
        """End what still runs for administrators: transfers of messages."""
        if "transfers" in vars(self):
            self.transfers.stop()
