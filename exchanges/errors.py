"""Errors of declaring and binding exchanges, which the broker translates into reply codes."""
# ruff: noqa: PLR0911 - one case after the other


class ExchangeError(Exception):
    """Base class of all errors raised by this package."""


class UnknownExchangeError(ExchangeError):
    """Raised for a name that no exchange of this router has."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no exchange {name!r}")
        self.name = name


class UnknownExchangeTypeError(ExchangeError):
    """Raised for a type that is not one of `router.EXCHANGE_TYPES`."""

    def __init__(self, type_name: str) -> None:
        super().__init__(f"unknown exchange type '{type_name}'")
        self.type_name = type_name


class InvalidDelayedTypeError(ExchangeError):
    """Raised for a missing or invalid `x-delayed-type` of a delayed exchange; `str()` is the plugin's text."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"Invalid argument, {fault}")


class InvalidArgumentError(ExchangeError):
    """Raised for an argument of a declaration that the type refuses; `str()` is RabbitMQ's text, if it has one."""


class InvalidBindingError(ExchangeError):
    """Raised for a binding that the type of the source refuses; `str()` is RabbitMQ's text."""


class InvalidXMatch(InvalidBindingError):  # noqa: N818 - named after the argument it is about
    """Raised for an `x-match` argument that is not one of the four words; `str()` is RabbitMQ's text.

    `field_type` is RabbitMQ's name of the field's type, `value` the field's value.
    """

    def __init__(self, field_type: str, value: object) -> None:
        self.field_type = field_type
        self.value = value
        term = erlang_term(field_type, value)
        if field_type == "longstr":
            text = f"Invalid x-match field value {term}; expected all, any, all-with-x, or any-with-x"
        else:
            text = f"Invalid x-match field type {field_type} (value {term}); expected longstr"
        super().__init__(text)


def erlang_term(field_type: str, value: object) -> str:
    """Format a field value as Erlang's `~p` prints RabbitMQ's internal form of it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "undefined"
    if isinstance(value, str | bytes):
        octets = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
        return _erlang_binary(octets)
    if isinstance(value, list):
        return "[" + ",".join(_erlang_pair(item) for item in value) + "]"
    if isinstance(value, dict):
        entries = (f"{{{erlang_term('longstr', key)},{_erlang_pair(item)[1:]}" for key, item in value.items())
        return "[" + ",".join(entries) + "]"
    if isinstance(value, tuple):
        return "{" + ",".join(erlang_term(field_type, part) for part in value) + "}"
    return str(value)


class TooManyHopsError(Exception):
    """Raised if a message would pass more exchanges than the `limit`; `reached` has the destinations so far."""

    def __init__(self, reached: tuple[object, ...], limit: int) -> None:
        super().__init__(f"more than {limit} hops between exchanges")
        self.reached = reached
        self.limit = limit


def _erlang_pair(field: tuple[str, object]) -> str:
    """Format one typed value as the pair {Type,Value}."""
    field_type, value = field
    return f"{{{field_type},{erlang_term(field_type, value)}}}"


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}


def _erlang_binary(octets: bytes) -> str:
    """Format a binary: as a string if all of it is printable text, otherwise as numbers."""
    try:
        text = octets.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or not all(character.isprintable() or character in _ESCAPES for character in text):
        return "<<" + ",".join(str(octet) for octet in octets) + ">>"
    kind = "" if text.isascii() else "/utf8"
    return f'<<"{"".join(_ESCAPES.get(character, character) for character in text)}"{kind}>>'
