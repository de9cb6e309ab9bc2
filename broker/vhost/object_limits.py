"""How many queues, exchanges and bindings clients may make, and how large the arguments of each.

Memory that these take is in no queue's account and is given back by nobody but whoever deletes them, so that no alarm
would end what it began: hence numbers. Texts are RabbitMQ's where it has the limit (`cluster_queue_limit`,
`cluster_exchange_limit`). What an administrator imports or a restart brings back is not refused.
"""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from leveret.broker.amqp.commands import Basic, Exchange as ExchangeMethods, Queue as QueueMethods
from leveret.broker.amqp.tables import encode_table
from leveret.broker.errors import precondition_failed, resource

QUEUES = 200_000
EXCHANGES = 100_000
BINDINGS = 1_000_000
ARGUMENT_OCTETS = 16 * 1024

_KEPT = (
    QueueMethods.Declare,
    QueueMethods.Bind,
    ExchangeMethods.Declare,
    ExchangeMethods.Bind,
    Basic.Consume,
)
"""The methods whose arguments are kept."""


class _Graph(Protocol):
    @property
    def exchanges(self) -> Collection[Any]:
        """Those of a vhost."""

    @property
    def binding_count(self) -> int:
        """How many bindings there are."""


class _Site(Protocol):
    """A vhost."""

    name: str

    @property
    def queues(self) -> Collection[Any]:
        """Its queues."""

    @property
    def router(self) -> _Graph:
        """Its exchanges and bindings."""


class ObjectLimits:
    """The limits of a node.

    Args:
        vhosts: everything there is.
        queues: in all vhosts together; None is no limit here and below.
        exchanges: in all vhosts together, those that every vhost has included.
        bindings: in each vhost, for which `bindings_of` says nothing else.
        bindings_of: those of single vhosts.
        argument_octets: the encoded arguments of one queue, exchange, binding or consumer.

    """

    __slots__ = ("_bindings", "_bindings_of", "_exchanges", "_queues", "_vhosts", "argument_octets")

    def __init__(
        self,
        vhosts: Mapping[str, _Site],
        *,
        queues: int | None = QUEUES,
        exchanges: int | None = EXCHANGES,
        bindings: int | None = BINDINGS,
        bindings_of: Mapping[str, int | None] = MappingProxyType({}),
        argument_octets: int = ARGUMENT_OCTETS,
    ) -> None:
        self._vhosts = vhosts
        self._queues = queues
        self._exchanges = exchanges
        self._bindings = bindings
        self._bindings_of = bindings_of
        self.argument_octets = argument_octets

    def check_queue(self, name: str) -> None:
        """406 if there are as many queues as there may be."""
        most = self._queues
        if most is not None and sum([len(vhost.queues) for vhost in self._vhosts.values()]) >= most:
            raise precondition_failed(
                f"cannot declare queue '{name}': queue limit in cluster ({most}) is reached"
            )

    def check_exchange(self, name: str, vhost: str) -> None:
        """406 if there are as many exchanges as there may be."""
        most = self._exchanges
        if most is not None and sum([len(each.router.exchanges) for each in self._vhosts.values()]) >= most:
            what = resource("exchange", name, vhost)
            raise precondition_failed(f"cannot declare {what}: exchange limit of {most} is reached")

    def check_binding(self, vhost: _Site, exists: Callable[[], bool]) -> None:
        """406 if the vhost has as many bindings as it may, unless the one that is asked for `exists`."""
        most = self._bindings_of.get(vhost.name, self._bindings)
        if most is not None and vhost.router.binding_count >= most and not exists():
            raise precondition_failed(
                f"cannot add a binding: binding limit in vhost '{vhost.name}' ({most}) is reached"
            )

    def check_arguments(self, method: Any) -> None:
        """406 if a method has arguments that would be kept and are too large."""
        if isinstance(method, _KEPT) and method.arguments:
            octets = len(encode_table(method.arguments))  # type: ignore[arg-type]
            if octets > self.argument_octets:
                text = f"arguments of {octets} octets are too large: limits.argument_bytes is {self.argument_octets}"
                raise precondition_failed(text)
