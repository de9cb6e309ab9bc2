"""Exit codes of a start, and of commands, that cannot use the data: 65 if the data are wrong, 73 if the disk is."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from crash.judged import needs_small_disks
from crash.loopdisk import MemoryDisk
from processes.commands import execute
from processes.running import UNWATCHED, command, environment

from leveret.broker import exit_codes
from leveret.storage.errors import DamagedError, DiskFullError, StorageError, UnknownFormatError

SERVE = ("serve", "--set", "listeners.tcp.1=127.0.0.1:0", *UNWATCHED)


def run(*words: str, cwd: Path) -> tuple[int, str]:
    """Run a command; returns its exit code and its error."""
    done = execute(command(*words), cwd=cwd, env=environment())
    return done.returncode, done.stderr


@needs_small_disks
@pytest.mark.parametrize("what", ["serve", "import"])
def test_a_full_disk_is_no_invalid_data(tmp_path, what):
    """A start, and a command that starts a broker, end with 73 if the disk has no space for what they make."""
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"users": []}))
    words = SERVE if what == "serve" else ("definitions", "import", str(file))
    with MemoryDisk(tmp_path, 1) as disk:
        data = disk.mount_point / "data"
        data.mkdir()
        with suppress(OSError), (disk.mount_point / "others").open("wb", 0) as others:
            while True:
                others.write(bytes(4096))
        code, error = run(*words, "--data-dir", str(data), cwd=tmp_path)

    assert (73, True) == (code, "No space left on device" in error), error


@pytest.mark.parametrize("what", ["serve", "import"])
def test_invalid_data_are_65(tmp_path, what):
    """A data file that is none is wrong, whoever opens it."""
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"users": []}))
    (tmp_path / "data" / "store").mkdir(parents=True)
    (tmp_path / "data" / "store" / "data.mdb").write_bytes(b"x" * 10_000)
    words = SERVE if what == "serve" else ("definitions", "import", str(file))
    code, error = run(*words, "--data-dir", str(tmp_path / "data"), cwd=tmp_path)

    assert (65, True) == (code, "leveret: cannot open the data in" in error), error


def test_only_data_that_are_wrong_are_65():
    """Every other reason not to use them is one of the place."""
    errors = (DamagedError("x"), UnknownFormatError("x"), DiskFullError("x"), StorageError("x"))

    assert [65, 65, 73, 73] == [exit_codes.of_storage(error) for error in errors]
