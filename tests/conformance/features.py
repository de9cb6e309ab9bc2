"""Features and the cases about each, and what 4.x has changed that a client notices: data for cases.md."""

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
        Feature("consumer statistics", (), "not visible to clients; see `broker/management/clients.py`"),
    ),
}  # fmt: skip

CHANGES = (
    Feature("4.1: the least `frame_max` is 8192", ("connection.small-frames",)),
    Feature("4.1: frames of 8,192 bytes before the login, for tokens", ("release.password-*",)),
    Feature("4.0: `max_message_size` is 16 MiB", ("release.size",)),
    Feature("4.3: queues that are neither durable nor exclusive are refused", ("61a",)),
    Feature("4.3: `basic.qos` with `global` limits each consumer", ("release.qos*",)),
    Feature("4.3: at most two `#` in a binding key", ("71",)),
    Feature("4.3: `x-queue-master-locator` is refused", ("release.classic-queue-master-locator*",)),
    Feature("4.3: no first version of the storage of classic queues", ("release.classic-queue-version-1", "release.classic-queue-mode*")),
    Feature("4.0: an `x-death` of a client counts no more", ("release.cycle",)),
    Feature("4.0: a delivery limit of 20 in quorum queues, -1 for none", ("release.limit", "release.no-limit")),
    Feature("4.3: what a nack gives back has not failed; `x-acquired-count`", ("release.limit-*", "release.counts")),
    Feature("4.3: 32 strict priorities in quorum queues", ("release.priorities*",)),
    Feature("4.3: delayed retries in quorum queues", ("release.delayed-retry",)),
    Feature("4.3: the consumer timeout is of quorum queues, and cancels", ("release.timeout-*", "release.classic-consumer-timeout*")),
    Feature("4.3: the place of a requeued message in a quorum queue", ("quorum.requeue-order",)),
    Feature("4.2.7: a passive declare needs a permission", ("104i",)),
    Feature("4.2: replies to an address that is gone; no binding of one", ("reply.mandatory", "72a")),
    Feature("4.0, 4.3: exchange types `x-local-random` and `x-modulus-hash`; three of plugins", ("release.exchange-*",)),
    Feature("`x-delayed-message`: its plugin was given up", ("39b",)),
    Feature("4.0: streams and AMQP 1.0 in the core", ("stream.declare", "1c")),
    Feature("4.2: message interceptors", ("release.interceptors",)),
    Feature("4.0: ANONYMOUS logs in as guest", ("release.anonymous",)),
    Feature("`x-delivery-limit` of a classic queue", ("57a",)),
    Feature("4.3: at most 10,000 publishes in a transaction", ("release.transaction",)),
)  # fmt: skip
"""Changes of RabbitMQ 4 since 3.13, with the release, and features in place of which Leveret has something else."""


def changed(cases: Sequence[Case]) -> list[Case]:
    """The cases about what 4.x has changed."""
    return [case for change in CHANGES for case in change.covered(cases)]
