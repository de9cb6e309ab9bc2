"""AMQP URIs: `amqp://user:password@host:port/vhost`, or `amqps://` for TLS; special characters are percent-encoded."""

from dataclasses import dataclass, field
from urllib.parse import SplitResult, quote, unquote, urlsplit

SCHEME, TLS_SCHEME = "amqp", "amqps"
PORT, TLS_PORT = 5672, 5671


class UriError(ValueError):
    """A URI that is not an AMQP URI; the text contains no password."""


@dataclass(frozen=True)
class Address:
    """The broker to connect to, the login and the vhost; `str()` is the URI without the password."""

    host: str = "127.0.0.1"
    port: int = PORT
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    is_tls: bool = False

    def __str__(self) -> str:
        scheme = TLS_SCHEME if self.is_tls else SCHEME
        return f"{scheme}://{quote(self.user, safe='')}@{self.endpoint}/{quote(self.vhost, safe='')}"

    @property
    def endpoint(self) -> str:
        """Host and port, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(uri: str) -> Address:
    """Parse an AMQP URI; parts that are absent have RabbitMQ's defaults, and query parameters are ignored.

    An empty vhost (`amqp://host/`) means `/`, as most clients have it.

    Raises:
        UriError: it is not an AMQP URI, or a part of it is not valid.
    """
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError as error:
        raise UriError(_reason(uri, error)) from None
    if parts.scheme not in {SCHEME, TLS_SCHEME} or not uri.lower().startswith(f"{parts.scheme}://"):
        raise UriError("the URI must begin with amqp:// or amqps://")
    is_tls = parts.scheme == TLS_SCHEME
    if parts.fragment:
        raise UriError("the URI contains '#', which must be written as %23")
    if port == 0:
        raise UriError("0 is not a port")
    return Address(
        host=_decode("host", parts.hostname or "") or Address.host,
        port=port or (TLS_PORT if is_tls else PORT),
        user=Address.user if parts.username is None else _decode("user name", parts.username),
        password=Address.password if parts.password is None else _decode("password", parts.password),
        vhost=_vhost(parts),
        is_tls=is_tls,
    )


def _vhost(parts: SplitResult) -> str:
    path = parts.path[1:]
    if path in {"", "/"}:
        return "/"
    if "/" in path:
        raise UriError("the path of the URI has several parts; write a '/' in the name of a vhost as %2F")
    return _decode("vhost", path)


def _decode(name: str, text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise UriError(f"the {name} in the URI is not UTF-8") from None


def _reason(uri: str, error: ValueError) -> str:
    """Return a reason without the URI, which may contain a password."""
    if "port" in str(error).lower():
        return (
            "the port in the URI is not a number from 1 to 65535; "
            "a user name or password must have '@', ':', '/', '#' as %40, %3A, %2F, %23"
        )
    return (
        "the URI is not valid; an IPv6 address must be in brackets" if "[" in uri else "the URI is not valid"
    )
