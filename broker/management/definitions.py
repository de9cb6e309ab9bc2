"""Export and import of definitions: `/api/definitions`, `/api/all-configuration`."""

import logging
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from hashlib import sha256
from http import HTTPStatus
from typing import Any

import msgspec

from leveret.broker.administration.access import MalformedError, Right
from leveret.broker.administration.definitions import heading
from leveret.broker.administration.definitions_document import (
    SECTIONS,
    VHOST_SECTIONS,
    Document,
    Entry,
    encoded,
)
from leveret.broker.administration.definitions_outcome import Outcome
from leveret.broker.auth.login_throttle import shown
from leveret.broker.http.call import Call, Content, Done, Need, Steps
from leveret.broker.http.errors import bad_request, vhost_not_found
from leveret.broker.http.listing import PIECE, STEP
from leveret.broker.http.route import Key, Routes, Work

log = logging.getLogger("leveret.management")
ROUTES = Routes("definitions", needs=Right.ADMINISTRATOR)
_FILE_NAME = re.compile(r"[\w !#$%&'()+,.=@\[\]^`{}~-]{1,255}", re.ASCII)
_LOCAL = re.compile(r"(?!//)[!-\[\]-~]{1,1000}")
"""Redirects to other sites, which would begin with a scheme or two slashes, are not followed."""
_EXPORT = {
    "query": (Key("download", doc="name of a file, for browsers to save the answer"),),
    "statuses": (200, 304),
}
_BODY = tuple(Key(name, "array") for name in (
    "users", "vhosts", "permissions", "topic_permissions", "parameters", "global_parameters", "policies",
    "queues", "exchanges", "bindings",
))  # fmt: skip
_OF_VHOST = tuple(key for key in _BODY if key.name in VHOST_SECTIONS)
_IMPORT = {"work": Work.LONG, "is_large": True, "is_long": True}
_UNSUPPORTED = (
    Key(
        "on_unsupported",
        doc="refuse, or skip what cannot exist here; by default as definitions.on_unsupported",
    ),
)
_DRY_RUN = (
    Key("dry_run", "boolean", doc="true: change nothing, and list problems as part of the answer"),
    *_UNSUPPORTED,
)


@ROUTES.get("definitions", "all-configuration", **_EXPORT)
@ROUTES.get("definitions/{vhost}", doc="Definitions of a vhost.", **_EXPORT)
def get_definitions(call: Call) -> Steps:
    """All definitions."""
    name = call.names.get("vhost")
    if name is not None and name not in call.broker.vhosts:
        raise bad_request("vhost_not_found")
    headers = {}
    if (file := call.query.get("download")) is not None:
        if not _FILE_NAME.fullmatch(file):
            raise bad_request("invalid name of a file")
        headers["content-disposition"] = f"attachment; filename={file}"
    vhost = None if name is None else call.broker.vhosts[name]
    document = yield from call.administration.definitions.exporting(call.actor, vhost)
    head = heading(call.broker)
    if name is not None:
        head = {"rabbit_version": head["rabbit_version"]}

    def pieces() -> Iterator[bytes | None]:
        return written(head, _sections(document, of_vhost=name is not None))

    whole = sha256()
    for piece in pieces():  # twice, so that the octets are never in memory as a whole
        whole.update(piece or b"")
        yield None
    headers["etag"] = f'"{whole.hexdigest()}"'
    if call.has(headers["etag"]):
        return Content((), "application/json", headers, HTTPStatus.NOT_MODIFIED)
    return Content(pieces(), "application/json", headers)


def _sections(document: Document, *, of_vhost: bool) -> Iterator[tuple[str, Iterable[Any]]]:
    """Yield the sections of an export and their entries, which do not name their vhost in the export of one."""
    for section in SECTIONS:
        entries = getattr(document, section)
        if not of_vhost:
            yield section, entries
        elif section in VHOST_SECTIONS:
            yield section, map(_without_vhost, entries) if section in _STRIPPED else entries


_STRIPPED = frozenset({"exchanges", "queues", "bindings"})


def _without_vhost(entry: Entry) -> dict[str, Any]:
    shown = msgspec.structs.asdict(entry)
    del shown["vhost"]
    return shown


def written(head: Mapping[str, Any], parts: Iterable[tuple[str, Iterable[Any]]]) -> Iterator[bytes | None]:
    """Yield definitions as JSON in pieces, and None between: some keys, at least one, and the entries of sections."""
    buffer = bytearray(encoded(head)[:-1])
    for name, entries in parts:
        buffer += b',"%s":[' % name.encode()
        for at, entry in enumerate(entries):
            if at:
                buffer += b","
            buffer += encoded(entry)
            if len(buffer) >= PIECE:
                yield bytes(buffer)
                buffer.clear()
            elif not at % STEP:
                yield None
        buffer += b"]"
    yield bytes(buffer + b"}")


@ROUTES.post(
    "definitions", "all-configuration", body=_BODY, query=_UNSUPPORTED, statuses=(204, 303), **_IMPORT
)
@ROUTES.post(
    "definitions/{vhost}",
    doc="Import definitions into a vhost, whatever vhost they name.",
    body=_OF_VHOST,
    query=_UNSUPPORTED,
    statuses=(204, 303),
    **_IMPORT,
)
def post_definitions(call: Call) -> Steps:
    """Import definitions, entirely or not at all; also from a form with the field `file`."""
    octets, redirect = call.content, ""
    content_type = call.headers.get("content-type", "")
    if is_form(content_type):
        fields = form_fields(octets, content_type)
        octets = fields.get("file", b"[]")
        redirect = fields.get("redirect", b"").decode("utf-8", "replace")
    yield from _imported(call, octets)
    is_local = _LOCAL.fullmatch(redirect) and ":" not in redirect.partition("/")[0]
    return Done(303, redirect) if is_local else Done()


@ROUTES.post("leveret/definitions", body=_BODY, query=_DRY_RUN, **_IMPORT)
@ROUTES.post(
    "leveret/definitions/{vhost}",
    doc="The same for a vhost, whatever vhost the definitions name.",
    body=_OF_VHOST,
    query=_DRY_RUN,
    **_IMPORT,
)
def post_definitions_and_tell(call: Call) -> Steps:
    """Import definitions, entirely or not at all. The answer has what was added and changed, or would be."""
    dry_run = call.query.flag("dry_run")
    outcome = yield from _imported(call, call.content, dry_run=dry_run)
    return Content(written(outcome.heading(dry_run=dry_run), outcome.lists()), "application/json")


def _imported(call: Call, octets: bytes, *, dry_run: bool = False) -> Generator[Need, Any, Outcome]:
    vhost = call.names.get("vhost")
    if vhost is not None and vhost not in call.broker.vhosts:
        raise vhost_not_found()
    on_unsupported = call.query.get("on_unsupported", "")
    if on_unsupported not in {"", "refuse", "skip"}:
        raise bad_request("on_unsupported must be refuse or skip")
    importing = call.administration.definitions.importing(
        call.actor, octets or b"{}", vhost, dry_run=dry_run, on_unsupported=on_unsupported
    )
    try:
        outcome = yield from importing
    except MalformedError:
        raise bad_request("failed_to_parse_json") from None
    if not dry_run:
        whom = "the operator" if call.actor is None else f"user '{shown(call.actor.name)}'"
        log.info("definitions: imported by %s: %s", whom, outcome.summary())
    return outcome


# -- forms of browsers ------------------------------------------------------------------------------------------------


_BOUNDARY = re.compile(r'boundary="?([^";]{1,200})"?')
_NAME = re.compile(rb'content-disposition:[^\r\n]*[; ]name="([^"\r\n]*)"', re.IGNORECASE)


def is_form(content_type: str) -> bool:
    """Return whether a body of this type is such a form."""
    return content_type.lower().startswith("multipart/form-data")


def form_fields(content: bytes, content_type: str) -> dict[str, bytes]:
    """Return the values of a form by the names of its fields, of repeated ones the first; raises ApiError."""
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise bad_request("multipart/form-data without a boundary")
    fields: dict[str, bytes] = {}
    delimiter = b"\r\n--" + boundary[1].encode("utf-8", "surrogateescape")
    for part in (b"\r\n" + content).split(delimiter)[1:]:
        head, separator, value = part.partition(b"\r\n\r\n")
        name = _NAME.search(head)
        if separator and name is not None:
            fields.setdefault(name[1].decode("utf-8", "replace"), value)
    return fields
