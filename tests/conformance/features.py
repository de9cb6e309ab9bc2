"""Features of classic queues, messages and consumers, and the cases about each: data for cases.md."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from conformance.cases import Case


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of RabbitMQ and the cases that cover it.

    Attributes:
        name: shown in the table.
        cases: ids, or patterns as of file names; none if no script can test it; then `note` says why.
        note: shown in the table; limits of the cases.

    """

    name: str
    cases: tuple[str, ...]
    note: str = ""

    def covered(self, cases: Sequence[Case]) -> list[Case]:
        """The cases about it."""
        return [case for case in cases if any(fnmatchcase(case.id, pattern) for pattern in self.cases)]


FEATURES = {
    "Queues": (
        Feature("durable and transient", ("51[ab]", "54c", "expires.durable", "ttl.mixed"), "restarts: `tests/broker`, `tests/crash`"),
        Feature("exclusive", ("53*", "54*", "queue.exclusive-*", "queue.lost-connection")),
        Feature("auto-delete", ("queue.auto-delete*", "51c")),
        Feature("server-named queues", ("50*", "queue.server-named", "queue.nowait-server-named")),
        Feature("passive declare", ("55", "queue.declare-counts", "queue.passive-nowait", "53c")),
        Feature("`x-message-ttl`", ("ttl.*", "56[abfw12]")),
        Feature("`x-expires`", ("expires.*", "56[cdeg]")),
        Feature("`x-max-length`, `x-max-length-bytes`", ("limit.*", "56[opqxyABCD]")),
        Feature("`x-overflow`", ("limit.*reject*", "limit.several*", "limit.transaction*", "103", "confirm.nack-overflow", "56[kl]")),
        Feature("dead letters", ("dead.*", "56[mn]", "58", "expires.no-dead-letters")),
        Feature("`x-max-priority`", ("priorities.*", "56[hij]")),
        Feature("single active consumer", ("single-active.*", "quorum.single-active", "85c", "56t")),
        Feature("`x-queue-mode`", ("52k", "56[uz]", "*-lazy", "ttl.lazy"), "a lazy queue keeps as few messages as possible in memory; RabbitMQ ignores it since 3.12"),
        Feature("`x-queue-type`", ("52q", "56[rs]", "quorum.*")),
        Feature("`x-queue-version`", ("56[vE6]", "queue.version")),
        Feature("`x-delivery-limit`", ("redelivery.*", "quorum.delivery-*", "57a")),
        Feature("unknown arguments", ("52r", "56.[89]", "57*")),
        Feature("equivalence of declarations", ("51*", "52*", "54d")),
        Feature("purge", ("queue.purge*", "ttl.purge*", "limit.room-purge", "quorum.purge")),
        Feature("delete, if unused, if empty", ("63", "64", "65*", "queue.delete-*", "ttl.delete-count", "ttl.if-empty")),
        Feature("names of 255 bytes, any characters", ("queue.names", "queue.cr-lf")),
        Feature("position of requeued messages", ("basic.nack-requeue", "basic.channel-close-order", "limit.requeue*", "ttl.requeued*")),
        Feature("policies, operator policies", ("policy.*",), "changes to existing queues: `tests/broker/vhost/test_policies.py`"),
        Feature("leaders, mirrors, replicas", (), "single node: the arguments and policies are accepted and have no effect"),
    ),
    "Messages": (
        Feature("14 properties, headers of all types", ("basic.properties",)),
        Feature("persistence", ("confirm.persistent", "ttl.persistent", "limit.persistent"), "restarts: `tests/crash`"),
        Feature("mandatory", ("110*", "tx.mandatory", "limit.not-returned")),
        Feature("immediate", ("75",)),
        Feature("expiration", ("77*", "ttl.*")),
        Feature("priority", ("priorities.*",)),
        Feature("CC and BCC", ("79*", "basic.cc*", "dead.*cc*", "ttl.cc", "limit.cc")),
        Feature("`user_id`", ("78*",)),
        Feature("`max_message_size`", ("76*",)),
        Feature("redelivered", ("basic.nack-requeue", "basic.requeue-on-drop", "ttl.redelivered-flag")),
        Feature("`x-delivery-count`", ("redelivery.*", "quorum.delivery-count")),
        Feature("direct reply-to", ("72*", "80*", "81*", "reply.*", "basic.reply-to*")),
        Feature("message interceptors", ("release.interceptors",), "those of incoming messages"),
    ),
    "Consumers": (
        Feature("consume, cancel, round robin", ("82*", "87*", "basic.consume*", "basic.cancel*", "basic.round-robin", "basic.server-tag")),
        Feature("duplicate consumer tags", ("83*",)),
        Feature("`no_local`", ("delivery.no-local",)),
        Feature("exclusive consumers", ("85*", "delivery.exclusive-*", "exclusive.*")),
        Feature("`no_ack`", ("basic.qos-no-ack", "basic.no-ack-cancelled", "delivery.qos-global-no-ack", "ttl.no-ack-burst")),
        Feature("prefetch of a consumer", ("95*", "basic.qos-consumer", "basic.qos-ack", "delivery.qos-existing")),
        Feature("prefetch of a channel", ("basic.qos-channel", "basic.qos-both", "basic.qos-replaced*", "basic.qos-raise", "delivery.qos-global*")),
        Feature("`x-priority`", ("86*", "basic.priority", "delivery.priority-negative", "priority.*")),
        Feature("consumer cancel notification", ("basic.cancel-notify*", "queue.delete-other-connection")),
        Feature("get", ("88*", "basic.get*", "ttl.get-*")),
        Feature("ack, multiple", ("96*", "basic.ack-*")),
        Feature("nack, reject, requeue", ("basic.nack-*", "basic.requeue-*", "redelivery.*")),
        Feature("recover", ("97*", "basic.recover*", "ttl.recover")),
        Feature("consumer timeout", ("98", "timeout.*")),
        Feature("consumer statistics", (), "not visible to clients; see `broker/management/client_fields.py`"),
    ),
}  # fmt: skip
