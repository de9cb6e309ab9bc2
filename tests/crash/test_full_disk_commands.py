"""The exit code of commands that write: 0 only if all is on disk, and 73 if the disk is full."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from crash.judged import needs_small_disks
from crash.loopdisk import MemoryDisk
from processes.running import serving

pytestmark = [pytest.mark.timeout(240), needs_small_disks]

SECONDS = 120
FULL = 73


def leveret(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "leveret", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)


def definitions(folder: Path, queues: int, prefix: str) -> Path:
    path = folder / f"{prefix}.json"
    names = [f"{prefix}{number}-{'x' * 100}" for number in range(queues)]
    rows = [
        {"name": name, "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}} for name in names
    ]
    path.write_text(json.dumps({"vhosts": [{"name": "/"}], "queues": rows}))
    return path


def fill(folder: Path) -> None:
    """Take what is left of a disk."""
    with (folder / "filling").open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A small disk with a data directory, which has some room within its file."""
    with MemoryDisk(tmp_path, 32) as small:
        data = small.mount_point / "data"
        done = leveret("definitions", "import", "--data-dir", data, definitions(tmp_path, 300, "before"))
        assert 0 == done.returncode, done.stderr
        yield small.mount_point


def test_an_import_without_a_broker_tells_that_it_is_not_stored(tmp_path, disk):
    """It does not say what was imported, and nobody finds it afterwards."""
    file = definitions(tmp_path, 20_000, "after")
    fill(disk)
    done = leveret("definitions", "import", "--data-dir", disk / "data", file)
    (disk / "filling").unlink()
    stored = json.loads(leveret("definitions", "export", "--data-dir", disk / "data").stdout)
    found = sum(each["name"].startswith("after") for each in stored["queues"])

    assert (FULL, "") == (done.returncode, done.stdout), done.stderr
    assert "the disk is full" in done.stderr
    assert found < 20_000


@pytest.mark.parametrize(
    "words",
    [
        ("store", "backup", "--data-dir", "{data}", "{disk}/backup"),
        ("store", "compact", "--data-dir", "{data}"),
        ("definitions", "export", "--data-dir", "{data}", "{disk}/export.json"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_commands_without_a_broker_tell_that_nothing_is_written(disk, words):
    """Earlier files are still complete, and nothing lies beside it."""
    (disk / "export.json").write_text("old")
    fill(disk)
    before = sorted(each.name for each in disk.iterdir())
    done = leveret(*(each.format(data=disk / "data", disk=disk) for each in words))

    assert FULL == done.returncode, done.stderr
    assert before == sorted(each.name for each in disk.iterdir())
    assert "old" == (disk / "export.json").read_text()


@contextmanager
def running(disk: Path) -> Iterator[Path]:
    with serving(disk, is_judged=False) as broker:
        fill(disk)
        yield broker.data_dir


def test_commands_of_a_broker_tell_that_a_change_is_not_stored(tmp_path, disk):
    """Each of them that changes or exports something."""
    file = definitions(tmp_path, 20_000, "after")
    codes = {}
    with running(disk) as data:
        for words in (
            ("definitions", "import", "--data-dir", data, file),
            ("ctl", "--data-dir", data, "import_definitions", file),
            ("ctl", "--data-dir", data, "add_user", "ann", "secret"),
            ("ctl", "--data-dir", data, "add_vhost", "v"),
            ("ctl", "--data-dir", data, "set_policy", "p", ".*", '{"max-length": 5}'),
            ("ctl", "--data-dir", data, "set_parameter", "vhost-limits", "limits", '{"max-queues": 5}'),
            ("ctl", "--data-dir", data, "export_definitions", disk / "export.json"),
        ):
            done = leveret(*words)
            codes[str(words[3])] = done.returncode
            assert FULL == done.returncode, (words, done.stdout, done.stderr)
    assert not (disk / "export.json").exists()
