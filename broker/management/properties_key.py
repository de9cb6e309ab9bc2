"""The last segment of a binding's path: its binding key and a hash of its arguments, as in RabbitMQ."""

from base64 import urlsafe_b64encode
from typing import Any
from urllib.parse import quote, quote_plus, unquote_plus

from leveret.broker.amqp.tables import Field, Table
from leveret.broker.management.term_hash import Atom, term_hash

_EMPTY = "~"


def properties_key(binding_key: str, arguments: Table) -> str:
    """Return the name of a binding among those of the same source and destination.

    Args:
        binding_key: its binding key.
        arguments: its arguments.

    """
    if not binding_key and not arguments:
        return _EMPTY
    key = quote_plus(binding_key, safe="", encoding="utf-8", errors="surrogateescape").replace("~", "%7E")
    if not arguments:
        return key
    number = term_hash(_fields(dict(sorted(arguments.items()))))
    return f"{key}~{urlsafe_b64encode(number.to_bytes(4, 'big')).decode().rstrip('=')}"


def canonical(key: str) -> str:
    """Return the name of a binding as `properties_key` writes it: clients may percent-encode it otherwise."""
    binding_key, separator, number = key.partition("~")
    if not binding_key:
        return key
    return properties_key(unquote_plus(binding_key, errors="surrogateescape"), {}) + separator + number


def location(destination: str, key: str) -> str:
    """Return the path of a new binding, relative to that of the request."""
    name = quote(destination, safe="", encoding="utf-8", errors="surrogateescape")
    return f"{name}/{quote_plus(key, safe='~')}"


def _fields(table: Table) -> list[Any]:
    return [(_octets(name), Atom(field[0]), _value(field)) for name, field in table.items()]


def _value(field: Field) -> Any:
    kind, value = field
    match kind:
        case "table":
            return _fields(value)
        case "array":
            return [(Atom(each[0]), _value(each)) for each in value]
        case "void":
            return Atom("undefined")
    return _octets(value) if isinstance(value, str) else value


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
