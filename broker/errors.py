"""Reply codes, the errors that close a channel or a connection, and texts for messages.

Lower packages raise their own exceptions, this module defines what is reported to the client, and only `Connection`
turns an `AMQPError` into a close method. The texts are RabbitMQ's, because clients and test suites match on them.
"""

import difflib
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import partial
from itertools import islice
from typing import Final


class ReplyCode(IntEnum):
    """The reply codes of AMQP 0-9-1 (spec 1.8, `amqp0-9-1.xml` constants)."""

    REPLY_SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541

    @property
    def is_hard(self) -> bool:
        """True if the code closes the connection (hard) rather than the channel (soft)."""
        return self not in _SOFT


_SOFT = frozenset({
    ReplyCode.CONTENT_TOO_LARGE, ReplyCode.NO_ROUTE, ReplyCode.NO_CONSUMERS, ReplyCode.ACCESS_REFUSED,
    ReplyCode.NOT_FOUND, ReplyCode.RESOURCE_LOCKED, ReplyCode.PRECONDITION_FAILED,
})  # fmt: skip


class AMQPError(Exception):
    """An error that is reported to the client with `channel.close` or `connection.close`.

    The code alone determines whether the channel (soft) or the connection (hard) is closed. The explanation is the part
    of the reply text after `NAME - `, '' for the name alone. If class and method are 0, the connection fills in what it
    was executing.
    """

    def __init__(self, code: ReplyCode, explanation: str = "", class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(code, explanation)
        self.code = code
        self.explanation = explanation
        self.class_id = class_id
        self.method_id = method_id

    @property
    def is_hard(self) -> bool:
        """True if this error closes the connection."""
        return self.code.is_hard

    @property
    def reply_text(self) -> str:
        """The reply text, `NAME - explanation`; the codec truncates it to fit a shortstr, as RabbitMQ does."""
        return f"{self.code.name} - {self.explanation}" if self.explanation else self.code.name


class NoResourceError(AMQPError):
    """506 that closes the channel although the code is a hard one: the connection may have consumers.

    These free space and, on other channels, go on with their work.
    """

    is_hard = False

    def __init__(self, explanation: str) -> None:
        super().__init__(ReplyCode.RESOURCE_ERROR, explanation)


class FrameError(AMQPError):
    """A malformed frame: `connection.close` is sent, and nothing more is read from that socket.

    RabbitMQ treats it as fatal: after `connection.close` it closes the socket without waiting for close-ok.
    """

    def __init__(self, explanation: str) -> None:
        super().__init__(ReplyCode.FRAME_ERROR, explanation)


class UnansweredError(FrameError):
    """Input at which the reader of RabbitMQ 4.3 crashes: the socket is closed without `connection.close`."""


Subscribe = Callable[[Callable[[], object]], object]  # registers a callback for an event


class NotYet(Exception):  # noqa: N818 - not an error: the method will be executed later
    """Raised by a handler whose method cannot be executed yet. The handler must not have changed anything.

    The connection executes nothing more until the callback is called, then executes the method again. `subscribe`
    registers that callback, and must not call it immediately. `retry` is the rest of a publish whose content has
    arrived, to be called instead, and may raise the same errors.
    """

    def __init__(self, subscribe: Subscribe, retry: Callable[[], object] | None = None) -> None:
        super().__init__("not yet")
        self.subscribe = subscribe
        self.retry = retry


def no_disk_space(effect: str) -> AMQPError:
    """506 RESOURCE_ERROR that closes a channel because the disk is full; `effect` is what that means for a method."""
    return NoResourceError(f"no disk space left: {effect}")


def denied_feature(name: str, *, by_default: bool = True) -> AMQPError:
    """541 that closes a connection because of a feature that RabbitMQ has deprecated, with its text.

    `by_default`: the release denies it, as 4.3 does, and not the configuration alone.
    """
    if by_default:
        why = "By default, this feature is not permitted anymore.\nThe feature will be removed from a future major"
        when = "version, regardless of the configuration; actual version"
    else:
        why = (
            "Its use is not permitted per the configuration (overriding the default, which is permitted):\n"
            f'    "deprecated_features.permit.{name} = false"\n'
            "Its use will not be permitted by default in a future minor"
        )
        when = "version and the feature will be removed from a future major RabbitMQ version; actual versions"
    return AMQPError(
        ReplyCode.INTERNAL_ERROR,
        f"Feature `{name}` is deprecated.\n{why} RabbitMQ {when} to be determined.\n"
        "To continue using this feature when it is not permitted by default, set the "
        f'following parameter in your configuration:\n    "deprecated_features.permit.{name} = true"',
    )


access_refused = partial(AMQPError, ReplyCode.ACCESS_REFUSED)
not_found = partial(AMQPError, ReplyCode.NOT_FOUND)
resource_locked = partial(AMQPError, ReplyCode.RESOURCE_LOCKED)
precondition_failed = partial(AMQPError, ReplyCode.PRECONDITION_FAILED)
not_allowed = partial(AMQPError, ReplyCode.NOT_ALLOWED)
not_implemented = partial(AMQPError, ReplyCode.NOT_IMPLEMENTED)


def resource(kind: str, name: str, vhost: str) -> str:
    """Format a resource name as RabbitMQ does in its texts: `queue 'q' in vhost '/'`."""
    return f"{kind} '{name}' in vhost '{vhost}'"


_LENGTH: Final = 3  # difference in length up to which a name is compared
_MOST: Final = 300  # names that are compared, which takes a moment
_SIMILAR: Final = 0.7


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of an error about a name that does not exist; '' if no name with its first letter is like it."""
    near = (each for each in names if each[:1] == name[:1] and abs(len(each) - len(name)) <= _LENGTH)
    found = difflib.get_close_matches(name, list(islice(near, _MOST)), 1, _SIMILAR)
    return f"; did you mean '{found[0]}'?" if found else ""
