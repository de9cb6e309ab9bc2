"""Reasons why our outcome of a case is not RabbitMQ's: data for the runner and for cases.md.

What RabbitMQ answers instead is in the record (outcomes.txt, octets-*.txt), so that no other difference is hidden. Ours
answers what is written in the case, in each profile; a script of octets.py it answers as the first peer does.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

BOTH = ("3.10", "4.3")
ONLY_4_3 = ("4.3",)


@dataclass(frozen=True, slots=True)
class Explanation:
    """One difference: the cases it covers (ids, or patterns as of file names), and what RabbitMQ does instead.

    `of` are the releases that differ.
    """

    cases: tuple[str, ...]
    what: str
    reason: str
    source: str
    of: tuple[str, ...] = ("3.10",)

    def covers(self, ident: str, peer: str) -> bool:
        """Return whether this explains that case of a peer."""
        return peer in self.of and any(fnmatchcase(ident, pattern) for pattern in self.cases)


EXPLAINED = (
    Explanation(
        ("104i", "104m"),
        "A passive declare needs no permission",
        "Since 4.2.7 one of the three permissions is needed; `compatibility.passive_declare = open` "
        "restores the old behaviour.",
        "rabbitmq-server pull requests 16085 and 16272; rabbit_channel.erl, check_any_resource_access_permitted",
    ),
    Explanation(
        ("104l",),
        "A passive declare needs no permission and finds no queue: 404",
        "The same permission is needed as for an existing queue; otherwise the reply would reveal which "
        "queues exist.",
        "rabbitmq-server pull request 16272",
    ),
    Explanation(
        ("107i", "107j"),
        "The keys of CC and BCC are not checked, and the message is published",
        "4.0.3 checks every routing key of a message; otherwise a header could be used to bypass topic permissions.",
        "rabbitmq-server pull request 12553; rabbit_channel.erl, check_write_permitted_on_topics",
    ),
    Explanation(
        ("104*", "105*", "106*", "107*"),
        "3.10.8 does not name the permission: `access to queue 'q' in vhost '/' refused for user 'u'`",
        "3.13 begins the text with the permission that is missing (`configure access to ...`); we follow 3.13.",
        "rabbit_access_control.erl, check_resource_access, v3.13.7 and v3.10.8",
    ),
    Explanation(
        ("39b",),
        "Without its plugin this type is not known; 3.10.8 closes the connection with 503",
        "Delayed messages are built in; declarations are validated as by the plugin.",
        "rabbitmq-delayed-message-exchange, rabbit_exchange_type_delayed_message.erl, validate",
        of=BOTH,
    ),
    Explanation(
        ("39*", "exchange.nowait-error"),
        "3.10.8 closes the connection with 503 COMMAND_INVALID, `invalid exchange type` or `unknown exchange type`",
        "3.13 closes the channel with 406; whether a type is `unknown` or `invalid` depends on the "
        "Erlang VM's atoms.",
        "rabbit_exchange.erl, check_type, v3.13.7 and v3.10.8",
    ),
    Explanation(
        ("30", "31"),
        "3.10.8 has no such check and fails at the next frame, with 505",
        "A body larger than announced, or announced above the maximum, is refused at once, as in 4.x.",
        "rabbit_command_assembler.erl, v4.3.5 and v3.10.8",
    ),
    Explanation(
        ("32a", "32b", "32c", "33c"),
        "RabbitMQ's reader process crashes and the socket closes without a method",
        "Malformed input is the client's error, and the client gets a close method in the profile 3.13.",
        "rabbit_framing_amqp_0_9_1.erl, lookup_method_name, and rabbit_binary_parser.erl: no clause, "
        "outside of the try",
    ),
    Explanation(
        ("72a",),
        "3.10.8 has no rule for the addresses and finds no queue of that name: 404",
        "4.x reports the error to the client; we follow 4.x.",
        "rabbit_channel.erl, reject_volatile_queue_as_binding_target, v4.3.5",
    ),
    Explanation(
        ("72b",),
        "3.10.8 has no rule for the addresses, and unbinding what does not exist is answered",
        "4.x reports the error to the client; we follow 4.x.",
        "rabbit_channel.erl, reject_volatile_queue_as_binding_target, v4.3.5",
    ),
    Explanation(
        ("24b",),
        "The Erlang term in the text is broken into two lines",
        "Erlang's `~p` breaks terms that pass column 80; our texts are one line in the profile 3.13.",
        "rabbit_reader.erl, frame_error; io_lib:format/2",
    ),
    Explanation(
        ("16",),
        "3.10.8 stops accepting connections at its listener instead: the third connection opens",
        "Since 3.12 `connection_max` is checked at connection.open, and the client gets an error; we follow 3.13.",
        "rabbitmq-server issue 7593; rabbit_reader.erl, is_over_node_connection_limit",
    ),
    Explanation(
        ("18",),
        "3.10.8 puts the number into parentheses: `user limit of (1)`",
        "Later versions write the number alone.",
        "rabbit_reader.erl, is_over_limits",
    ),
    Explanation(
        ("18b",),
        "3.10.8 has no such limit and opens the channel",
        "`channel_max_per_node` came with 3.12.",
        "rabbitmq-server pull request 10351; rabbit_reader.erl, is_over_node_channel_limit",
    ),
    Explanation(
        ("57a", "redelivery.classic-*"),
        "RabbitMQ's classic queues have no delivery limit and refuse the argument",
        "Without a limit, a message that makes its consumers fail is redelivered forever; LavinMQ's "
        "queues have a limit too.",
        "rabbit_classic_queue.erl, capabilities, v3.13.7",
    ),
    Explanation(
        ("quorum.requeue-order",),
        "RabbitMQ's quorum queues put requeued messages behind waiting ones",
        "Its replicated log only grows at the end. Our quorum queues keep the order of classic ones.",
        "observed; rabbit_fifo.erl, requeue",
    ),
    Explanation(
        ("102",),
        "The connection is closed with 504 if the method comes before the disk has answered",
        "Methods after a pending reply are executed after it; clients should not depend on the speed of the disk.",
        "rabbit_channel.erl, handle_method, clause for `tx = committing` (row 102)",
        of=BOTH,
    ),
    Explanation(
        ("84",),
        "3.10.8 has no such limit and starts the consumer",
        "`consumer_max_per_channel` came with 3.13.1.",
        "rabbitmq-server pull requests 10749 and 10977; rabbit_channel.erl, basic.consume",
    ),
    Explanation(
        ("dead.last", "dead.last-again"),
        "3.10.8 knows no `x-last-death-queue`, `-reason` and `-exchange`",
        "They came with 3.13.",
        "mc.erl, record_death, v3.13.7",
    ),
    Explanation(
        ("dead.*.text", "dead.other.*"),
        "3.10.8 starts a new `x-death`, but does not write `x-first-death-*`",
        "3.13 treats such a message as one that has not been dead-lettered yet.",
        "mc_amqpl.erl, headers_to_deaths, v3.13.7; rabbit_dead_letter.erl, update_x_death_header, v3.10.8",
    ),
    Explanation(
        ("dead.entry-strings",),
        "The queue's process crashes, and the message is lost",
        "3.13 ignores invalid entries.",
        "rabbit_dead_letter.erl, group_by_queue_and_reason, v3.10.8: no clause",
    ),
    Explanation(
        ("dead.entry-empty-table", "dead.entry-no-*", "dead.entry-text-count"),
        "3.10.8 passes on any table, complete or not",
        "3.13 ignores invalid entries.",
        "mc_amqpl.erl, recover_deaths, v3.13.7",
    ),
    Explanation(
        ("dead.entry-more",),
        "3.10.8 passes on unknown fields",
        "3.13 keeps and writes only the fields of an entry.",
        "mc_amqpl.erl, recover_deaths and death_table, v3.13.7",
    ),
    Explanation(
        ("dead.order", "dead.cycle.three"),
        "3.10.8 reverses the order of the earlier entries with every new one, from the third on",
        "The newest entry is the first; 3.13 preserves this order, and cycle detection depends on it.",
        "rabbit_dead_letter.erl, group_by_queue_and_reason, v3.10.8; mc.erl, record_death, v3.13.7",
    ),
    Explanation(
        ("dead.expiration-number",),
        "3.10.8 repeats the text of the property: `+0500`",
        "3.13 writes the number.",
        "mc_amqpl.erl, death_table, v3.13.7",
    ),
    Explanation(
        ("dead.keys.bcc", "dead.keys.cc-bcc"),
        "RabbitMQ remembers the keys of BCC, and routes dead letters by them too",
        "BCC is removed when the message is published and not stored, so that the recipients of blind "
        "copies stay secret.",
        "rabbit_basic.erl, message, and rabbit_dead_letter.erl, publish",
        of=BOTH,
    ),
    Explanation(
        ("priorities.expiry-head",),
        "A message that becomes the head by its priority is delivered although it has expired",
        "RabbitMQ checks the head when a message leaves or expires, and after a publish only into an "
        "empty queue; we check every new head.",
        "rabbit_amqqueue_process.erl, deliver_or_enqueue",
        of=BOTH,
    ),
    Explanation(
        ("policy.delivery-limit",),
        "A policy with `delivery-limit` does not apply to classic queues, even if it has other keys",
        "Classic queues have a delivery limit here.",
        "rabbit_classic_queue.erl, capabilities, and rabbit_queue_type.erl, is_policy_applicable",
    ),
    Explanation(
        ("redelivery.quorum-got",),
        "A get from a quorum queue has `x-delivery-count` 0 if the message was never requeued",
        "Deliveries to consumers do not have the header then; it is added with the first requeue, also for gets.",
        "rabbit_fifo_client.erl, dequeue and add_delivery_count_header, v3.13.7",
    ),
    Explanation(
        ("reply.mandatory",),
        "A mandatory reply is delivered to its client, and also returned to the replying client as unroutable",
        "RabbitMQ 3 does not treat the address as a queue; a return would falsely say that the reply was "
        "not delivered.",
        "observed; rabbitmq.com/docs/3.13/direct-reply-to, caveats",
    ),
    Explanation(
        ("dead.cycle.claimed-expired",),
        "Before 4.0 an `x-death` header that a client sends makes a cycle, and the message is dropped",
        "What a client claims never decides whether its message is dropped; we follow 4.x.",
        "rabbitmq-server pull request 11339; rabbit_dead_letter.erl, detect_cycles, v3.10.8",
    ),
    Explanation(
        ("tx.queue-gone",),
        "3.10.8 looks queues up by name at the commit: the message goes to the new queue, or nowhere if there is none",
        "4.3.6 answers so, if the queue was declared again; without one of that name it closes the connection (506, "
        "`failed to deliver message`) amid the transaction, which we do not.",
        "observed",
    ),
    Explanation(
        ("release.exchange-*",),
        "Without their plugins, and before 4.x, these types are not known (3.10.8: connection, 503)",
        "They are built in.",
        "rabbit_exchange_type_local_random.erl, rabbit_exchange_type_modulus_hash.erl, v4.3.5, and three plugins",
    ),
    Explanation(
        ("91", "92"),
        "3.10.8 has other texts for a consumer of a stream without a prefetch or with automatic acks",
        "We follow 3.13 and 4.x.",
        "rabbit_stream_queue.erl, consume, v3.13.7 and v3.10.8",
    ),
    Explanation(
        ("stream.value-x-max-age-D", "stream.offset-wrong-word", "stream.offset-wrong-empty"),
        "3.10.8 crashes (541)",
        "4.3 answers so.",
        "rabbit_stream_queue.erl, parse_offset_arg, v4.3.5; rabbit_amqqueue.erl, check_max_age, v3.10.8",
    ),
    Explanation(
        ("stream.offset-wrong-bool", "stream.offset-wrong-double", "stream.offset-wrong-void"),
        "An offset of another type crashes the channel (541)",
        "It is an invalid argument like the others.",
        "observed",
        BOTH,
    ),
    Explanation(
        ("stream.offset-negative",),
        "A negative offset is the first one",
        "It is so many messages before the end, as in LavinMQ.",
        "observed",
        BOTH,
    ),
    Explanation(
        ("stream.basic.*", "stream.recover"),
        "3.10.8 refuses basic.nack and basic.reject (540), and crashes after basic.recover (541)",
        "They make room for further messages, as in 4.3.",
        "rabbit_stream_queue.erl, settle, v4.3.5 and v3.10.8",
    ),
    Explanation(
        ("stream.dead-letter",),
        "The dead letter does not come to the stream in time, or not at all",
        "4.3 answers so.",
        "observed",
    ),
    Explanation(
        ("stream.value-x-stream-filter-size-bytes-300",),
        "3.10.8 does not know the argument",
        "We follow 3.13 and 4.x.",
        "rabbit_stream_queue.erl, v3.13.7",
    ),
    Explanation(
        ("release.password-6000",),
        "Before the login, 3.10.8 reads frames of 4,096 octets at most and closes the socket",
        "4.1 reads 8,192, for tokens as passwords; we follow 4.x.",
        "rabbit_reader.erl, v4.3.5 and v3.10.8",
    ),
    Explanation(
        ("release.no-limit",),
        "3.10.8 drops the message with its first return",
        "A negative limit is none, as in 4.x.",
        "rabbit_fifo.erl, v3.10.8 and v4.3.5",
    ),
    Explanation(
        ("1c",),
        "A client of AMQP 1.0 with SASL may go on",
        "AMQP 1.0 is not supported, so AMQP 0-9-1 is offered.",
        "rabbit_reader.erl, handle_input and refuse_connection, v4.3.5",
        ONLY_4_3,
    ),
    Explanation(
        ("connection.close-exclusive-first",),
        "4.3 answers connection.close before the exclusive queues are deleted, and another client may still see them",
        "The queues are deleted first, so that a client that reconnects does not find its own queue locked.",
        "observed; rabbit_reader.erl, rabbit_amqqueue.erl, delete_exclusive, v4.3.5",
        ONLY_4_3,
    ),
    Explanation(
        ("octets.properties", "octets.copies"),
        "4.x orders the fields of a table of headers that it has to write anew, by their names",
        "Tables keep the order of the client.",
        "mc_amqpl.erl, v4.3.5: a map of Erlang",
        ONLY_4_3,
    ),
    Explanation(
        ("dead.not-redelivered", "octets.deaths"),
        "A dead letter that was delivered before is marked as redelivered in 4.x",
        "It has not been delivered from that queue yet.",
        "observed; mc.erl, v4.3.5",
        ONLY_4_3,
    ),
    Explanation(
        ("61a",),
        "Debian's package permits such queues; with the key that forbids them the text says so",
        "The text is that of RabbitMQ as it is released.",
        "debian/patches/do-not-deprecate-transient_nonexcl_queues.patch; rabbit_deprecated_features.erl",
        ONLY_4_3,
    ),
    Explanation(
        ("queues.4.retry-*",),
        "4.3 takes any value of `x-delayed-retry-*`, and delivers at once if it means nothing",
        "A value that means nothing is refused.",
        "rabbit_fifo.erl and rabbit_amqqueue.erl, declare_args, v4.3.5",
        ONLY_4_3,
    ),
    Explanation(
        ("release.delayed-retry",),
        "3.10.8 ignores the argument, and delivers at once",
        "Delayed retries came with 4.3; all queues have them here.",
        "rabbit_fifo.erl, v4.3.5",
    ),
    Explanation(
        ("release.interceptors",),
        "3.10.8 has no message interceptors",
        "They came with 3.12, and are off unless they are configured.",
        "rabbit_message_interceptor.erl, v3.13.7",
    ),
)


def explanation(ident: str, peer: str) -> Explanation | None:
    """The explanation of a case's difference from a peer, if it has one."""
    return next((one for one in EXPLAINED if one.covers(ident, peer)), None)
