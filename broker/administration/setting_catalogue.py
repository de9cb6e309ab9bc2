"""The settings that arguments of queues and policies can give: their values and what they are for, as forms offer them.

A test has the validators accept every value that is offered here, and finds settings that are missing.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from leveret.broker.queue.arguments import (
    DEDUPLICATE_MODES,
    MAX_EXPIRY_MS,
    MOST_WINDOW_MS,
    OF_QUEUES,
    OVERFLOWS,
    RETRY_TYPES,
)
from leveret.broker.vhost.policies import CLASSIC_QUEUES, EXCHANGES, QUORUM_QUEUES, STREAMS, known_keys
from leveret.confirm.modes import CONFIRM_MODES

QUEUES: Final = (CLASSIC_QUEUES, QUORUM_QUEUES)
_STREAMS: Final = (STREAMS,)
_ALL_QUEUES: Final = (*QUEUES, STREAMS)
_CLASSIC: Final = (CLASSIC_QUEUES,)


class Setting(NamedTuple):
    """A setting: the type of its value, the kinds of objects that have it, and its help."""

    name: str  # name as a key of policies; as an argument it has `x-` before it
    type: str  # `integer`, `text`, `boolean` or `choice`
    help: str  # what it does, in a sentence or two
    kinds: tuple[str, ...] = QUEUES  # the kinds, in the terms of a policy's `apply-to`
    minimum: int = 0
    maximum: int | None = None  # greatest number; None for any
    unit: str = ""  # of a number
    choices: tuple[str, ...] = ()  # the values of a choice

    @property
    def is_argument(self) -> bool:
        """True if queues have it as an argument."""
        return f"x-{self.name}" in OF_QUEUES


_INTEGER, _TEXT, _BOOLEAN, _CHOICE = "integer", "text", "boolean", "choice"
SETTINGS: Final = (
    Setting("confirm-mode", _CHOICE, "When publishers get their confirms: standard once a message is stored, the "
            "others once a consumer has acknowledged it.", _CLASSIC, choices=tuple(CONFIRM_MODES)),
    Setting("message-ttl", _INTEGER, "Messages expire after this time: they are deleted or dead-lettered.",
            maximum=MAX_EXPIRY_MS, unit="ms"),
    Setting("max-length", _INTEGER, "Number of ready messages at which the queue is full: see overflow.",
            unit="messages"),
    Setting("max-length-bytes", _INTEGER, "Size of the bodies of ready messages at which the queue is full. A "
            "stream deletes its oldest messages.", _ALL_QUEUES, unit="bytes"),
    Setting("max-age", _TEXT, "A stream deletes messages that are older than this: a number and Y, M, D, h, m or s.",
            _STREAMS),
    Setting("stream-max-segment-size-bytes", _INTEGER, "Size of the messages that a stream deletes together, at most "
            "64 MiB.", _STREAMS, unit="bytes"),
    Setting("overflow", _CHOICE, "A full queue drops its oldest message, or refuses the new one, which "
            "reject-publish-dlx dead-letters.", choices=OVERFLOWS),
    Setting("dead-letter-exchange", _TEXT, "Exchange that gets the messages that are rejected, expire or do not fit; "
            "empty for the default exchange. Without it they are deleted."),
    Setting("dead-letter-routing-key", _TEXT, "Routing key of dead letters: with the default exchange the name of a "
            "queue. Without it they keep their own."),
    Setting("delivery-limit", _INTEGER, "Number of times that a message may come back before it is discarded.",
            unit="times"),
    Setting("delayed-retry-type", _CHOICE, "Messages that come back wait before they are delivered again: all, or "
            "those that failed, or that were returned.", choices=RETRY_TYPES),
    Setting("delayed-retry-min", _INTEGER, "First delay of a message that comes back.", minimum=1, unit="ms"),
    Setting("delayed-retry-max", _INTEGER, "Longest delay of a message that comes back.", minimum=1, unit="ms"),
    Setting("delayed-retry-multiplier", _INTEGER, "Factor by which the delay grows each time.", minimum=1),
    Setting("delayed-retry-jitter", _INTEGER, "Percentage by which a delay may be shorter, so that messages that "
            "failed together come back apart.", maximum=100, unit="%"),
    Setting("max-priority", _INTEGER, "Messages with a higher priority, up to this number, are delivered first. Less "
            "than 10 levels are enough.", _CLASSIC, maximum=255),
    Setting("single-active-consumer", _BOOLEAN, "One consumer gets all messages, until it goes and another follows."),
    Setting("expires", _INTEGER, "The queue is deleted with its messages after this time without consumers, basic.get "
            "and declarations.", minimum=1, maximum=MAX_EXPIRY_MS, unit="ms"),
    Setting("consumer-timeout", _INTEGER, "Time for which a delivery may stay unacknowledged; then its channel is "
            "closed. 0 for no limit.", _ALL_QUEUES, unit="ms"),
    Setting("retain-for", _INTEGER, "Acknowledged messages are kept for this time, for a replay.",
            maximum=MAX_EXPIRY_MS, unit="ms"),
    Setting("retain-bytes", _INTEGER, "Size of the messages that are kept for a replay at most.", unit="bytes"),
    Setting("allow-hold", _BOOLEAN, "Messages with the header x-deliver-at or x-delay are held until then.",
            _ALL_QUEUES),
    Setting("hold-until-header", _TEXT, "Name of another header that says until when a message is held.",
            _ALL_QUEUES),
    Setting("max-held", _INTEGER, "Number of messages that are held at most.", _ALL_QUEUES, unit="messages"),
    Setting("deduplicate", _TEXT, "The id of a message, so that the queue or exchange takes each once: message_id, "
            "body, or header:NAME.", (*_ALL_QUEUES, EXCHANGES)),
    Setting("deduplicate-mode", _CHOICE, "How long an id is known: a time from the publish, while the message is "
            "queued, or until it is settled.", choices=DEDUPLICATE_MODES),
    Setting("deduplicate-for", _INTEGER, "Time for which an id is known, from the publish or, in the mode running, "
            "from the end of its message.", (*_ALL_QUEUES, EXCHANGES), maximum=MOST_WINDOW_MS, unit="ms"),
    Setting("queue-mode", _CHOICE, "lazy keeps as few messages as possible in memory.", _CLASSIC,
            choices=("default", "lazy")),
    Setting("alternate-exchange", _TEXT, "Exchange that gets the messages that an exchange can route to no queue.",
            (EXCHANGES,)),
)  # fmt: skip
"""In the order in which forms offer them."""


def catalogue() -> Iterator[dict[str, Any]]:
    """Yield the settings that this broker has: with their names as arguments, and the policies that may have them."""
    policies, operator_policies = known_keys(operator=False), known_keys(operator=True)
    for each in SETTINGS:
        is_policy = each.name in policies
        if each.is_argument or is_policy:
            yield each._asdict() | {
                "argument": f"x-{each.name}" if each.is_argument else None,
                "policy": is_policy,
                "operator_policy": each.name in operator_policies,
            }
