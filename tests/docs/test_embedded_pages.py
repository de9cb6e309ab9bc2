"""Pages about brokers that a test starts itself: their programs run, from top to bottom, in one namespace a page."""

import re
from pathlib import Path

import pytest

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["embed-the-broker.md", "set-the-clock.md", "cause-failures.md"])
def test_the_programs_of_a_page_run(page):
    """Each program of the page runs, and what it asserts is true."""
    namespace: dict[str, object] = {}
    programs = PROGRAM.findall((HOWTO / page).read_text(encoding="utf-8"))

    assert programs
    for program in programs:
        exec(compile(program, page, "exec"), namespace)
