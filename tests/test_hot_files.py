"""Files marked "Hot path" are those that run for each message, and each lint exception has a reason."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

from processes.commands import execute

ROOT = Path(__file__).parent.parent
PACKAGES = ("broker", "exchanges", "storage", "confirm")
MARK = "Hot path: see docs/performance.md."
COUNT = 2500
"""Messages of a case: more than the thousand routing keys of a topic, each of which is routed once."""
RUN = """
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, "")
from bench import hotpath

count, folder, files, lines = int(sys.argv[1]), Path.cwd(), set(), Counter()

def trace(frame, event, _):
    if event == "line":
        lines[frame.f_code.co_filename, frame.f_lineno] += 1
    return trace

for name, case in hotpath.CASES.items():
    if name.startswith("1 MiB"):
        continue
    lines.clear()
    sys.settrace(trace)
    case(count)
    sys.settrace(None)
    files |= {Path(file) for (file, _), number in lines.items() if number > 0.49 * count}
files = {path.resolve() for path in files}
ours = {str(path.relative_to(folder)) for path in files if path.is_relative_to(folder)}
print(*(path for path in ours if not path.startswith(("bench", ".venv", "<frozen"))))
"""
"""A program that prints our files with a line run for every second message, at least, in a case of the benchmark
`hotpath`. Lines, not functions: a loop over the messages of a read is one call for all of them."""
EXCEPTION = re.compile(r"# ruff: noqa.*$", re.MULTILINE)


@cache
def marked() -> set[str]:
    """Return the files whose docstring has the mark."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    docstrings = {
        path: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in files
    }
    return {
        str(path.relative_to(ROOT)) for path, text in docstrings.items() if MARK in " ".join(text.split())
    }


def test_what_runs_for_each_message_is_marked():
    """Each file with a line that runs for every message has the mark, and so follows the rules for hot files."""
    done = execute(
        [sys.executable, "-W", "ignore::ResourceWarning", "-c", RUN, str(COUNT)], cwd=ROOT, timeout=120
    )

    assert 0 == done.returncode, done.stderr
    run = set(done.stdout.split())
    assert {
        "broker/connection/receive_loop.py",
        "broker/vhost/publish_route.py",
        "broker/queue/consumer.py",
        "storage/queues/variable_queue.py",
    } <= run
    assert set() == run - marked()


def test_there_are_marks():
    """The mark is found in files known to have it, and not everywhere."""
    assert {"broker/queue/queue.py", "broker/channel/channel.py", "broker/amqp/fastpath.py"} <= marked()
    assert "broker/config/config.py" not in marked()


def test_the_contributors_page_says_how_to_find_them():
    """The list of hot files is in the files only: the page has the command that finds them."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Hot files\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)

    assert f"`{MARK}`" in section
    assert [] == re.findall(r"`[\w/]+\.py`", section)


def test_an_exception_of_a_whole_file_says_why():
    """Each `ruff: noqa` names its rules and is followed by its reason; only hot files are marked as hot."""
    lines = [
        (str(path.relative_to(ROOT)), line)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for line in EXCEPTION.findall(path.read_text(encoding="utf-8"))
    ]

    assert lines
    assert [] == [line for line in lines if not re.fullmatch(r"# ruff: noqa: [A-Z0-9, ]+ - \S.*", line[1])]
    assert set() == {file for file, line in lines if " - hot: " in line} - marked()
