"""Search for a secret in files, as it is and in the encodings in which a program might write it."""

import base64
import gzip
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

GZIP = b"\x1f\x8b"
PIECE = 8 << 20
"""Octets that are searched at once."""
CONTEXT = 200
"""Octets before and after a find that are told with it."""
SHORTEST = 8
"""Octets of the shortest word that is searched for: shorter ones are found in what nobody has written."""


class Find(NamedTuple):
    """A place of a file that has the secret.

    Attributes:
        path: the file, relative to the folder that was searched.
        offset: the octet at which it begins, in the decompressed file if it is compressed.
        form: the encoding, as "hex".
        before: what is before it, at most `CONTEXT` octets.
        after: it and what follows, as many.

    """

    path: str
    offset: int
    form: str
    before: bytes
    after: bytes

    def __str__(self) -> str:
        text = f"{self.before[-40:]!r} ... {self.after[:40]!r}"
        return f"{self.path}, octet {self.offset}, {self.form}: {text}"


def forms(words: Mapping[str, bytes]) -> dict[bytes, str]:
    """Return the encodings of words that are searched for, with their names.

    Args:
        words: by a name. Each is searched for by itself, so that a secret of two words and a special character between
            them is found however that character is quoted. Of octets of letters and digits only.

    Raises:
        ValueError: if a word is shorter than `SHORTEST`.

    """
    found: dict[bytes, str] = {}
    for name, word in words.items():
        if len(word) < SHORTEST:
            raise ValueError(f"{name} is shorter than {SHORTEST} octets")
        text = word.decode("ascii")
        each = {word: "as it is", text.upper().encode(): "in capitals"}
        each |= {word.hex().encode(): "hex", word.hex().upper().encode(): "hex"}
        each |= {b"\0".join(word[at : at + 1] for at in range(len(word))): "UTF-16"}
        percent = "".join(f"%{octet:02x}" for octet in word)
        each |= {percent.encode(): "URL-quoted", percent.upper().encode(): "URL-quoted"}
        each |= {", ".join(map(str, word)).encode(): "numbers", ",".join(map(str, word)).encode(): "numbers"}
        for shift in range(3):
            # The letters that depend on nothing but the word, wherever it begins in what is encoded.
            whole = base64.b64encode(b"\0" * shift + word)
            core = whole[-(-shift * 8 // 6) : (shift + len(word)) * 8 // 6]
            each |= {core: "base64", core.translate(bytes.maketrans(b"+/", b"-_")): "base64"}
        found |= {octets: f"{form} ({name})" for octets, form in each.items()}
    return found


def encoded(word: str, user: str = "user") -> dict[str, bytes]:
    """Return a secret in each encoding that the search must find, to plant it."""
    login = base64.b64encode(f"{user}:{word}".encode())
    return {
        "as it is": word.encode(),
        "URL-quoted": quote(word, safe="").encode(),
        "hex": word.encode().hex().encode(),
        "UTF-16, little": word.encode("utf-16-le"),
        "UTF-16, big": word.encode("utf-16-be"),
        "base64": base64.b64encode(word.encode()),
        "base64 of a login": login,
        "base64 of SASL PLAIN": base64.b64encode(f"\0{user}\0{word}".encode()),
        "base64 for URLs": base64.urlsafe_b64encode(f"\xff\xfe{word}".encode("latin-1")),
        "numbers": ",".join(map(str, word.encode())).encode(),
    }


def search(folder: Path, sought: Mapping[bytes, str]) -> Iterator[Find]:
    """Search all files below a folder; symbolic links are not followed, sockets and pipes are left out.

    A file that begins like gzip is decompressed as well.
    """
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(place, name)
            if path.is_file() and not path.is_symlink():
                yield from _in_file(path, str(path.relative_to(folder)), sought)


def _in_file(path: Path, name: str, sought: Mapping[bytes, str]) -> Iterator[Find]:
    yield from _in_pieces(_extents(path), name, sought)
    with path.open("rb") as file:
        if file.read(len(GZIP)) != GZIP:
            return
    try:
        yield from _in_pieces(_decompressed(path), f"{name} (decompressed)", sought)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return  # it only begins like one, or is not complete: what was there has been searched


def _extents(path: Path) -> Iterator[tuple[int, bytes]]:
    """Return the parts of a file that have data, with their offsets: files of LMDB are mostly holes."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        at = 0
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                return  # the rest is a hole
            end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            while at < end:
                octets = os.pread(file.fileno(), min(PIECE, end - at), at)
                if not octets:
                    return
                yield at, octets
                at += len(octets)


def _decompressed(path: Path) -> Iterator[tuple[int, bytes]]:
    at = 0
    with gzip.open(path) as file:
        while octets := file.read(PIECE):
            yield at, octets
            at += len(octets)


def _in_pieces(pieces: Iterator[tuple[int, bytes]], name: str, sought: Mapping[bytes, str]) -> Iterator[Find]:
    kept, end = b"", 0
    last: dict[bytes, int] = {}
    overlap = max(map(len, sought)) + CONTEXT
    for start, piece in pieces:
        octets = kept + piece if start == end else piece
        first = start + len(piece) - len(octets)
        for each, form in sought.items():
            at = octets.find(each, max(0, last.get(each, -1) + 1 - first))
            while at >= 0:
                last[each] = first + at
                before = octets[max(0, at - CONTEXT) : at]
                yield Find(name, first + at, form, before, octets[at : at + CONTEXT])
                at = octets.find(each, at + 1)
        kept, end = octets[-overlap:], start + len(piece)
