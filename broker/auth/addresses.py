"""Addresses of clients: which of them count as one."""

import ipaddress

_NETWORK_BITS = 64  # of an IPv6 address; a host can use all addresses of its network


def origin(host: str) -> str:
    """Return the key for all clients of an address: itself, or the /64 network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:  # noqa: PLR2004 - of the protocol
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
