"""The page about finding and retrying dead letters: its programs and commands print what it says."""

import re

from checks.how_to import follow
from processes.running import ROOT

PAGE = ROOT / "docs" / "howto" / "dead-letters-and-retries.md"


def same(text: str) -> str:
    """Return an output without its moments."""
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", text)


def test_the_page_prints_what_it_says(tmp_path):
    """Each block of output is that of the program or the commands before it; times are those of the test."""
    assert 5 == follow(PAGE, tmp_path, same)
