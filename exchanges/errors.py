"""What can go wrong when exchanges are declared and bound. The broker translates these into reply codes."""
# ruff: noqa: PLR0911 - one case after the other


class ExchangeError(Exception):
    """Base of everything this package raises on purpose."""


class UnknownExchangeError(ExchangeError):
    """A name that no exchange of this router has."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no exchange {name!r}")
        self.name = name


class UnknownExchangeTypeError(ExchangeError):
    """A type that is not one of `router.EXCHANGE_TYPES`."""

    def __init__(self, type_name: str) -> None:
        super().__init__(f"unknown exchange type '{type_name}'")
        self.type_name = type_name


class InvalidDelayedTypeError(ExchangeError):
    """The `x-delayed-type` argument of an exchange that delays is missing or wrong; `str()` is the plugin's text."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"Invalid argument, {fault}")


class InvalidXMatch(ExchangeError):  # noqa: N818 - named after the argument it is about
    """The `x-match` argument of a headers binding is not one of the four words; `str()` is RabbitMQ's text.

    `field_type` is RabbitMQ's name of the field's type, `value` the field's value.
    """

    def __init__(self, field_type: str, value: object) -> None:
        self.field_type = field_type
        self.value = value
        term = _erlang_term(field_type, value)
        if field_type == "longstr":
            text = f"Invalid x-match field value {term}; expected all, any, all-with-x, or any-with-x"
        else:
            text = f"Invalid x-match field type {field_type} (value {term}); expected longstr"
        super().__init__(text)


def _erlang_term(field_type: str, value: object) -> str:
    """Print a field value the way Erlang's `~p` prints RabbitMQ's inner form of it."""
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
        entries = (
            f"{{{_erlang_term('longstr', key)},{_erlang_pair(item)[1:]}" for key, item in value.items()
        )
        return "[" + ",".join(entries) + "]"
    if isinstance(value, tuple):
        return "{" + ",".join(_erlang_term(field_type, part) for part in value) + "}"
    return str(value)


class TooManyHopsError(Exception):
    """A message would pass more exchanges than one message may.

    `reached` are the destinations that it has reached so far, `limit` is what was allowed.
    """

    def __init__(self, reached: tuple[object, ...], limit: int) -> None:
        super().__init__(f"more than {limit} hops between exchanges")
        self.reached = reached
        self.limit = limit


def _erlang_pair(field: tuple[str, object]) -> str:
    """Print one typed value as the pair {Type,Value}."""
    field_type, value = field
    return f"{{{field_type},{_erlang_term(field_type, value)}}}"


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}


def _erlang_binary(octets: bytes) -> str:
    """Print a binary: as a string where all of it is printable text, as numbers otherwise."""
    try:
        text = octets.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or not all(character.isprintable() or character in _ESCAPES for character in text):
        return "<<" + ",".join(str(octet) for octet in octets) + ">>"
    kind = "" if text.isascii() else "/utf8"
    return f'<<"{"".join(_ESCAPES.get(character, character) for character in text)}"{kind}>>'
