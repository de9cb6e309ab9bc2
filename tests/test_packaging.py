"""Packaging: the wheel is built, listed, installed into a fresh environment and run."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from checks.repository import git
from processes.commands import execute
from processes.installing import ROOT, built, environment, installed, run

import leveret

MOST_BYTES = 2_000_000
OF_2024 = ("django==5.1.3", "fastapi==0.115.5", "celery==5.4.0", "pandas==2.2.3")
OFFLINE = re.compile(r"No matching distribution|NewConnectionError|Temporary failure in name resolution")
PACKAGES = ("analytics", "broker", "confirm", "exchanges", "storage")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return built("sdist", tmp_path_factory.mktemp("archive"))


def test_the_source_package_is_the_whole_repository(archive):
    """The source archive has every file that is committed, but for the links, so that its tests run there, too."""
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    committed = git("ls-tree", "-r", "--name-only", "-z", "HEAD")
    if committed is None:
        pytest.skip("no repository")
    there = {name for name in committed.split("\0") if (ROOT / name).is_file()}

    assert "SECURITY.md" in names
    assert set() == there - names


def test_the_wheel_holds_the_packages_and_nothing_else(wheel):
    """The wheel's top-level names are our package and the metadata: no tests, no benchmarks, no documents."""
    names = {Path(name).parts[0] for name in zipfile.ZipFile(wheel).namelist()}

    assert {"leveret", f"leveret-{leveret.__version__}.dist-info"} == names


def test_the_wheel_holds_every_module(wheel):
    """Each source file of the packages is in the wheel, once, under the name by which it is imported."""
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "leveret").rglob("*.py")} | {
        f"leveret/{path.relative_to(ROOT)}" for package in PACKAGES for path in (ROOT / package).rglob("*.py")
    }

    assert sources == {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}


def test_the_wheel_is_small(wheel):
    """The wheel has at most 2 MB: no pictures, no tests, no data."""
    assert wheel.stat().st_size <= MOST_BYTES


def test_the_same_revision_makes_the_same_octets(wheel, archive, tmp_path):
    """A second build, of a source archive that is unpacked elsewhere and later, is the same file."""
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    source = tmp_path / f"leveret-{leveret.__version__}"
    for path in source.rglob("*.py"):
        os.utime(path, (2_000_000_000, 2_000_000_000))
    again = built("wheel", tmp_path, source)

    assert sorted(zipfile.ZipFile(wheel).namelist()) == sorted(zipfile.ZipFile(again).namelist())
    assert hashlib.sha256(wheel.read_bytes()).digest() == hashlib.sha256(again.read_bytes()).digest()


def test_the_wheel_fits_beside_others(wheel, tmp_path):
    """The resolver finds versions for a project that has pinned Django, FastAPI, Celery and pandas of two years ago."""
    words = [
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--disable-pip-version-check",
        wheel,
        *OF_2024,
    ]
    done = execute([sys.executable, "-m", "pip", *words], cwd=tmp_path, timeout=230)
    if OFFLINE.search(done.stderr):
        pytest.skip("needs an index of packages")

    assert 0 == done.returncode, done.stderr


def test_type_checkers_may_read_the_packages(wheel):
    """The package of the wheel has `py.typed`, which publishes its annotations (PEP 561)."""
    assert "leveret/py.typed" in zipfile.ZipFile(wheel).namelist()


@pytest.fixture(scope="module")
def binaries(wheel, tmp_path_factory):
    """The commands of a fresh environment that has the wheel; dependencies come from the tests' own."""
    return installed(wheel, tmp_path_factory.mktemp("installed") / "env")


def test_the_index_would_take_both_archives(wheel, archive, tmp_path):
    """The metadata and the README of the wheel and of the source archive are valid for the package index."""
    told = run(sys.executable, "-m", "twine", "check", "--strict", wheel, archive, cwd=tmp_path)

    assert 2 == told.count("PASSED")


def test_in_a_checkout_the_packages_are_links():
    """`leveret/` has a link to each folder of the repository that the wheel nests, and no other folder."""
    assert {package: f"../{package}" for package in PACKAGES} == {
        path.name: str(path.readlink()) for path in (ROOT / "leveret").iterdir() if path.is_symlink()
    }


@pytest.fixture
def foreign(binaries):
    """Install packages of others in the same environment that have the names of our folders."""
    (site,) = (binaries.parent / "lib").glob("python*/site-packages")
    for package in PACKAGES:
        (site / package).mkdir()
        (site / package / "__init__.py").write_text(f"raise SystemExit('{package} of another project')\n")
    yield
    for package in PACKAGES:
        shutil.rmtree(site / package)


@pytest.mark.usefixtures("foreign")
def test_packages_of_others_may_have_the_names_of_our_folders(binaries, tmp_path):
    """Everything runs beside packages called broker, storage, confirm, exchanges and analytics, and imports none."""
    version = f"leveret {leveret.__version__}\n"
    everything = (
        "import importlib, pkgutil, leveret\n"
        "for found in pkgutil.walk_packages(leveret.__path__, 'leveret.'):\n"
        "    if not found.name.endswith('__main__') and '.analytics' not in found.name:\n"
        "        importlib.import_module(found.name)\n"
    )

    assert version == run(binaries / "leveret", "--version", cwd=tmp_path)
    assert version == run(binaries / "python", "-m", "leveret", "--version", cwd=tmp_path)
    run(binaries / "python", "-c", everything, cwd=tmp_path)
    assert "latency" in run(binaries / "leveret", "analyze", "--help", cwd=tmp_path)


def test_the_installed_command_tells_the_version(binaries, tmp_path):
    """The installed command prints its version, and imports the wheel."""
    output = run(
        binaries / "python",
        "-c",
        "from leveret import broker, storage; print(broker.__file__, storage.__file__)",
        cwd=tmp_path,
    )

    assert f"leveret {leveret.__version__}\n" == run(binaries / "leveret", "--version", cwd=tmp_path)
    assert all(str(binaries.parent / "lib") in file for file in output.split())


def test_the_installed_broker_starts_and_stops(binaries, tmp_path):
    """The broker of the wheel reports that clients may connect, and ends with 0 on a signal."""
    command = [binaries / "leveret", "serve", "--data-dir", tmp_path, "--set", "listeners.tcp.1=127.0.0.1:0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment()
    ) as broker:
        try:
            ready = any("Server startup complete" in line for line in broker.stdout)
            broker.terminate()
            code = broker.wait(15)
        finally:
            broker.kill()

    assert (True, 0) == (ready, code)


def test_a_broker_needs_nothing_of_the_extras():
    """`make run` installs neither Spark nor the tools of the site: those come with the extras that name them."""
    extras = PROJECT["optional-dependencies"]
    name = re.compile(r"[\w-]+")
    needed = {name.match(line)[0] for line in PROJECT["dependencies"]}

    assert set() == needed & {
        name.match(line)[0] for extra in ("analytics", "docs") for line in extras[extra]
    }


def test_nothing_would_shadow_another_package():
    """No __init__.py makes docker, docs or tests an importable package of the checkout."""
    assert [] == [name for name in ("docker", "docs", "tests") if (ROOT / name / "__init__.py").exists()]
