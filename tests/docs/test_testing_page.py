"""Pages about testing an application: each of their programs is a file of tests that passes."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml
from processes.commands import execute

ROOT = Path(__file__).parents[2]
HOWTO = ROOT / "docs" / "howto"
CI = ROOT / "docs" / "ci"
SCHEMAS = {"github-actions.yml": "vendor.github-workflows", "gitlab-ci.yml": "vendor.gitlab-ci"}
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEST = re.compile(r"^ *(?:async )?def test_", re.MULTILINE)
DJANGO = """
from django.conf import settings

settings.configure(SECRET_KEY="x", AMQP_URL="")
"""


@pytest.mark.parametrize(
    "page",
    ["test-an-application.md", "set-up-the-test-plugin.md", "test-failures.md", "rehearse-an-upgrade.md"],
)
def test_the_programs_of_a_page_pass(tmp_path, page):
    """Each program passes under pytest; tests/test_beside.py runs those that need plugins that are not installed here."""
    programs = PROGRAM.findall((HOWTO / page).read_text(encoding="utf-8"))
    programs = [program for program in programs if "pytest_celery" not in program]
    for number, program in enumerate(programs):
        (tmp_path / f"test_{number}.py").write_text(program, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(DJANGO, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n", encoding="utf-8")
    plugin = ()
    if not any(point.name == "leveret" for point in entry_points(group="pytest11")):
        plugin = ("-p", "leveret.pytest_plugin")  # of a checkout that is not installed
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-rx", "-p", "no:cacheprovider", "-p", "celery.contrib.pytest",
            *plugin, "-W", "ignore", str(tmp_path),
        ],
        cwd=tmp_path,
        # Without positions in tracebacks: Python 3.11 cannot parse for them in one thread while pytest parses in another.
        env={**os.environ, "PYTEST_ADDOPTS": "", "PYTHONNODEBUGRANGES": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )  # fmt: skip

    assert 0 == done.returncode, done.stdout[-5000:] + done.stderr[-2000:]
    assert all(TEST.search(program) for program in programs)
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert sum(len(TEST.findall(program)) for program in programs) <= int(passed[1])
    faulty = sum(program.count("marks=fails") for program in programs)
    assert not faulty or f"{faulty} xfailed" in done.stdout
    assert "XFAIL at setup" not in done.stdout


def test_every_example_of_a_pipeline_is_checked():
    """The page links to each file in docs/ci and has its commands; each has a schema here."""
    page = (HOWTO / "set-up-the-test-plugin.md").read_text(encoding="utf-8")
    _, _, shown = page.partition("## Continuous integration")
    commands = re.findall(r"^python -m (.*)$", shown, re.MULTILINE)

    assert sorted(SCHEMAS) == sorted(path.name for path in CI.iterdir())
    assert 2 == len(commands)
    for name in SCHEMAS:
        assert f"(../ci/{name})" in page
        assert all(f"python -m {each}" in (CI / name).read_text(encoding="utf-8") for each in commands)


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_example_of_a_pipeline_is_valid(name):
    """The file conforms to the schema of its service."""
    done = execute([sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[name], CI / name])

    assert 0 == done.returncode, done.stdout + done.stderr


def mapped(value):
    if isinstance(value, dict):
        yield from value.items()
        value = value.values()
    if not isinstance(value, str | int | None):
        for each in value:
            yield from mapped(each)


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_example_of_a_pipeline_needs_no_service(name):
    """The job has no service beside it, installs Leveret, and runs on versions of Python that the package claims."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    claimed = {line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line}
    found = list(mapped(yaml.safe_load((CI / name).read_text(encoding="utf-8"))))
    (versions,) = [value for key, value in found if str(key).lower() == "python"]

    assert not {"services", "service", "container"} & {key for key, _ in found}
    assert set(versions) <= claimed
    assert re.search(r"pip install .*\bleveret\b", str(found))
