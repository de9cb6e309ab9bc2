"""SASL mechanisms: from the response in `start-ok` to a user name and a password.

Only reading happens here; whether the password is right is `broker.auth.users`'s business.
"""
# ruff: noqa: PLR2004 - offsets and numbers of the format are named beside them

from collections.abc import Callable, Sequence

from leveret.broker.amqp.errors import MalformedResponse, MalformedTable, UnknownMechanism
from leveret.broker.amqp.tables import decode_fields
from leveret.broker.auth.passwords import Password

Credentials = tuple[str, Password]
"""User name and password."""


def plain(response: str) -> Credentials:
    """Read a PLAIN response: NUL, user, NUL, password (RFC 4616 without an authorisation identity).

    Raises:
        MalformedResponse: anything else, an authorisation identity and a third NUL included, as for
            rabbit_auth_mechanism_plain. RabbitMQ's text quotes the response with its password; ours does not.
    """
    parts = response.split("\0")
    if len(parts) != 3 or parts[0]:
        raise MalformedResponse("response <<...>> invalid")
    return parts[1], Password(parts[2])


def amqplain(response: str) -> Credentials:
    """Read an AMQPLAIN response: a field table without its length, with LOGIN and PASSWORD.

    Raises:
        MalformedResponse: in rabbit_auth_mechanism_amqplain's words, but without the table.
    """
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


MECHANISMS: dict[str, Callable[[str], Credentials]] = {"PLAIN": plain, "AMQPLAIN": amqplain}
"""Mechanisms that this broker knows, in the order in which RabbitMQ's configuration names them."""


def mechanisms(enabled: Sequence[str] = tuple(MECHANISMS)) -> str:
    """Return what `connection.start` offers: the known ones among `enabled`, with spaces between."""
    return " ".join(name for name in enabled if name in MECHANISMS)


def read_response(mechanism: str, response: str, enabled: Sequence[str] = tuple(MECHANISMS)) -> Credentials:
    """Read a response by the mechanism that the client chose.

    Raises:
        UnknownMechanism: the mechanism is not known or not enabled.
        MalformedResponse: the mechanism cannot read the response.
    """
    reader = MECHANISMS.get(mechanism)
    if reader is None:
        raise UnknownMechanism(f"unknown authentication mechanism '{mechanism}'")
    if mechanism not in enabled:
        raise UnknownMechanism(f"invalid authentication mechanism '{mechanism}'")
    return reader(response)
