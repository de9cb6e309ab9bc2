"""The login of a client: its properties, and the response of a SASL mechanism."""

from leveret import __version__
from leveret.broker.amqp.tables import encode_table
from leveret.broker.client.options import AMQPLAIN, EXTERNAL, Options


def properties_of(options: Options) -> dict[str, object]:
    """Return the properties that the broker shows to operators."""
    return {
        "product": options.product,
        "version": __version__,
        **({"connection_name": options.name} if options.name else {}),
        "capabilities": {
            "authentication_failure_close": True,
            "basic.nack": True,
            "connection.blocked": True,
            "consumer_cancel_notify": True,
            "publisher_confirms": True,
        },
    }


def response_of(mechanism: str, user: str, password: str) -> str:
    """Return the response of a SASL mechanism."""
    if mechanism == EXTERNAL:
        return ""
    if mechanism == AMQPLAIN:
        fields = encode_table({"LOGIN": ("longstr", user), "PASSWORD": ("longstr", password)})
        return fields[4:].decode("utf-8", "surrogateescape")  # without its length
    return f"\0{user}\0{password}"
