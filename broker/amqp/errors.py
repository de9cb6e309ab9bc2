"""What can be wrong with octets from a client; `broker.errors` gives these their AMQP reply codes."""

# ruff: noqa: N818 - the names say what is wrong with the octets; none is an error of this program


class WireError(Exception):
    """Octets that are not AMQP 0-9-1 as RabbitMQ reads it.

    Str of the exception is the explanation for a reply text or a log line.
    """


class MalformedTable(WireError):
    """A field table that runs past its length, has an unknown type tag, or is too deep or too large.

    RabbitMQ has no clause for such a table and fails with 541 INTERNAL_ERROR.
    """


class MalformedProperties(WireError):
    """A content header whose property list does not match its flags; 541 INTERNAL_ERROR in RabbitMQ."""


class MalformedMethod(WireError):
    """A method payload that does not match the method's fields.

    `explanation` is RabbitMQ's text after `FRAME_ERROR - `, or '' where RabbitMQ only says
    `INTERNAL_ERROR` (a malformed field table: 541 rather than 501). `class_id` and `method_id` are what
    RabbitMQ puts into the close method, 0 where it names none.
    """

    def __init__(self, explanation: str, class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(explanation or "malformed field table")
        self.explanation = explanation
        self.class_id = class_id
        self.method_id = method_id


class UnknownMethod(WireError):
    """A class and method number that AMQP 0-9-1 with RabbitMQ's extensions does not define."""

    def __init__(self, class_id: int, method_id: int) -> None:
        super().__init__(f"unknown method {class_id}.{method_id}")
        self.class_id = class_id
        self.method_id = method_id


class MalformedResponse(WireError):
    """A SASL response that its mechanism cannot read; the text never contains what the client sent."""


class InvalidExpiration(WireError):
    """An `expiration` property that is no number of milliseconds; the text is RabbitMQ's reason term."""


class UnknownMechanism(WireError):
    """A SASL mechanism that this broker does not know or does not offer (503 in RabbitMQ's log)."""
