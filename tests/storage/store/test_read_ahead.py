"""Reading a file into the page cache before all of it is needed."""

import os

import pytest

from leveret.storage.store import read_ahead as module
from leveret.storage.store.read_ahead import PIECE, read_ahead


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A file of three pieces and a half, and the parts of it that are read; none is in the page cache."""
    path = tmp_path / "data"
    path.write_bytes(bytes(3 * PIECE + PIECE // 2))
    parts = []
    real = os.pread

    def pread(descriptor, octets, at):
        parts.append((at, octets))
        return real(descriptor, octets, at)

    monkeypatch.setattr(os, "pread", pread)
    monkeypatch.setattr(module, "_is_cached", lambda _, at: False)
    return path, parts


def test_a_file_is_read_whole_from_front_to_back(made):
    """All of a file is read, in pieces, in their order."""
    path, parts = made

    assert 3 * PIECE + PIECE // 2 == read_ahead(path)
    assert [(at * PIECE, PIECE) for at in range(3)] + [(3 * PIECE, PIECE // 2)] == parts


def test_no_more_is_read_than_memory_can_keep(made):
    """Reading stops after so many octets."""
    path, parts = made

    assert 2 * PIECE == read_ahead(path, 2 * PIECE)
    assert 2 == len(parts)


def test_what_is_in_memory_is_not_read(made, monkeypatch):
    """Pieces that the page cache has are left out."""
    path, parts = made
    monkeypatch.setattr(module, "_is_cached", lambda _, at: at != PIECE)

    assert PIECE == read_ahead(path)
    assert [(PIECE, PIECE)] == parts


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux tells what its page cache has")
def test_a_file_that_was_just_written_is_in_memory(tmp_path):
    """Nothing is read of a file that a broker has just written."""
    path = tmp_path / "data"
    path.write_bytes(os.urandom(2 * PIECE))

    assert 0 == read_ahead(path)


def test_holes_are_not_read(tmp_path):
    """A part of a file that was never written, or was given back, takes neither time nor memory."""
    path = tmp_path / "data"
    with path.open("wb") as file:
        file.truncate(1 << 40)

    assert 0 == read_ahead(path)
