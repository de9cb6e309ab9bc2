"""The how-to about exchanges that choose a queue shows what happens."""

from pathlib import Path

from checks.how_to import follow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "spread-messages.md"


def test_the_page_shows_what_happens(tmp_path):
    """Its program and its command print what the page says."""
    assert 2 == follow(PAGE, tmp_path, str.split)
