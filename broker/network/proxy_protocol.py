"""The header of the PROXY protocol, versions 1 and 2, with which a proxy tells the address of a client.

Source: the specification of HAProxy (proxy-protocol.txt). Nothing is read from a socket here.
"""

import ipaddress
import re
import struct
from typing import Final, NamedTuple

LONGEST_LINE: Final = 107  # maximum octets of a header of version 1
LONGEST: Final = 4096  # most octets of a header of version 2: addresses, and what proxies add
_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_FIXED: Final = 16
_LINE: Final = b"PROXY "
_VERSION, _LOCAL, _PROXY = 2, 0, 1
_FAMILIES: Final = {0x11: (4, struct.Struct("!4s4sHH")), 0x21: (6, struct.Struct("!16s16sHH"))}
_WORDS: Final = re.compile(
    r"PROXY (TCP4|TCP6) ([0-9A-Fa-f.:]+) ([0-9A-Fa-f.:]+) (\d{1,5}) (\d{1,5})", re.ASCII
)
_PORTS: Final = 65536

Address = tuple[str, int]


class MalformedHeaderError(ValueError):
    """Raised for octets that are no header; the text is for the log."""


class Header(NamedTuple):
    """A complete header."""

    size: int  # its octets
    # peer, local: the address of the client, and the one that it connected to; None if the proxy tells none, as for its
    # own health checks: those of the socket hold then
    peer: Address | None = None
    local: Address | None = None


def parse(octets: bytes) -> Header | None:
    """Return the header with which octets begin; None for a beginning of one. Raises MalformedHeaderError."""
    if octets[: len(_SIGNATURE)] == _SIGNATURE[: len(octets)]:
        return _binary(octets)
    if octets[: len(_LINE)] == _LINE[: len(octets)]:
        return _text(octets)
    raise MalformedHeaderError("there is no PROXY header")


def _text(octets: bytes) -> Header | None:
    end = octets.find(b"\r\n", 0, LONGEST_LINE)
    if end < 0:
        if len(octets) >= LONGEST_LINE:
            raise MalformedHeaderError(f"the PROXY header has more than {LONGEST_LINE} bytes")
        return None
    line = octets[:end].decode("ascii", "replace")
    if line == "PROXY UNKNOWN" or line.startswith("PROXY UNKNOWN "):
        return Header(end + 2)
    words = _WORDS.fullmatch(line)
    if words is None:
        raise MalformedHeaderError("the PROXY header is malformed")
    version = 4 if words[1] == "TCP4" else 6
    addresses = []
    for host, port in ((words[2], int(words[4])), (words[3], int(words[5]))):
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            raise MalformedHeaderError("the PROXY header has an invalid address") from None
        if address.version != version or port >= _PORTS:
            raise MalformedHeaderError("the PROXY header has an invalid address")
        addresses.append((str(address), port))
    return Header(end + 2, *addresses)


def _binary(octets: bytes) -> Header | None:
    if len(octets) < _FIXED:
        return None
    version, command, family = octets[12] >> 4, octets[12] & 15, octets[13]
    length = int.from_bytes(octets[14:16])
    if version != _VERSION or command not in {_LOCAL, _PROXY}:
        raise MalformedHeaderError("the PROXY header has an unknown version or command")
    size = _FIXED + length
    if size > LONGEST:
        raise MalformedHeaderError(f"the PROXY header has {size} bytes, more than {LONGEST}")
    known = _FAMILIES.get(family) if command == _PROXY else None
    if known is not None and length < known[1].size:
        raise MalformedHeaderError("the PROXY header is too short for its addresses")
    if len(octets) < size:
        return None
    if known is None:
        return Header(size)
    source, target, source_port, target_port = known[1].unpack_from(octets, _FIXED)
    return Header(
        size,
        (str(ipaddress.ip_address(source)), source_port),
        (str(ipaddress.ip_address(target)), target_port),
    )
