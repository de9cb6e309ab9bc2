"""Reading of definitions files: every entry is validated by itself, and all that are invalid are found.

Whether entries fit existing objects is checked by `definitions_import`. Unknown keys and sections are ignored as in
RabbitMQ, whose later versions write more of them than earlier ones, and missing sections are accepted.
"""

import re
from collections.abc import Generator, Iterator
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from leveret.broker.administration.access import DefinitionsError
from leveret.broker.administration.definitions_document import (
    SECTIONS,
    VHOST_SECTIONS,
    Document,
    Entry,
    where,
)
from leveret.broker.administration.json_parts import (
    WINDOW,
    NotDivisibleError,
    Part,
    key_of,
    members,
    whole,
)
from leveret.broker.auth.passwords import MD5
from leveret.broker.vhost.parameter_checks import MAX_DEPTH, is_too_deep

PASSED_OVER: Final = frozenset(
    (
        "rabbit_version", "rabbitmq_version", "product_name", "product_version", "rabbitmq_definition_format",
        "original_cluster_name", "original_vhost_name", "explanation", "metadata", "description",
    )
)  # fmt: skip
"""Metadata of the file itself, which is ignored."""

_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels"

MOST_PROBLEMS: Final = 10_000
"""Number of invalid entries in a section after which the rest of it is not read."""
MOST_OCTETS: Final = 256 * 1024
"""Maximum size of an entry in bytes."""
_WITH_MD5: Final = re.compile(r"3\.[0-5]\.")
"""Versions of RabbitMQ that wrote hashes without their algorithm, which was MD5; others, such as the 0.0.0 of builds
from source, have the default (rabbit_definitions:hashing_algorithm/2)."""
_OBJECT, _ARRAY = "an object", "an array"
_KINDS = {
    b"{": _OBJECT,
    b"[": _ARRAY,
    b'"': "a string",
    b"t": "a boolean",
    b"f": "a boolean",
    b"n": "null",
} | {bytes((digit,)): "a number" for digit in b"-0123456789"}
"""The kinds of values by their first octets."""
_ENDS = {b"{": b"}", b"[": b"]"}

_EntryType = TypeVar("_EntryType", bound=Entry)


class NotJSONError(DefinitionsError):
    """The file is not a JSON object."""


class Problem(NamedTuple):
    """An entry that cannot be imported, or a whole section.

    Attributes:
        section: the section.
        at: its position there; None for the section.
        entry: the entry as it stands in the file, or read.
        text: the reason.

    """

    section: str
    at: int | None
    entry: object
    text: str

    def __str__(self) -> str:
        if self.at is None:
            return f"{self.section} {self.text}"
        return f"{where(self.section, self.at, self.entry)}: {self.text}"


class Reading(NamedTuple):
    """A file that was read.

    Attributes:
        document: the entries that are valid by themselves.
        problems: the others.
        unknown: top-level keys that are ignored.

    """

    document: Document
    problems: list[Problem]
    unknown: list[str]


def read_document(octets: bytes, vhost: str | None = None) -> Generator[None, None, Reading]:
    """Read a definitions file, one entry per step.

    Args:
        octets: the file.
        vhost: read only what is in a vhost, and take it for this one, whatever it names; None to read everything.

    Raises:
        NotJSONError: it is not a JSON object.
        DefinitionsError: something that is ignored is nested too deeply.

    """
    octets = octets.removeprefix(b"\xef\xbb\xbf")
    content = yield from _sections(octets)
    unknown = content.keys() - SECTIONS.keys() - PASSED_OVER
    reading = Reading(Document(), [], sorted(unknown))
    part = content.get("rabbit_version")
    version = "" if part is None or part.stop - part.start > WINDOW else _decoded(octets[slice(*part)])
    has_md5 = isinstance(version, str) and _WITH_MD5.match(version) is not None
    for section in SECTIONS:
        if section in content and (vhost is None or section in VHOST_SECTIONS):
            yield from _read_section(octets, content[section], section, vhost, reading, has_md5=has_md5)
    return reading


def _sections(octets: bytes) -> Generator[None, None, dict[str, Part]]:
    """Divide a file, which may be large, in steps; returns its values by their keys."""
    outer = whole(octets)
    if (kind := _kind(octets, outer)) != _OBJECT:
        raise NotJSONError(f"the file is not a JSON object but {kind}")
    found: dict[str, Part] = {}
    for member in _members(octets, outer):
        if member is not None:
            key, value = _key(octets, member)
            found[key] = value
            if key not in SECTIONS and value.stop - value.start <= WINDOW:
                _decoded(octets[slice(*value)])  # only so that what is no JSON is refused
        yield
    return found


def _read_section(
    octets: bytes, part: Part, section: str, vhost: str | None, reading: Reading, *, has_md5: bool
) -> Generator[None, None, None]:
    """Decode the entries of a section, one per step; with `has_md5` hashes without an algorithm are of MD5."""
    part = whole(octets, part)
    if (kind := _kind(octets, part)) != _ARRAY:
        reading.problems.append(Problem(section, None, None, f"is not an array but {kind}"))
        return
    read = getattr(reading.document, section)
    most = len(reading.problems) + MOST_PROBLEMS
    at = -1
    for each in _members(octets, part):
        yield
        if each is None:
            continue
        at += 1
        if len(reading.problems) == most:
            reading.problems.append(Problem(section, None, None, "was not read further"))
            return
        value: object = None
        try:
            value = _entry(octets, each)
            if vhost is not None and isinstance(value, dict):
                value["vhost"] = vhost
            if has_md5 and section == "users" and isinstance(value, dict) and value.get("password_hash"):
                value.setdefault("hashing_algorithm", MD5)
            read.append(_read_entry(value, SECTIONS[section]))
        except NotJSONError:
            raise
        except DefinitionsError as error:
            reading.problems.append(Problem(section, at, value, str(error)))


def _members(octets: bytes, part: Part) -> Iterator[Part | None]:
    """Yield the members of a value, and None between two steps; raises NotJSONError."""
    try:
        yield from members(octets, part)
    except NotDivisibleError as error:
        raise _not_json(error) from None


def _key(octets: bytes, part: Part) -> tuple[str, Part]:
    try:
        return key_of(octets, part)
    except NotDivisibleError as error:
        raise _not_json(error) from None


def _entry(octets: bytes, part: Part) -> object:
    """Decode an entry. One that is larger than any that can be imported would take too long."""
    size = part.stop - part.start
    if size > MOST_OCTETS:
        raise DefinitionsError(f"it has {size} bytes, more than {MOST_OCTETS}")
    return _decoded(octets[slice(*part)])


def _decoded(octets: bytes) -> Any:
    try:
        return msgspec.json.decode(octets)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _not_json(error) from None
    except RecursionError:
        raise DefinitionsError(_TOO_DEEP) from None


def _not_json(error: Exception) -> NotJSONError:
    return NotJSONError(f"the file is not JSON: {error}")


def _read_entry(value: object, form: type[_EntryType]) -> _EntryType:
    if is_too_deep(value):
        raise DefinitionsError(_TOO_DEEP)
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        raise DefinitionsError(str(error).replace(" - at `$.", " at `")) from None


def _kind(octets: bytes, part: Part) -> str:
    """Return the kind of a value, by its first octet; raises NotJSONError if it can be none."""
    first = octets[part.start : part.start + 1]
    kind = _KINDS.get(first)
    if kind is None:
        raise NotJSONError(
            "the file is not JSON: " + ("it ends early" if not first else "it has something else")
        )
    end = _ENDS.get(first)
    if end is not None and (part.stop - part.start == 1 or octets[part.stop - 1 : part.stop] != end):
        raise NotJSONError("the file is not JSON: it ends early")
    return kind
