"""The page about messages that are taken once: its program and commands print what it says."""

from checks.how_to import follow
from processes.running import ROOT

PAGE = ROOT / "docs" / "howto" / "take-each-message-once.md"


def test_the_page_prints_what_it_says(tmp_path):
    """Each block of output is that of the program and the commands before it."""
    assert 2 == follow(PAGE, tmp_path, lambda text: [" ".join(line.split()) for line in text.splitlines()])
