"""Options of a client's connection, its properties and SASL response, and the product of the broker."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from leveret import __version__
from leveret.broker.amqp.tables import encode_table

FRAME_MAX = 131_072
CHANNEL_MAX = 2047
CALL_SECONDS = 10.0  # default time for the broker to accept a connection or to reply to a method
PLAIN, AMQPLAIN, EXTERNAL = "PLAIN", "AMQPLAIN", "EXTERNAL"


@dataclass(frozen=True, slots=True)
class TLS:
    """The encryption of a connection, and the verification of the broker."""

    cacertfile: str = ""  # PEM file with the authorities that are trusted; '' for those of the system
    # certfile, keyfile: PEM files of the client's own certificate; '' for none
    certfile: str = ""
    keyfile: str = ""
    password: str = field(default="", repr=False)  # password of the key file
    is_verified: bool = True  # whether the broker's certificate must be valid and for this host
    # name in the broker's certificate, and for SNI; '' for the host of the address, None for neither
    server_name: str | None = ""
    # the directory that the files must be in; '' if none may be named, None for any
    directory: str | None = None

    @property
    def files(self) -> list[Path]:
        """The files that are named."""
        return [Path(each) for each in (self.cacertfile, self.certfile, self.keyfile) if each]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a connection."""

    product: str = "leveret"  # what the client says it is
    name: str = ""  # name of the connection for operators; '' for none
    heartbeat: int = 0  # seconds; 0 for none, unless the broker asks for some
    seconds: float = CALL_SECONDS  # time for the broker to accept the connection and for each reply
    # frame_max, channel_max: limits that the client proposes; frame_max in bytes
    frame_max: int = FRAME_MAX
    channel_max: int = CHANNEL_MAX
    # names of SASL mechanisms; the first that the broker offers is used
    mechanisms: tuple[str, ...] = (PLAIN,)
    tls: TLS | None = None  # None for no encryption


DEFAULT = Options()


def negotiated(ours: int, theirs: int) -> int:
    """Return the value of a limit or heartbeat that both sides accept: 0 means no limit or no heartbeat."""
    return min(ours, theirs) if ours and theirs else ours or theirs


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


class Product(msgspec.Struct, frozen=True):
    """Product and version of the broker, as it reports them; empty if it reports none."""

    product: str
    version: str


def product_of(properties: Mapping[str, object]) -> Product:
    """Return what the broker is; Leveret's product and version are RabbitMQ's, whose behaviour it has."""
    if "leveret_version" in properties:
        return Product("Leveret", str(properties["leveret_version"]))
    return Product(str(properties.get("product", "")), str(properties.get("version", "")))
