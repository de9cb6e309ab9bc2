"""Features of classic queues, messages and consumers, and the cases about each: data for docs/compatibility.md."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from conformance.cases import Case


@dataclass(frozen=True, slots=True)
class Feature:
    """One capability of RabbitMQ's.

    Attributes:
        name: in few words.
        cases: ids, or patterns as of file names; none where no script can ask, and then there is a note.
        note: what the cases cannot show.

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
        Feature("names by the server", ("50*", "queue.server-named", "queue.nowait-server-named")),
        Feature("passive declare", ("55", "queue.declare-counts", "queue.passive-nowait", "53c")),
        Feature("`x-message-ttl`", ("ttl.*", "56[abfw12]")),
        Feature("`x-expires`", ("expires.*", "56[cdeg]")),
        Feature("`x-max-length`, `x-max-length-bytes`", ("limit.*", "56[opqxyABCD]")),
        Feature("`x-overflow`", ("limit.*reject*", "limit.several*", "limit.transaction*", "103", "confirm.nack-overflow", "56[kl]")),
        Feature("dead letters", ("dead.*", "56[mn]", "58", "expires.no-dead-letters")),
        Feature("`x-max-priority`", ("priorities.*", "56[hij]")),
        Feature("single active consumer", ("single-active.*", "quorum.single-active", "85c", "56t")),
        Feature("`x-queue-mode`", ("52k", "56[uz]", "*-lazy", "ttl.lazy"), "nothing more than RabbitMQ 3.12 makes of it"),
        Feature("`x-queue-type`", ("52q", "56[rs]", "quorum.*")),
        Feature("`x-queue-version`", ("56[vE6]", "queue.version")),
        Feature("`x-delivery-limit`", ("redelivery.*", "quorum.delivery-*", "57a")),
        Feature("arguments the broker does not know", ("52r", "56.[89]", "57*")),
        Feature("equivalence of declarations", ("51*", "52*", "54d")),
        Feature("purge", ("queue.purge*", "ttl.purge*", "limit.room-purge", "quorum.purge")),
        Feature("delete, if unused, if empty", ("63", "64", "65*", "queue.delete-*", "ttl.delete-count", "ttl.if-empty")),
        Feature("names of 255 octets, of any letters", ("queue.names", "queue.cr-lf")),
        Feature("the place of what comes back", ("basic.nack-requeue", "basic.channel-close-order", "limit.requeue*", "ttl.requeued*")),
        Feature("policies, operator policies", ("policy.*",), "changes on what is there: `tests/broker/vhost/test_policies.py`"),
        Feature("leaders, mirrors, replicas", (), "one node: the arguments and policies are taken, and do nothing"),
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
        Feature("largest message", ("76*",)),
        Feature("redelivered", ("basic.nack-requeue", "basic.requeue-on-drop", "ttl.redelivered-flag")),
        Feature("`x-delivery-count`", ("redelivery.*", "quorum.delivery-count")),
        Feature("direct reply-to", ("72*", "80*", "81*", "reply.*", "basic.reply-to*")),
        Feature("message interceptors", (), "RabbitMQ's are off unless configured; there are none here"),
    ),
    "Consumers": (
        Feature("consume, cancel, turns", ("82*", "87*", "basic.consume*", "basic.cancel*", "basic.round-robin", "basic.server-tag")),
        Feature("a tag twice", ("83*",)),
        Feature("`no_local`", ("delivery.no-local",)),
        Feature("exclusive consumers", ("85*", "delivery.exclusive-*", "exclusive.*")),
        Feature("without acknowledgements", ("basic.qos-no-ack", "basic.no-ack-cancelled", "delivery.qos-global-no-ack", "ttl.no-ack-burst")),
        Feature("prefetch of a consumer", ("95*", "basic.qos-consumer", "basic.qos-ack", "delivery.qos-existing")),
        Feature("prefetch of a channel", ("basic.qos-channel", "basic.qos-both", "basic.qos-raise", "delivery.qos-global*")),
        Feature("`x-priority`", ("86*", "basic.priority", "delivery.priority-negative", "priority.*")),
        Feature("notice of a cancel", ("basic.cancel-notify*", "queue.delete-other-connection")),
        Feature("get", ("88*", "basic.get*", "ttl.get-*")),
        Feature("ack, multiple", ("96*", "basic.ack-*")),
        Feature("nack, reject, requeue", ("basic.nack-*", "basic.requeue-*", "redelivery.*")),
        Feature("recover", ("97*", "basic.recover*", "ttl.recover")),
        Feature("time to acknowledge", ("98", "timeout.*")),
        Feature("consumers' statistics", (), "not seen by clients: `broker/administration/listings.py` lists them"),
    ),
}  # fmt: skip
