"""Files of an output that a browser may have: pages, and what they consist of. Pure but for the look at a file."""

from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final
from urllib.parse import unquote

INDEX: Final = "index.html"
TYPES: Final[Mapping[str, str]] = {  # content types by suffix: files of others are not served
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def file_of(output: Path, path: str) -> Path | None:
    """Return the file that a path of a URL names, or None if it names none that may be served.

    Hidden files and directories, other suffixes, and links that lead out of the output are none. `output`: the output
    directory, absolute and without links; `path`: the path of the URL as it was sent, without query.
    """
    # What is not UTF-8 becomes a character that no file of a report has in its name.
    parts = unquote(path).removeprefix("/").split("/")
    if parts[-1] == "":
        parts[-1] = INDEX
    if not _may_be_served(parts):
        return None
    try:
        found = output.joinpath(*parts).resolve(strict=True)
    except (OSError, ValueError):
        return None
    # Where a link leads within the output, the same rules hold.
    is_page = found.is_relative_to(output) and _may_be_served(found.relative_to(output).parts)
    return found if is_page and found.is_file() else None


def _may_be_served(parts: Sequence[str]) -> bool:
    """Return whether a path within an output, by its parts, has neither hidden ones nor another suffix than `TYPES`."""
    if any(not part or part.startswith((".", "_")) or "\0" in part or "\\" in part for part in parts):
        return False
    return bool(parts) and Path(parts[-1]).suffix in TYPES


def is_welcome(host_header: str, listening: str) -> bool:
    """Return whether a request for this host may be answered.

    Any web page could give a name of its own the address of this machine, and read what is served on loopback.
    `host_header`: the header `Host`; `listening`: the address that is listened on.
    """
    if not _is_here(listening):
        return True
    name = host_header.rpartition(":")[0] if host_header.rpartition(":")[2].isdigit() else host_header
    return _is_here(name.strip("[]").lower())


def _is_here(name: str) -> bool:
    """Return whether a name is an address of loopback, or the one that every system has for it."""
    try:
        address = ip_address(name)
    except ValueError:
        return name == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
