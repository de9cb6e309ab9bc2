"""What a queue's arguments and policies together ask of it.

Arguments are typed fields of an AMQP table, the definition of a policy is plain values by the same names without `x-`.
Where both say something the smaller number counts; of anything that is no number the argument does (`res_arg` and
`res_min` of rabbit_amqqueue_process). Of a policy and an operator policy the smaller number counts too, but of
anything that is no number the operator's (rabbit_policies:merge_policy_value).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leveret.broker.amqp.tables import Table
from leveret.broker.queue.arguments import MAX_EXPIRY_MS, QUORUM, queue_type
from leveret.confirm.modes import STANDARD, effective_mode

DROP_HEAD = "drop-head"
REJECT_PUBLISH_DLX = "reject-publish-dlx"
COUNTED = 1 << 62
"""The delivery limit of quorum queues without one: deliveries are counted, and consumers told."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How a queue treats its messages; None is no limit, or nothing of that kind.

    Attributes:
        message_ttl: ms that a message may be ready, from its arrival.
        expires: ms after which an unused queue goes.
        max_length: ready messages it may have.
        max_octets: octets of their bodies.
        overflow: what gives way where it is full: its head, or what arrives.
        dead_letter_exchange: where what it discards goes; '' is the default exchange.
        dead_letter_routing_key: under which key; None for that of the message.
        delivery_limit: how often a message may come back before it is discarded.
        consumer_timeout: ms that a delivery may stay unacked; 0 is for ever, None what the broker says.
        lazy: keep as little as possible in memory.
        confirm_mode: when publishers may be told that it has their messages, one of `confirm.modes.CONFIRM_MODES`:
            what is in effect, which is not always what was asked for (`queue_settings`).

    """

    message_ttl: int | None = None
    expires: int | None = None
    max_length: int | None = None
    max_octets: int | None = None
    overflow: str = DROP_HEAD
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    delivery_limit: int | None = None
    consumer_timeout: int | None = None
    lazy: bool = False
    confirm_mode: str = STANDARD

    @property
    def rejects(self) -> bool:
        """Whether publishes may be refused."""
        return self.overflow != DROP_HEAD and (self.max_length is not None or self.max_octets is not None)

    @property
    def asks_something(self) -> bool:
        """Whether a queue has to do more than keep messages."""
        return not (
            self.message_ttl is None
            and self.expires is None
            and self.max_length is None
            and self.max_octets is None
            and self.dead_letter_exchange is None
            and self.delivery_limit is None
        )


NO_SETTINGS = QueueSettings()

_LIMITS = frozenset(
    (
        "consumer-timeout", "delivery-limit", "expires", "max-in-memory-bytes", "max-in-memory-length", "max-length",
        "max-length-bytes", "message-ttl",
    )
)  # fmt: skip


def merged_definition(policy: Mapping[str, Any], operator: Mapping[str, Any]) -> dict[str, Any]:
    """What a policy and an operator policy say together, sorted by key as each of them is."""
    if not policy or not operator:
        return dict(policy or operator)
    return {
        key: min(policy[key], operator[key])
        if key in _LIMITS and key in policy and key in operator
        else operator.get(key, policy.get(key))
        for key in sorted({*policy, *operator})
    }


def queue_settings(
    arguments: Table, definition: Mapping[str, Any] | None = None, confirm_mode: str = STANDARD
) -> QueueSettings:
    """Work out a queue's settings.

    Args:
        arguments: as declared, and valid.
        definition: those of the policies that apply to it, merged. Times may be as long as anybody likes.
        confirm_mode: of queues that neither says anything of.

    """
    if not arguments and not definition and confirm_mode == STANDARD:
        return NO_SETTINGS
    merged = definition or {}

    def either(key: str) -> Any:
        field = arguments.get(f"x-{key}")
        return merged.get(key) if field is None else field[1]

    def smaller(key: str) -> int | None:
        field = arguments.get(f"x-{key}")
        asked: list[int] = [
            value for value in (field and field[1], merged.get(key)) if isinstance(value, int)
        ]
        return min(asked, default=None)

    def time(key: str) -> int | None:
        asked = smaller(key)
        return None if asked is None else min(asked, MAX_EXPIRY_MS)

    limit, octets = smaller("delivery-limit"), smaller("max-length-bytes")
    dead_letter_exchange = either("dead-letter-exchange")
    is_quorum = queue_type(arguments) == QUORUM
    if is_quorum and limit is None:
        limit = COUNTED
    mode = effective_mode(
        either("confirm-mode") or confirm_mode,
        is_quorum=is_quorum,
        needs_delivered=(limit, octets, dead_letter_exchange) != (None, None, None),
    )
    return QueueSettings(
        message_ttl=time("message-ttl"),
        expires=time("expires"),
        max_length=smaller("max-length"),
        max_octets=octets,
        overflow=either("overflow") or DROP_HEAD,
        dead_letter_exchange=dead_letter_exchange,
        dead_letter_routing_key=either("dead-letter-routing-key"),
        delivery_limit=limit,
        consumer_timeout=smaller("consumer-timeout"),
        lazy=either("queue-mode") == "lazy",
        confirm_mode=mode,
    )
