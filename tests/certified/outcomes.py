"""Outcomes of clients that present a certificate and log in by it, at any broker."""

import contextlib
import itertools
import re
import ssl
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from certified.presented import Presented
from conformance.wire import Client, ClosedError, QuietError

SECONDS = 60.0
NO_TLS = "no TLS"
NO_NAME = "no name found"
"""Ours adds which part of the certificate is missing."""
LOGIN = re.compile(r"user '(?P<user>.*)' authenticated")
REFUSED = re.compile(r"EXTERNAL login refused: (?P<reason>.*)$", re.MULTILINE)
UNKNOWN = re.compile(r"user '(?P<user>.*)' - invalid credentials", re.DOTALL)
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
MODES = {
    "distinguished name": ("distinguished_name", ""),
    "common name": ("common_name", ""),
    "DNS name": ("subject_alternative_name", "dns"),
    "address": ("subject_alternative_name", "ip"),
    "mail address": ("subject_alternative_name", "email"),
    "URI": ("subject_alternative_name", "uri"),
    "other name": ("subject_alternative_name", "other_name"),
}
"""`ssl_cert_login_from` and `ssl_cert_login_san_type`."""


class Target(NamedTuple):
    """A broker that is asked: where it listens with TLS, its log, and how to choose the part with the user's name."""

    address: tuple[str, int]
    log: Callable[[], str]
    sources: Iterator[str]


def addresses() -> Iterator[str]:
    """Yield addresses of this host, each once: a broker's log names them, and limits its lines by them."""
    for third, fourth in itertools.product(range(1, 255), range(2, 255)):
        yield f"127.7.{third}.{fourth}"


def context_of(presented: Presented, version: ssl.TLSVersion) -> ssl.SSLContext:
    """Return the context of a client that presents anything, and accepts every server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # short keys and old digests are the broker's to refuse
    context.minimum_version = context.maximum_version = version
    if presented.certfile is not None:
        context.load_cert_chain(presented.certfile, presented.keyfile)
    return context


@contextlib.contextmanager
def connected(target: Target, context: ssl.SSLContext, source: str) -> Iterator[Client | None]:
    """Connect up to the broker's first method; None if it refuses the handshake."""
    client = Client(target.address, SECONDS, (source, 0))
    try:
        try:
            client.socket = context.wrap_socket(client.socket)
            client.begin()
        except (OSError, ClosedError):  # which a broker may end before or after its client has finished
            yield None
        else:
            yield client
    finally:
        client.close_socket()


def accepts(target: Target, presented: Presented, version: str) -> bool:
    with connected(target, context_of(presented, VERSIONS[version]), next(target.sources)) as client:
        return client is not None


def user_of(target: Target, presented: Presented, version: str = "1.2") -> str:
    """Return whom a broker takes a client for, as its log tells: a user in quotes, or the reason for refusing it."""
    source = next(target.sources)
    with connected(target, context_of(presented, VERSIONS[version]), source) as client:
        if client is None:
            return NO_TLS
        client.start_ok(mechanism="EXTERNAL", response=b"")
        with contextlib.suppress(ClosedError, QuietError, OSError):
            client.receive(0, "connection.tune")
        return _told(target, source)


def _told(target: Target, source: str) -> str:
    """Return what the log says about a client of that address."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        _, found, text = target.log().partition(f"{source}:")
        while found:
            entry, following, rest = text.partition(f"{source}:")
            if match := LOGIN.search(entry):
                return f"'{match['user']}'"
            if match := REFUSED.search(entry):
                unknown = UNKNOWN.match(match["reason"])
                reason = match["reason"].strip()
                return f"'{unknown['user']}'" if unknown else NO_NAME if NO_NAME in reason else reason
            found, text = following, rest
        time.sleep(0.01)
    message = f"nothing in the log about {source}: {target.log()[-2000:]}"
    raise TimeoutError(message)
