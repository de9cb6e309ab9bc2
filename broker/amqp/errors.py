"""Exceptions for malformed input from a client; `broker.errors` has the AMQP reply codes."""

# ruff: noqa: N818 - the names say what is wrong with the input; none is an error of this program


class WireError(Exception):
    """Input that is not AMQP 0-9-1 as RabbitMQ parses it; `str()` explains it, for a reply text or a log line."""


class MalformedTable(WireError):
    """A field table that exceeds its length or has an unknown tag, at which RabbitMQ fails with 541 INTERNAL_ERROR."""


class TableTooLarge(MalformedTable):
    """A table with more levels or values than the broker takes; the text names the limit. RabbitMQ has none."""


class MalformedProperties(WireError):
    """A content header whose property list does not match its flags; 541 INTERNAL_ERROR in RabbitMQ."""


class HeadersTooLarge(MalformedProperties):
    """A content header with headers that are `TableTooLarge`."""


class MalformedMethod(WireError):
    """A method payload that does not match the method's fields.

    `explanation` is RabbitMQ's text after `FRAME_ERROR - `, or '' where RabbitMQ replies with only
    `INTERNAL_ERROR` (a malformed field table: 541 rather than 501). `class_id` and `method_id` are those that
    RabbitMQ puts into the close method, 0 where it has none.
    """

    def __init__(self, explanation: str, class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(explanation or "malformed field table")
        self.explanation = explanation
        self.class_id = class_id
        self.method_id = method_id


class MethodTooLarge(MalformedMethod):
    """A method with a table that is `TableTooLarge`; `explanation` names the limit."""


class UnknownMethod(WireError):
    """A class and method number that AMQP 0-9-1 with RabbitMQ's extensions does not define."""

    def __init__(self, class_id: int, method_id: int) -> None:
        super().__init__(f"unknown method {class_id}.{method_id}")
        self.class_id = class_id
        self.method_id = method_id


class MalformedResponse(WireError):
    """A SASL response that its mechanism cannot parse; the text never contains any of the response."""


class InvalidExpiration(WireError):
    """An `expiration` property that is not a number of milliseconds; the text is RabbitMQ's reason term."""


class UnknownMechanism(WireError):
    """A SASL mechanism that is not supported or not enabled (503 in RabbitMQ's log)."""
