"""`.ci/run` and docs/platforms.md name the versions of Python that the package claims."""

import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from processes.commands import execute

ROOT = Path(__file__).parent.parent
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CLAIMED = [
    found[1]
    for line in PROJECT["classifiers"]
    if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line))
]


def test_ci_reads_the_claimed_versions():
    """The expression with which `.ci/run` reads versions from pyproject.toml finds those of the classifiers."""
    (words,) = re.findall(r"\$\(sed -n '(.*)' pyproject\.toml\)", CI)
    found = execute(["sed", "-n", words, "pyproject.toml"], cwd=ROOT, check=True, timeout=10)

    assert CLAIMED == found.stdout.split()


def test_ci_runs_tests_that_exist():
    """Each file and folder of the selection exists, and all of `make test` is run before."""
    selections = re.findall(r"^(?:SELECTION|LOWEST)=\((.*)\)$", CI, re.MULTILINE)

    assert 2 == len(selections)
    assert [] == [name for name in " ".join(selections).split() if not (ROOT / name).exists()]
    assert CI.index("\nmake test\n") < CI.rindex("SELECTION")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize(
    ("name", "schema"),
    [("github-actions.yml", "vendor.github-workflows"), ("gitlab-ci.yml", "vendor.gitlab-ci")],
)
def test_a_pipeline_is_valid(name, schema):
    """A pipeline for other machines conforms to the schema of its service, and runs the selection of `.ci/run`."""
    path = ROOT / ".ci" / name
    done = execute([sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, path])

    assert 0 == done.returncode, done.stdout + done.stderr
    (words,) = re.findall(r"\$\(sed -n '(.*)' \.ci/run\)", path.read_text(encoding="utf-8"))
    read = execute(["sed", "-n", words, ".ci/run"], cwd=ROOT, check=True)
    (selection,) = re.findall(r"^SELECTION=\((.*)\)$", CI, re.MULTILINE)
    assert [selection] == read.stdout.splitlines()


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_a_pipeline_runs_the_suite_of_celery(name):
    """A pipeline runs Celery's integration tests with both profiles, on a machine with Redis."""
    jobs = yaml.safe_load((ROOT / ".ci" / name).read_text(encoding="utf-8"))
    job = str(jobs.get("jobs", jobs)["celery"])

    assert "install --yes --no-install-recommends redis-server" in job
    assert "python -m bench.suites celery --profile" in job
    assert "['3.13', '4.3']" in job


def test_the_page_of_platforms_has_every_claimed_version():
    """docs/platforms.md says how each claimed version is tested, and names no other; the lowest is the required one."""
    page = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")

    assert CLAIMED == re.findall(r"^\| (3\.\d+) \|", page, re.MULTILINE)
    assert f">={CLAIMED[0]}" == PROJECT["requires-python"]


def test_the_image_has_a_version_that_is_tested():
    """The images are built on one of the claimed versions."""
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")

    assert set(re.findall(r"^FROM python:(3\.\d+)-", dockerfile, re.MULTILINE)) <= set(CLAIMED)
