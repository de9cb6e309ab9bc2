"""RabbitMQ's names of queue types, and the switches of the configuration for what RabbitMQ 4 changed of queues."""

from typing import Annotated, Literal

import msgspec

from leveret.broker.config_key import Key


def short_queue_type(text: str) -> str:
    """Return the short name of a queue type, for that of RabbitMQ's module (`rabbit_quorum_queue`), too."""
    return text.removeprefix("rabbit_").removesuffix("_queue")


# The rows are tables, whose lines are filled.
# fmt: off


class QueueCompatibility(msgspec.Struct, frozen=True):
    """Switches for changes of queues in RabbitMQ 4; the defaults are RabbitMQ 3.13's behaviour."""

    arguments: Annotated[Literal["3.13", "4.3"], Key("compatibility.queue_arguments", own=True, in_4="4.3",
        doc="The RabbitMQ whose rules a new queue's arguments follow. `4.3` refuses `x-queue-version: 1`, "
        "`x-queue-master-locator` and, of classic queues, `x-delivery-limit`, `x-delayed-retry-*` and timeouts of "
        "consumers. A negative `x-stream-offset` is the first message there, one of another type ends the connection.")
    ] = "3.13"
    delivery_limit: Annotated[int | None, Key("compatibility.quorum_delivery_limit", "limit", low=0, own=True,
        in_4="20",
        doc="Delivery limit of quorum queues for which neither an argument nor a policy sets one (`-1` there is "
        "no limit); 20 in RabbitMQ 4.")] = None
    delivery_count: Annotated[Literal["returns", "failures"], Key("compatibility.delivery_count", own=True,
        in_4="failures",
        doc="What counts for a delivery limit and in `x-delivery-count`. `returns`: each message that comes back, as "
        "in RabbitMQ 3. `failures`: those that a consumer rejects (`basic.reject`) or loses with its channel, and not "
        "those it gives back by `basic.nack` or `basic.recover`, as in RabbitMQ 4.3; `x-acquired-count` has both.")
    ] = "returns"
    claimed_deaths: Annotated[Literal["kept", "replaced"], Key("compatibility.claimed_deaths", own=True,
        in_4="replaced",
        doc="The `x-death` that a client sends, when its message is dead-lettered. `kept`: its entries stay and its "
        "counts go on, as in RabbitMQ 3. `replaced`: those that the broker has recorded since the publish replace it, "
        "as in RabbitMQ 4.")] = "kept"
    message_properties: Annotated[Literal["3.13", "4.3"], Key("compatibility.message_properties", own=True, in_4="4.3",
        doc="The RabbitMQ whose rules the properties of delivered messages follow. `4.3`: `expiration` is written "
        "without a sign and zeros in front, and a dead letter whose queue sets its routing key keeps the header `CC`, "
        "which routes it no more.")] = "3.13"
    priorities: Annotated[Literal["ignored", "strict"], Key("compatibility.quorum_priorities", own=True, in_4="strict",
        doc="Whether quorum queues deliver by the priority of messages. `ignored`: in the order in which they came, as "
        "in RabbitMQ 3. `strict`: by the priorities 0 to 31, larger ones are 31 and none is 4, and the head of each "
        "expires, as in RabbitMQ 4.3.")
    ] = "ignored"
    long_delays: Annotated[Literal["ignored", "held"], Key("compatibility.long_delays", own=True, in_4="held",
        doc="What an exchange that delays does with an `x-delay` above 2^32-1 ms. `ignored`: the message is routed "
        "at once, as by RabbitMQ's plugin, and the log has a warning. `held`: it is delayed.")] = "ignored"

    @property
    def keeps_copies(self) -> bool:
        """True if a dead letter keeps its header `CC` where the queue sets its routing key."""
        return self.message_properties == "4.3"

    @property
    def keeps_claims(self) -> bool:
        """True if dead letters keep the deaths that a client claims."""
        return self.claimed_deaths == "kept"
