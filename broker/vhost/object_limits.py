"""Limits on the number of queues, exchanges and bindings, and on the size of their arguments.

Their memory belongs to no queue and is freed only when a client deletes them, so a memory alarm could not recover it;
therefore the numbers are limited. The texts are RabbitMQ's where it has the limit (`cluster_queue_limit`,
`cluster_exchange_limit`). Imported definitions and objects recovered at a restart are not refused.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from leveret.broker.amqp.commands import Basic, Exchange as ExchangeMethods, Queue as QueueMethods
from leveret.broker.amqp.tables import encode_table
from leveret.broker.errors import precondition_failed, resource

QUEUES = 200_000
EXCHANGES = 100_000
BINDINGS = 1_000_000
ARGUMENT_OCTETS = 16 * 1024

_KEPT = (  # the methods whose arguments are stored
    QueueMethods.Declare,
    QueueMethods.Bind,
    ExchangeMethods.Declare,
    ExchangeMethods.Bind,
    Basic.Consume,
)


class ObjectLimits:
    """The limits of a node; None for no limit. Those of bindings are for each vhost, the others for all together."""

    def __init__(
        self,
        vhosts: Mapping[str, Any],  # `VHost`s, which import this module
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
        """Raise 406 if the maximum number of queues is reached."""
        most = self._queues
        if most is not None and sum([len(vhost.queues) for vhost in self._vhosts.values()]) >= most:
            raise precondition_failed(
                f"cannot declare queue '{name}': queue limit in cluster ({most}) is reached"
            )

    def check_exchange(self, name: str, vhost: str) -> None:
        """Raise 406 if the maximum number of exchanges is reached."""
        most = self._exchanges
        if most is not None and sum([len(each.router.exchanges) for each in self._vhosts.values()]) >= most:
            what = resource("exchange", name, vhost)
            raise precondition_failed(f"cannot declare {what}: exchange limit of {most} is reached")

    def check_binding(self, vhost: Any, exists: Callable[[], bool]) -> None:
        """Raise 406 if the vhost has the maximum number of bindings, unless the requested one `exists`."""
        most = self._bindings_of.get(vhost.name, self._bindings)
        if most is not None and vhost.router.binding_count >= most and not exists():
            raise precondition_failed(
                f"cannot add a binding: binding limit in vhost '{vhost.name}' ({most}) is reached"
            )

    def check_arguments(self, method: Any) -> None:
        """Raise 406 if the arguments of a method that stores them are too large."""
        if isinstance(method, _KEPT) and method.arguments:
            octets = len(encode_table(method.arguments))  # type: ignore[arg-type]
            if octets > self.argument_octets:
                text = f"arguments of {octets} bytes are too large: limits.argument_bytes is {self.argument_octets}"
                raise precondition_failed(text)
