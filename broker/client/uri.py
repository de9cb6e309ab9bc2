"""AMQP URIs: `amqp://user:password@host:port/vhost`, or `amqps://` for TLS; special characters are percent-encoded.

Theory. `parse` is for people: it guesses, and explains. `endpoint_of` reads what RabbitMQ's own client reads (amqp_uri,
uri_parser): it accepts every URI that RabbitMQ accepts, with the same meaning, and each fault has RabbitMQ's text, an
Erlang term, because tools that set shovels show and compare it. The exception is a second `@`, which RabbitMQ takes for
a part of the host: here the login ends at the last one. Without a host the URI means the broker itself: no connection
over the network, and without a user no login.
"""

import re
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit

from leveret.broker.amqp.tables import string_text
from leveret.broker.client.options import AMQPLAIN, EXTERNAL, PLAIN, TLS, Options

PORTS = {"amqp": 5672, "amqps": 5671}
HEARTBEAT = 10  # default heartbeat of RabbitMQ's client, in seconds
TIMEOUT_MS = 60_000
_MECHANISMS = {"plain": PLAIN, "amqplain": AMQPLAIN, "external": EXTERNAL}
_MOST_PORT = 65_535
_NUMBERS = ("channel_max", "frame_max", "heartbeat", "connection_timeout")
_LOCAL_FIELDS = ("username", "virtual_host", "node", "adapter_info", "client_properties")
_FIELDS = (  # fields of RabbitMQ's connection parameters: of these a query may set the numbers only
    *("username", "virtual_host", "host", "port"),
    *_NUMBERS,
    *("ssl_options", "auth_mechanisms", "client_properties", "socket_options"),
)
_TLS_FIELDS = frozenset(
    (
        *("cacertfile", "certfile", "keyfile", "verify", "fail_if_no_peer_cert"),
        *("password", "server_name_indication", "depth"),
    )
)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_LOGIN = re.compile(r"""(?<=://)[^\s"]*@""")
"""A login up to the last `@` of its URI: a password may have a slash or another `@` without an escape."""
_SECRET = re.compile(r"([?&]password=)[^&#]*", re.IGNORECASE)


class UriError(ValueError):
    """A URI that is not an AMQP URI; the text contains no password."""


class MalformedUriError(ValueError):
    """A URI that RabbitMQ refuses; the text is the Erlang term that it reports."""


@dataclass(frozen=True)
class Address:
    """The broker to connect to, the login and the vhost; `str()` is the URI without the password."""

    host: str = "127.0.0.1"
    port: int = PORTS["amqp"]
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    is_tls: bool = False

    def __str__(self) -> str:
        scheme = "amqps" if self.is_tls else "amqp"
        return f"{scheme}://{quote(self.user, safe='')}@{self.endpoint}/{quote(self.vhost, safe='')}"

    @property
    def endpoint(self) -> str:
        """Host and port, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A broker to connect to, as a shovel names it."""

    shown: str  # the URI without login and query, as RabbitMQ shows it
    vhost: str  # the virtual host
    user: str | None  # name of the user; None for none, which only the broker itself accepts
    password: str | None  # None if there is none
    address: Address | None  # None for the broker itself
    options: Options  # options of the connection

    def __repr__(self) -> str:
        return f"<endpoint {self.shown}>"


# -- for people -------------------------------------------------------------------------------------------------------


def parse(uri: str) -> Address:
    """Parse an AMQP URI; parts that are absent have RabbitMQ's defaults, and query parameters are ignored.

    An empty vhost (`amqp://host/`) means `/`, as most clients have it. Raises UriError.
    """
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError as error:
        raise UriError(_reason(uri, error)) from None
    if parts.scheme not in PORTS or not uri.lower().startswith(f"{parts.scheme}://"):
        raise UriError("the URI must begin with amqp:// or amqps://")
    if parts.fragment:
        raise UriError("the URI contains '#', which must be written as %23")
    if port == 0:
        raise UriError("0 is not a port")
    return Address(
        host=_decode("host", parts.hostname or "") or Address.host,
        port=port or PORTS[parts.scheme],
        user=Address.user if parts.username is None else _decode("user name", parts.username),
        password=Address.password if parts.password is None else _decode("password", parts.password),
        vhost=_vhost(parts),
        is_tls=parts.scheme == "amqps",
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


# -- as RabbitMQ reads them -------------------------------------------------------------------------------------------


class _Query:
    """The query of a URI."""

    def __init__(self, text: str) -> None:
        self._items = [each.partition("=") for each in text.split("&")] if text else []
        pairs = [(name, value) for name, sign, value in self._items if sign]
        self.given: dict[str, str] = {}  # the first value of each name
        for name, value in pairs:
            self.given.setdefault(name, value)
        self.mechanisms = [value for name, value in pairs if name == "auth_mechanism"]
        """The values of `auth_mechanism`."""

    def fault(self, kind: str, name: str, reason: str) -> MalformedUriError:
        """Return the fault of a value, with the query as Erlang prints it, without a password in it."""
        items = [
            f"{{{_string(key)},{_string('***' if key == 'password' else value)}}}" if sign else _string(key)
            for key, sign, value in self._items
        ]
        return MalformedUriError(
            f"{{{kind},{name},{_string(self.given[name])},[{','.join(items)}],{reason}}}"
        )


class _Parts(NamedTuple):
    scheme: str
    userinfo: list[str]
    host: str
    port: int | None
    path: str
    query: _Query


def without_secrets(text: str) -> str:
    """Return a URI, or a text with URIs, without logins and passwords."""
    return _LOGIN.sub("", _SECRET.sub(r"\1***", text))


def refused_uri(uri: str) -> str:
    """Return a URI that was refused as errors may show it: also without a login that no scheme precedes."""
    return without_secrets(uri if "://" in uri else uri.rpartition("@")[2])


def endpoint_of(uri: str) -> Endpoint:
    """Return the endpoint of a shovel's URI; raises MalformedUriError."""
    try:
        return _endpoint(_split(uri))
    except MalformedUriError as fault:
        raise MalformedUriError(f"{{{fault},{_string(refused_uri(uri))}}}") from None


def _string(text: str) -> str:
    """Format a text as Erlang prints a list of characters, without what may be secret in it."""
    octets = without_secrets(text).encode("utf-8", "surrogateescape")
    return string_text(octets) or f"[{','.join(map(str, octets))}]" if octets else "[]"


def _split(uri: str) -> _Parts:
    scheme, colon, rest = uri.partition(":")
    if not colon:
        raise MalformedUriError("{unable_to_parse_uri,no_scheme}")
    userinfo: list[str] = []
    host, port = "", ""
    if rest.startswith("//"):
        match = re.search(r"[/?#]", rest[2:])
        end = len(rest) if match is None else 2 + match.start()
        authority, rest = rest[2:end], rest[end:]
        login, _, where = authority.rpartition("@")  # the last one: a name of a host has none
        userinfo = login.split(":") if login else []
        host, port = _host_and_port(uri, where)
    path_query, _, _ = rest.partition("#")
    path, _, query = path_query.partition("?")
    if port and _INTEGER.fullmatch(port) is None:
        raise _malformed(uri, "badarg")
    return _Parts(scheme, userinfo, host, int(port) if port else None, path, _Query(query))


def _host_and_port(uri: str, where: str) -> tuple[str, str]:
    if where.startswith("["):
        host, _, after = where[1:].partition("]")
        if after and ":" not in after:
            raise _malformed(uri, f"{{invalid_port,{_string(after)}}}")
        return host, after.partition(":")[2]
    host, colon, port = where.partition(":")
    if colon and not port:
        raise _malformed(uri, "badarg")
    return host, port


def _malformed(uri: str, reason: str) -> MalformedUriError:
    return MalformedUriError(f"{{unable_to_parse_uri,{{malformed_uri,{_string(uri)},{reason}}}}}")


def _endpoint(parts: _Parts) -> Endpoint:
    scheme, port = parts.scheme.lower(), parts.port
    if scheme not in PORTS:
        raise MalformedUriError(f"{{unexpected_uri_scheme,{_string(scheme)}}}")
    if port is not None and not 0 < port <= _MOST_PORT:
        raise MalformedUriError(f"{{port_out_of_range,{port}}}")
    vhost = "/"
    if parts.path:
        if "/" in parts.path[1:]:
            raise MalformedUriError(f"{{invalid_vhost,{_string(parts.path[1:].rpartition('@')[2])}}}")
        vhost = _unescaped(parts.path[1:])
    if not parts.host and port is not None:
        raise MalformedUriError("port_requires_host")
    login = [_unescaped(each) for each in parts.userinfo[:2]]
    user, password = (*login, None, None)[:2]
    shown = f"{parts.scheme}://{parts.host}{'' if port is None else f':{port}'}{parts.path}"
    options = _options(parts.query, is_local=not parts.host)
    if scheme == "amqps":
        if not parts.host:
            raise MalformedUriError("{badrecord,amqp_params_direct}")
        options = replace(options, tls=_tls(parts.query))
    if not parts.host:
        return Endpoint(shown, vhost, user, password, None, options)
    address = Address(
        _unescaped(parts.host),
        port or PORTS[scheme],
        Address.user if user is None else user,
        Address.password if password is None else password,
        vhost,
    )
    return Endpoint(shown, vhost, address.user, address.password, address, options)


def _options(query: _Query, *, is_local: bool) -> Options:
    numbers = {"heartbeat": HEARTBEAT, "connection_timeout": TIMEOUT_MS}
    for name in _LOCAL_FIELDS if is_local else _FIELDS:
        value = query.given.get(name)
        if value is None:
            continue
        if name not in _NUMBERS:
            reason = f"{{parameter_unconfigurable_in_query,{name},{_string(value)}}}"
        elif _INTEGER.fullmatch(value) is None:
            reason = f"{{not_an_integer,{_string(value)}}}"
        else:
            numbers[name] = int(value)
            continue
        raise query.fault("invalid_amqp_params_parameter", name, reason)
    options = Options(
        heartbeat=min(max(0, numbers["heartbeat"]), _MOST_PORT),
        seconds=max(1, numbers["connection_timeout"]) / 1000,
        mechanisms=(PLAIN, AMQPLAIN) if is_local else _mechanisms(query),
    )
    if numbers.get("frame_max", 0) > 0:
        options = replace(options, frame_max=numbers["frame_max"])
    if numbers.get("channel_max", 0) > 0:
        options = replace(options, channel_max=min(numbers["channel_max"], _MOST_PORT))
    return options


def _mechanisms(query: _Query) -> tuple[str, ...]:
    for each in query.mechanisms:
        if each not in _MECHANISMS:
            raise MalformedUriError(f"{{not_mechanism,[{','.join(map(_string, each.split(':')))}]}}")
    return tuple(_MECHANISMS[each] for each in query.mechanisms) or (PLAIN, AMQPLAIN)


def _tls(query: _Query) -> TLS:
    """Return the TLS options of a query; unlike Erlang's before OTP 26, the broker is verified by default."""
    given = {name: value for name, value in query.given.items() if name in _TLS_FIELDS}
    for name, value in given.items():
        if name == "fail_if_no_peer_cert" and value not in {"true", "false"}:
            reason = f"{{require_boolean,{value}}}"
        elif name == "depth" and _INTEGER.fullmatch(value) is None:
            reason = f"{{not_an_integer,{_string(value)}}}"
        elif name == "verify" and value not in {"verify_peer", "verify_none"}:
            reason = f"{{invalid_verify,{value}}}"
        else:
            continue
        raise query.fault("invalid_ssl_parameter", name, reason)
    files = {
        name: _unescaped(given.get(name, "")) for name in ("cacertfile", "certfile", "keyfile", "password")
    }
    name = given.get("server_name_indication", "")
    return TLS(
        **files,
        is_verified=given.get("verify") != "verify_none",
        server_name=None if name == "disable" else _unescaped(name),
    )


def _unescaped(text: str) -> str:
    """Return a text without percent-encoding; raises MalformedUriError if that is invalid."""
    for match in re.finditer("%(.{0,2})", text):
        digits = match[1]
        codes = "".join(f",{ord(each)}" for each in digits)
        if len(digits) < 2:  # noqa: PLR2004 - digits of an octet
            raise MalformedUriError(f"{{unterminated_entity,['%'{codes}]}}")
        if re.fullmatch("[0-9a-fA-F]{2}", digits) is None:
            raise MalformedUriError(f"{{invalid_entitiy,['%'{codes}]}}")
    return unquote(text, errors="surrogateescape")
