"""Reasons why our outcome of a case is not RabbitMQ 3.10.8's: data for the runner and for docs/compatibility.md."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from conformance.cases import SOCKET, Outcome, channel, connection, ok


@dataclass(frozen=True, slots=True)
class Explanation:
    """One difference: the cases it covers (ids, or patterns as of file names), and what RabbitMQ 3.10.8 does instead.

    `theirs` makes RabbitMQ's outcome from ours, so that a difference other than the explained one is still found.
    """

    cases: tuple[str, ...]
    what: str
    theirs: Callable[[Outcome], Outcome]
    reason: str
    source: str

    def covers(self, ident: str) -> bool:
        """Return whether this explains that case."""
        return any(fnmatchcase(ident, pattern) for pattern in self.cases)


def _unnamed_permission(ours: Outcome) -> Outcome:
    text = ours.text
    for permission in ("configure", "write", "read"):
        text = text.replace(f" - {permission} access", " - access")
    return replace(ours, text=text)


def _broken_line(ours: Outcome) -> Outcome:
    return replace(ours, text=ours.text.replace("marker,0}", "marker,\n" + " " * 70 + "0}"))


def _no_header_text(ours: Outcome) -> Outcome:
    text = "UNEXPECTED_FRAME - expected content body, got non content body frame instead"
    return replace(ours, code=505, text=text)


_EXCHANGE_TYPE = {
    "foo": "invalid exchange type 'foo'",
    "": "invalid exchange type ''",
}


def _command_invalid(ours: Outcome) -> Outcome:
    name = ours.text.rpartition(" ")[2].strip("'")
    return connection(503, "exchange.declare", _EXCHANGE_TYPE[name])


def _no_first_death(ours: Outcome) -> Outcome:
    return replace(ours, seen=([None] * 3, *ours.seen[1:]))


def _no_last_death(ours: Outcome) -> Outcome:
    first, last = ours.seen
    return replace(ours, seen=(first, [None] * len(last)))


def _turned_round(ours: Outcome) -> Outcome:
    (newest, *others), rest = ours.seen
    return replace(ours, seen=([newest, *reversed(others)], rest))


def _routed_by_bcc(ours: Outcome) -> Outcome:
    keys, *rest = ours.seen
    return replace(ours, seen=(sorted(["bcc", *keys]), *rest))


EXPLAINED = (
    Explanation(
        ("104i", "104m"),
        "A passive declare needs no permission",
        lambda _: ok(),
        "Since 4.2.7 one of the three permissions is needed; `compatibility.passive_declare = open` "
        "restores the old behaviour.",
        "rabbitmq-server pull requests 16085 and 16272; rabbit_channel.erl, check_any_resource_access_permitted",
    ),
    Explanation(
        ("104l",),
        "A passive declare needs no permission and finds no queue: 404",
        lambda _: channel(404, "queue.declare", "no queue 'nosuch' in vhost '/'"),
        "The same permission is needed as for an existing queue; otherwise the reply would reveal which "
        "queues exist.",
        "rabbitmq-server pull request 16272",
    ),
    Explanation(
        ("107i", "107j"),
        "The keys of CC and BCC are not checked, and the message is published",
        lambda _: ok(),
        "4.0.3 checks every routing key of a message; otherwise a header could be used to bypass topic permissions.",
        "rabbitmq-server pull request 12553; rabbit_channel.erl, check_write_permitted_on_topics",
    ),
    Explanation(
        ("104*", "105*", "106*", "107*"),
        "3.10.8 does not name the permission: `access to queue 'q' in vhost '/' refused for user 'u'`",
        _unnamed_permission,
        "3.13 begins the text with the permission that is missing (`configure access to ...`); we follow 3.13.",
        "rabbit_access_control.erl, check_resource_access, v3.13.7 and v3.10.8",
    ),
    Explanation(
        ("39b",),
        "Without its plugin this type is not known, and 3.10.8 closes the connection with 503",
        lambda _: connection(503, "exchange.declare", "unknown exchange type 'x-delayed-message'"),
        "Delayed messages are built in; declarations are validated as by the plugin.",
        "rabbitmq-delayed-message-exchange, rabbit_exchange_type_delayed_message.erl, validate",
    ),
    Explanation(
        ("39*", "exchange.nowait-error"),
        "3.10.8 closes the connection with 503 COMMAND_INVALID, `invalid exchange type` or `unknown exchange type`",
        _command_invalid,
        "3.13 closes the channel with 406; whether a type is `unknown` or `invalid` depends on the "
        "Erlang VM's atoms.",
        "rabbit_exchange.erl, check_type, v3.13.7 and v3.10.8",
    ),
    Explanation(
        ("30", "31"),
        "3.10.8 has no such check and fails at the next frame, with 505",
        _no_header_text,
        "A body larger than announced, or announced above the maximum, is refused at once, as in 4.x.",
        "rabbit_command_assembler.erl, v4.3.5 and v3.10.8",
    ),
    Explanation(
        ("32a", "32b", "32c", "33c"),
        "RabbitMQ's reader process crashes and the socket closes without a method",
        lambda _: SOCKET,
        "Malformed input is the client's error, and the client gets a close method before the socket is closed.",
        "rabbit_framing_amqp_0_9_1.erl, lookup_method_name, and rabbit_binary_parser.erl: no clause, "
        "outside of the try",
    ),
    Explanation(
        ("72a",),
        "3.10.8 has no rule for the pseudo-queue and finds no queue of that name: 404",
        lambda _: channel(404, "queue.bind", "no queue 'amq.rabbitmq.reply-to.a' in vhost '/'"),
        "4.x reports the error to the client; we follow 4.x.",
        "rabbit_channel.erl, check_not_reply_to_queue (row 72), v4.3.5",
    ),
    Explanation(
        ("72b",),
        "3.10.8 has no rule for the pseudo-queue, and unbinding what does not exist is answered",
        lambda _: ok(),
        "4.x reports the error to the client; we follow 4.x.",
        "rabbit_channel.erl, check_not_reply_to_queue (row 72), v4.3.5",
    ),
    Explanation(
        ("24b",),
        "The Erlang term in the text is broken into two lines",
        _broken_line,
        "Erlang's `~p` breaks terms that pass column 80; our texts are one line.",
        "rabbit_reader.erl, frame_error; io_lib:format/2",
    ),
    Explanation(
        ("16",),
        "3.10.8 stops accepting connections at its listener instead: the third connection opens",
        lambda _: ok(),
        "Since 3.12 `connection_max` is checked at connection.open, and the client gets an error; we follow 3.13.",
        "rabbitmq-server issue 7593; rabbit_reader.erl, is_over_node_connection_limit",
    ),
    Explanation(
        ("18",),
        "3.10.8 puts the number into parentheses: `user limit of (1)`",
        lambda ours: replace(ours, text=ours.text.replace("of 1", "of (1)")),
        "Later versions write the number alone.",
        "rabbit_reader.erl, is_over_limits",
    ),
    Explanation(
        ("18b",),
        "3.10.8 has no such limit and opens the channel",
        lambda _: ok(),
        "`channel_max_per_node` came with 3.12.",
        "rabbitmq-server pull request 10351; rabbit_reader.erl, is_over_node_channel_limit",
    ),
    Explanation(
        ("57a",),
        "RabbitMQ's classic queues have no delivery limit and refuse the argument",
        lambda _: channel(
            406,
            "queue.declare",
            "invalid arg 'x-delivery-limit' for queue 'q-57a' in vhost '/' of queue type rabbit_classic_queue",
        ),
        "Without a limit, a message that makes its consumers fail is redelivered forever; LavinMQ's "
        "queues have a limit too.",
        "rabbit_classic_queue.erl, capabilities, v3.13.7",
    ),
    Explanation(
        ("quorum.requeue-order",),
        "RabbitMQ's quorum queues put requeued messages behind waiting ones",
        lambda ours: replace(ours, seen=[*ours.seen[2:], *ours.seen[:2]]),
        "Its replicated log only grows at the end. Our quorum queues keep the order of classic ones.",
        "observed; rabbit_fifo.erl, requeue",
    ),
    Explanation(
        ("102",),
        "The connection is closed with 504 if the method comes before the disk has answered",
        lambda _: connection(504, "queue.declare", "unexpected command while processing 'tx.commit'"),
        "Methods after a pending reply are executed after it; clients should not depend on the speed of the disk.",
        "rabbit_channel.erl, handle_method, clause for `tx = committing` (row 102)",
    ),
    Explanation(
        ("84",),
        "3.10.8 has no such limit and starts the consumer",
        lambda _: ok(),
        "`consumer_max_per_channel` came with 3.13.1.",
        "rabbitmq-server pull requests 10749 and 10977; rabbit_channel.erl, basic.consume",
    ),
    Explanation(
        ("dead.last", "dead.last-again"),
        "3.10.8 knows no `x-last-death-queue`, `-reason` and `-exchange`",
        _no_last_death,
        "They came with 3.13.",
        "mc.erl, record_death, v3.13.7",
    ),
    Explanation(
        ("dead.*.text", "dead.other.*"),
        "3.10.8 starts a new `x-death`, but does not write `x-first-death-*`",
        _no_first_death,
        "3.13 treats such a message as one that has not been dead-lettered yet.",
        "mc_amqpl.erl, headers_to_deaths, v3.13.7; rabbit_dead_letter.erl, update_x_death_header, v3.10.8",
    ),
    Explanation(
        ("dead.entry-strings",),
        "The queue's process crashes, and the message is lost",
        lambda _: Outcome("quiet"),
        "3.13 ignores invalid entries.",
        "rabbit_dead_letter.erl, group_by_queue_and_reason, v3.10.8: no clause",
    ),
    Explanation(
        ("dead.entry-empty-table", "dead.entry-no-*", "dead.entry-text-count"),
        "3.10.8 passes on any table, complete or not",
        lambda ours: replace(ours, seen=(ours.seen[0], 1)),
        "3.13 ignores invalid entries.",
        "mc_amqpl.erl, recover_deaths, v3.13.7",
    ),
    Explanation(
        ("dead.entry-more",),
        "3.10.8 passes on unknown fields",
        lambda ours: replace(ours, seen=[ours.seen[0], {**ours.seen[1], "more": 1}]),
        "3.13 keeps and writes only the fields of an entry.",
        "mc_amqpl.erl, recover_deaths and death_table, v3.13.7",
    ),
    Explanation(
        ("dead.order", "dead.cycle.three"),
        "3.10.8 reverses the order of the earlier entries with every new one, from the third on",
        _turned_round,
        "The newest entry is the first; 3.13 preserves this order, and cycle detection depends on it.",
        "rabbit_dead_letter.erl, group_by_queue_and_reason, v3.10.8; mc.erl, record_death, v3.13.7",
    ),
    Explanation(
        ("dead.expiration-number",),
        "3.10.8 repeats the text of the property: `+0500`",
        lambda ours: replace(ours, seen=["+0500"]),
        "3.13 writes the number.",
        "mc_amqpl.erl, death_table, v3.13.7",
    ),
    Explanation(
        ("dead.keys.bcc", "dead.keys.cc-bcc"),
        "RabbitMQ remembers the keys of BCC, and routes dead letters by them too",
        _routed_by_bcc,
        "BCC is removed when the message is published and not stored, so that the recipients of blind "
        "copies stay secret.",
        "rabbit_basic.erl, message, and rabbit_dead_letter.erl, publish",
    ),
    Explanation(
        ("priorities.expiry-head",),
        "A message that becomes the head by its priority is delivered although it has expired",
        lambda _: ok((2, ["b", "a"])),
        "RabbitMQ checks the head when a message leaves or expires, and after a publish only into an "
        "empty queue; we check every new head.",
        "rabbit_amqqueue_process.erl, deliver_or_enqueue",
    ),
    Explanation(
        ("policy.delivery-limit",),
        "A policy with `delivery-limit` does not apply to classic queues, even if it has other keys",
        lambda _: ok([b"1", b"2", b"3", b"4"]),
        "Classic queues have a delivery limit here.",
        "rabbit_classic_queue.erl, capabilities, and rabbit_queue_type.erl, is_policy_applicable",
    ),
    Explanation(
        ("redelivery.quorum-got",),
        "A get from a quorum queue has `x-delivery-count` 0 if the message was never requeued",
        lambda _: ok([(0, False), (1, True), (2, True)]),
        "Deliveries to consumers do not have the header then; it is added with the first requeue, also for gets.",
        "rabbit_fifo_client.erl, dequeue and add_delivery_count_header, v3.13.7",
    ),
    Explanation(
        ("reply.mandatory",),
        "A mandatory reply is delivered to its client, and also returned to the replying client as unroutable",
        lambda _: ok((b"answer", ["basic.return", "queue.declare-ok"])),
        "RabbitMQ 3 does not treat the address as a queue; a return would falsely say that the reply was "
        "not delivered.",
        "observed; rabbitmq.com/docs/3.13/direct-reply-to, caveats",
    ),
    Explanation(
        ("dead.cycle.claimed-expired",),
        "Before 4.0 an `x-death` header that a client sends makes a cycle, and the message is dropped",
        lambda _: ok(False),
        "What a client claims never decides whether its message is dropped; we follow 4.x.",
        "rabbitmq-server pull request 11339; rabbit_dead_letter.erl, detect_cycles, v3.10.8",
    ),
    Explanation(
        ("tx.queue-gone",),
        "3.10.8 looks queues up by name at the commit: the message goes to the new queue, or nowhere if there is none",
        lambda _: ok(("", 1, 1)),
        "4.3.6 answers so, if the queue was declared again; without one of that name it closes the connection (506, "
        "`failed to deliver message`) amid the transaction, which we do not.",
        "observed",
    ),
)


def explanation(ident: str) -> Explanation | None:
    """The explanation of a case's difference, if it has one."""
    return next((one for one in EXPLAINED if one.covers(ident)), None)
