"""A short form of `make campaign NAME=whole-files`, and the table of docs/reliability.md."""

import tempfile
from pathlib import Path

import pytest
import uvloop
from crash.judged import SEED, passed
from crash.whole_files import DEEDS, FILES, Case, cases, documented, whole_files

pytestmark = pytest.mark.timeout(240)

BESIDE = FILES[4:]
"""Files that each start makes anew, whose cases are tried in part."""
TRIED = [case for case in cases() if case.file not in BESIDE] + [
    Case("killed", file, deed) for file in BESIDE for deed in DEEDS[3:5]
]


def test_the_page_tells_of_every_file():
    """docs/reliability.md says of each file what its loss, its damage or another one does, and each cell says something."""
    assert sorted(cases()) == sorted(documented())
    assert {"refused", "reported", "harmless"} == set(documented().values())


def test_whole_files_that_are_not_there_or_others(tmp_path):
    """No file is missed, or taken for another one's, in silence: what happens is what the page says."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as home:
        totals, outcomes = uvloop.run(whole_files(Path(home), TRIED, SEED, say=str))
    passed(totals)
    expected = documented()
    assert {case: expected[case] for case in TRIED} == outcomes
