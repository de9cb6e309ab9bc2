"""AMQP URIs as RabbitMQ's own client reads them (amqp_uri, uri_parser), with its faults as Erlang terms.

Theory. `uri.parse` is for people: it guesses, and explains. Here every URI that RabbitMQ accepts is accepted with the
same meaning, and every fault has RabbitMQ's text, because tools that set shovels show and compare it. The exception is
a second `@`, which RabbitMQ takes for a part of the host: here the login ends at the last one. Without a host
the URI means the broker itself: no connection over the network, and without a user no login.
"""

import re
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import unquote

from leveret.broker.amqp.tables import string_text
from leveret.broker.client.options import AMQPLAIN, EXTERNAL, PLAIN, TLS, Options
from leveret.broker.client.uri import Address

PORTS = {"amqp": 5672, "amqps": 5671}
HEARTBEAT = 10
"""Default heartbeat of RabbitMQ's client, in seconds."""
TIMEOUT_MS = 60_000
_MECHANISMS = {"plain": PLAIN, "amqplain": AMQPLAIN, "external": EXTERNAL}
_MOST_PORT = 65_535
_NUMBERS = ("channel_max", "frame_max", "heartbeat", "connection_timeout")
_LOCAL_FIELDS = ("username", "virtual_host", "node", "adapter_info", "client_properties")
_FIELDS = (
    "username",
    "virtual_host",
    "host",
    "port",
    *_NUMBERS,
    "ssl_options",
    "auth_mechanisms",
    "client_properties",
    "socket_options",
)
"""Fields of RabbitMQ's connection parameters: of these a query may set the numbers only."""
_TLS_FIELDS = (
    "cacertfile",
    "certfile",
    "keyfile",
    "verify",
    "fail_if_no_peer_cert",
    "password",
    "server_name_indication",
    "depth",
)
_LOGIN = re.compile(r"""(?<=://)[^\s"]*@""")
"""A login up to the last `@` of its URI: a password may have a slash or another `@` that somebody forgot to escape."""
_SECRET = re.compile(r"([?&]password=)[^&#]*", re.IGNORECASE)


class MalformedUriError(ValueError):
    """A URI that RabbitMQ refuses; the text is the Erlang term that it reports."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A broker to connect to.

    Attributes:
        shown: the URI without login and query, as RabbitMQ shows it.
        vhost: the virtual host.
        user: name of the user; None for none, which only the broker itself accepts.
        password: None if there is none.
        address: None for the broker itself.
        options: options of the connection.

    """

    shown: str
    vhost: str
    user: str | None
    password: str | None
    address: Address | None
    options: Options

    def __repr__(self) -> str:
        return f"<endpoint {self.shown}>"


class _Parts(NamedTuple):
    scheme: str
    userinfo: list[str]
    host: str
    port: int | None
    path: str
    query: list[tuple[str, str] | str]


def without_secrets(text: str) -> str:
    """Return a URI, or a text with URIs, without logins and passwords."""
    return _LOGIN.sub("", _SECRET.sub(r"\1***", text))


def refused_uri(uri: str) -> str:
    """Return a URI that was refused as errors may show it: also without a login that no scheme precedes."""
    return without_secrets(uri if "://" in uri else uri.rpartition("@")[2])


def parse(uri: str) -> Endpoint:
    """Parse a URI; raises MalformedUriError."""
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
        if where.startswith("["):
            host, _, after = where[1:].partition("]")
            if after and ":" not in after:
                raise _malformed(uri, f"{{invalid_port,{_string(after)}}}")
            port = after.partition(":")[2] if after else ""
        else:
            host, colon, port = where.partition(":")
            if colon and not port:
                raise _malformed(uri, "badarg")
    path_query, _, _ = rest.partition("#")
    path, _, query = path_query.partition("?")
    if port and re.fullmatch(r"[+-]?[0-9]{1,18}", port) is None:
        raise _malformed(uri, "badarg")
    pairs: list[tuple[str, str] | str] = []
    for each in query.split("&") if query else []:
        key, sign, value = each.partition("=")
        pairs.append((key, value) if sign else each)
    return _Parts(scheme, userinfo, host, int(port) if port else None, path, pairs)


def _malformed(uri: str, reason: str) -> MalformedUriError:
    return MalformedUriError(f"{{unable_to_parse_uri,{{malformed_uri,{_string(uri)},{reason}}}}}")


def _endpoint(parts: _Parts) -> Endpoint:
    scheme = parts.scheme.lower()
    if scheme not in PORTS:
        raise MalformedUriError(f"{{unexpected_uri_scheme,{_string(scheme)}}}")
    port = parts.port
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


def _options(query: list[tuple[str, str] | str], *, is_local: bool) -> Options:
    """Return the options that a query has set."""
    numbers = {"heartbeat": HEARTBEAT, "connection_timeout": TIMEOUT_MS}
    given: dict[str, str] = {}
    for each in query:
        if isinstance(each, tuple):
            given.setdefault(*each)
    for name in _LOCAL_FIELDS if is_local else _FIELDS:
        if name not in given:
            continue
        value = given[name]
        if name not in _NUMBERS:
            fault = f"{{parameter_unconfigurable_in_query,{name},{_string(value)}}}"
        elif re.fullmatch(r"[+-]?[0-9]{1,18}", value) is None:
            fault = f"{{not_an_integer,{_string(value)}}}"
        else:
            numbers[name] = int(value)
            continue
        raise MalformedUriError(
            f"{{invalid_amqp_params_parameter,{name},{_string(value)},{_query_text(query)},{fault}}}"
        )
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


def _mechanisms(query: list[tuple[str, str] | str]) -> tuple[str, ...]:
    named = [each[1] for each in query if isinstance(each, tuple) and each[0] == "auth_mechanism"]
    for each in named:
        if each not in _MECHANISMS:
            raise MalformedUriError(f"{{not_mechanism,[{','.join(map(_string, each.split(':')))}]}}")
    return tuple(_MECHANISMS[each] for each in named) or (PLAIN, AMQPLAIN)


def _tls(query: list[tuple[str, str] | str]) -> TLS:
    """Return the TLS options of a query; unlike Erlang's before OTP 26, the broker is verified by default."""
    given: dict[str, str] = {}
    for each in query:
        if isinstance(each, tuple) and each[0] in _TLS_FIELDS:
            given.setdefault(*each)
    for name, value in given.items():
        if name == "fail_if_no_peer_cert" and value not in {"true", "false"}:
            fault = f"{{require_boolean,{value}}}"
        elif name == "depth" and re.fullmatch(r"[+-]?[0-9]{1,18}", value) is None:
            fault = f"{{not_an_integer,{_string(value)}}}"
        elif name == "verify" and value not in {"verify_peer", "verify_none"}:
            fault = f"{{invalid_verify,{value}}}"
        else:
            continue
        raise MalformedUriError(
            f"{{invalid_ssl_parameter,{name},{_string(value)},{_query_text(query)},{fault}}}"
        )
    name = given.get("server_name_indication", "")
    return TLS(
        cacertfile=_unescaped(given.get("cacertfile", "")),
        certfile=_unescaped(given.get("certfile", "")),
        keyfile=_unescaped(given.get("keyfile", "")),
        password=_unescaped(given.get("password", "")),
        is_verified=given.get("verify") != "verify_none",
        server_name=None if name == "disable" else _unescaped(name),
    )


def _query_text(query: list[tuple[str, str] | str]) -> str:
    """Format a query as Erlang prints it, without a password in it."""
    pairs = [
        f"{{{_string(each[0])},{_string('***' if each[0] == 'password' else each[1])}}}"
        if isinstance(each, tuple)
        else _string(each)
        for each in query
    ]
    return f"[{','.join(pairs)}]"


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
