"""The page about replays: its program and its commands print what it says."""

import re

from checks.how_to import follow
from processes.running import ROOT

from leveret.broker.embedded.synchronous import Broker

PAGE = ROOT / "docs" / "howto" / "replay.md"


def same(text: str) -> list[str]:
    """Return the lines of an output without what depends on the time: ages, moments, widths of columns."""
    text = re.sub(r"\bage\b|\b\d+s\b", "", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", text)
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_page_prints_what_it_says(tmp_path):
    """Each block of output is that of the program or the commands before it; times are those of the test."""
    assert 4 == follow(PAGE, tmp_path, same)


def test_the_python_of_the_page_runs():
    """The expression of the page is one that an embedded broker understands."""
    text = PAGE.read_text(encoding="utf-8")
    (expression,) = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    with Broker() as broker:
        broker.declare("orders", arguments={"x-retain-for": 60_000})
        broker.declare("orders.again")
        assert 0 == eval(expression, {"broker": broker})["done"]
