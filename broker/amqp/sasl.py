"""SASL mechanisms: parse the response in `start-ok` into user name and password, which `auth.users` verifies."""
# ruff: noqa: PLR2004 - offsets and constants of the format are explained next to them

from collections.abc import Callable, Collection, Sequence

from leveret.broker.amqp.errors import MalformedResponse, MalformedTable, UnknownMechanism
from leveret.broker.amqp.tables import decode_fields
from leveret.broker.auth.passwords import Password

Credentials = tuple[str, Password]  # user name and password


def plain(response: str) -> Credentials:
    """Parse a PLAIN response: NUL, user, NUL, password (RFC 4616 without an authorisation identity).

    Raises MalformedResponse for anything else, as rabbit_auth_mechanism_plain. RabbitMQ's text quotes the response with
    its password; ours does not.
    """
    parts = response.split("\0")
    if len(parts) != 3 or parts[0]:
        raise MalformedResponse("response <<...>> invalid")
    return parts[1], Password(parts[2])


def amqplain(response: str) -> Credentials:
    """Parse an AMQPLAIN response, a field table without its length; raises MalformedResponse."""
    try:
        fields = decode_fields(response.encode("utf-8", "surrogateescape"))
    except MalformedTable as error:
        raise MalformedResponse(f"AMQPLAIN auth info <<...>> invalid: {error}") from error
    login, password = fields.get("LOGIN"), fields.get("PASSWORD")
    if login is None or password is None:
        raise MalformedResponse("AMQPLAIN auth info <<...>> is missing LOGIN or PASSWORD field")
    if login[0] != "longstr" or password[0] != "longstr":
        raise MalformedResponse(
            "AMQPLAIN auth info <<...>> uses unsupported type for LOGIN or PASSWORD field"
        )
    return login[1], Password(password[1])


ANONYMOUS = "ANONYMOUS"  # as the user of the configuration, whatever the response (RFC 4505)
EXTERNAL = "EXTERNAL"  # A login by the certificate of a TLS client (`broker.connection.handshake`)

MECHANISMS: dict[str, Callable[[str], Credentials]] = {"PLAIN": plain, "AMQPLAIN": amqplain}
"""Supported mechanisms, in the order of RabbitMQ's configuration."""


def mechanisms(enabled: Sequence[str] = tuple(MECHANISMS), more: Collection[str] = ()) -> str:
    """Return the mechanisms for `connection.start`, separated by spaces; `more` are those that need no response."""
    return " ".join(name for name in enabled if name in MECHANISMS or name in more)


def read_response(mechanism: str, response: str, enabled: Sequence[str] = tuple(MECHANISMS)) -> Credentials:
    """Parse a response with the mechanism that the client chose; raises UnknownMechanism or MalformedResponse."""
    reader = MECHANISMS.get(mechanism)
    if reader is None:
        raise UnknownMechanism(f"unknown authentication mechanism '{mechanism}'")
    if mechanism not in enabled:
        raise UnknownMechanism(f"invalid authentication mechanism '{mechanism}'")
    return reader(response)
