"""Exchanges that choose one of their bindings for each message: at random, or by a hash of its routing keys.

As in RabbitMQ (rabbit_exchange_type_random, _local_random and _modulus_hash) each binding counts, so that a destination
with three of them is chosen three times as often as one with a single binding. Messages that CC and BCC copy to
further keys are chosen one destination, too.
"""

from collections.abc import Collection, Sequence
from secrets import randbelow
from typing import ClassVar

from leveret.exchanges.base import Exchange, Headers, Identity, Table, members
from leveret.exchanges.erlang_hash import phash2
from leveret.exchanges.errors import InvalidBindingError


class ChoiceExchange(Exchange):
    """Base of the types that choose one destination; the choices are listed again after each change."""

    __slots__ = ("_choices",)

    picks_one: ClassVar[bool] = True

    def _prepare(self) -> None:
        self._choices: Sequence[object] = ()

    @property
    def choices(self) -> Sequence[object]:
        """The destinations, each as often as it counts."""
        if not self._choices and self._by_destination:
            self._choices = self._listed()
        return self._choices

    def _listed(self) -> Sequence[object]:
        return [destination for destination, bound in self._by_destination.items() for _ in members(bound)]

    def match_keys(self, routing_keys: Sequence[str], headers: Headers) -> Collection[object]:
        """Return the destination for the routing key, which is the first."""
        return self.match(routing_keys[0], headers)

    def reason(self, routing_keys: Sequence[str]) -> str:
        """Return in a few words what chooses the destination of a message with these keys."""
        raise NotImplementedError

    def _forget(self) -> None:
        self._choices = ()

    def _bound(self, destination: object, identity: Identity) -> None:  # noqa: ARG002
        self._forget()

    def _unbound(self, destination: object, identity: Identity) -> None:  # noqa: ARG002
        self._forget()

    def _destination_gone(self, destination: object) -> None:
        super()._destination_gone(destination)
        self._forget()


class RandomExchange(ChoiceExchange):
    """Routes to the destination of a random binding, for any routing key."""

    __slots__ = ("_last",)

    type: ClassVar[str] = "x-random"
    needs_headers: ClassVar[bool] = True  # each message has another route: none may be remembered
    keyless: ClassVar[bool] = True

    def _prepare(self) -> None:
        super()._prepare()
        self._last: tuple[object, ...] = ()

    def match(self, routing_key: str, headers: Headers = None) -> tuple[object, ...]:  # noqa: ARG002
        """Return one destination, another one each time."""
        choices = self.choices
        self._last = (choices[randbelow(len(choices))],) if choices else ()
        return self._last

    def matched(self, routing_keys: Sequence[str], headers: Headers) -> tuple[object, ...]:  # noqa: ARG002
        """Return the destination that was chosen last."""
        return self._last if self._last and self.is_bound(self._last[0]) else ()

    def reason(self, routing_keys: Sequence[str]) -> str:  # noqa: ARG002
        """Return that it is chance."""
        return "chance; the next message may go to another one"


class LocalRandomExchange(RandomExchange):
    """Routes to a random classic queue: in RabbitMQ one of the node that the publisher is connected to."""

    __slots__ = ()

    type: ClassVar[str] = "x-local-random"

    def validate_binding(self, destination: object, binding_key: str, arguments: Table) -> None:
        """Raise InvalidBindingError unless it binds a classic queue with the empty key."""
        del arguments
        if binding_key:
            raise InvalidBindingError(f"Non empty binding '{binding_key}' key not permitted")
        if isinstance(destination, Exchange):
            raise InvalidBindingError("Destination not found")
        kind = getattr(destination, "type", "classic")  # destinations are opaque to everything else here
        if kind != "classic":
            raise InvalidBindingError(f"Queue type rabbit_{kind}_queue not valid for this exchange type")


class ModulusHashExchange(ChoiceExchange):
    """Routes by the hash of the routing keys, modulo the number of bindings, whose order is that of names."""

    __slots__ = ()

    type: ClassVar[str] = "x-modulus-hash"

    def _listed(self) -> Sequence[object]:
        return sorted(super()._listed(), key=_place)

    def match(self, routing_key: str, headers: Headers = None) -> tuple[object, ...]:
        """Return the destination for this key."""
        return self.match_keys((routing_key,), headers)

    def match_keys(self, routing_keys: Sequence[str], headers: Headers) -> tuple[object, ...]:  # noqa: ARG002
        """Return the destination for these keys together."""
        choices = self.choices
        return (choices[phash2(routing_keys) % len(choices)],) if choices else ()

    def reason(self, routing_keys: Sequence[str]) -> str:
        """Return what is hashed."""
        return f"the hash of {'its routing key' if len(routing_keys) == 1 else 'its routing keys'}"


def _place(destination: object) -> tuple[bool, bytes]:
    """Return the place of a destination in RabbitMQ's order: exchanges first, then queues, by name."""
    name = str(getattr(destination, "name", destination))
    return not isinstance(destination, Exchange), name.encode("utf-8", "surrogateescape")
