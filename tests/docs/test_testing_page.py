"""The page about testing an application: each of its programs is a file of tests that passes."""

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
DJANGO = """
from django.conf import settings

settings.configure(SECRET_KEY="x", CELERY_BROKER_URL="")
"""


def test_the_programs_of_the_page_pass(tmp_path):
    """Each program of the page passes under pytest, with the plugins that the page names."""
    page = ROOT / "docs" / "howto" / "test-an-application.md"
    programs = PROGRAM.findall(page.read_text(encoding="utf-8"))
    for number, program in enumerate(programs):
        (tmp_path / f"test_{number}.py").write_text(program, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(DJANGO, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n", encoding="utf-8")
    plugin = ()
    if not any(point.name == "leveret" for point in entry_points(group="pytest11")):
        plugin = ("-p", "leveret.pytest_plugin")  # of a checkout that is not installed
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "celery.contrib.pytest",
            *plugin, "-W", "ignore", str(tmp_path),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )  # fmt: skip

    assert 0 == done.returncode, done.stdout[-5000:] + done.stderr[-2000:]
    assert f"{len(programs)} passed" in done.stdout
