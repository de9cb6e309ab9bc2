"""Packaging: the wheel is built, listed, installed into a fresh environment and run."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from checks.repository import git
from processes.commands import execute

import leveret

ROOT = Path(__file__).parent.parent
MOST_BYTES = 2_000_000
OF_2024 = ("django==5.1.3", "fastapi==0.115.5", "celery==5.4.0", "pandas==2.2.3")
OFFLINE = re.compile(r"No matching distribution|NewConnectionError|Temporary failure in name resolution")
PACKAGES = ("analytics", "broker", "confirm", "exchanges", "storage")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def environment() -> dict[str, str]:
    """Return an environment that neither configures a broker nor leads to the sources."""
    ours = ("PYTHON", "LEVERET_", "RABBITMQ_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def run(*command: str | Path, cwd: Path) -> str:
    """Return the output of a command that must succeed, without our sources in reach."""
    done = execute(command, cwd=cwd, env=environment(), timeout=50)

    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout; the backend is run directly, so no network is needed."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_the_source_package_is_the_whole_repository(tmp_path):
    """The source archive has every file that is committed, but for the links, so that its tests run there, too."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
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
    sources = {f"leveret/{path.name}" for path in (ROOT / "leveret").glob("*.py")} | {
        f"leveret/{path.relative_to(ROOT)}" for package in PACKAGES for path in (ROOT / package).rglob("*.py")
    }

    assert sources == {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}


def test_the_wheel_is_small(wheel):
    """The wheel has at most 2 MB: no pictures, no tests, no data."""
    assert wheel.stat().st_size <= MOST_BYTES


def test_the_same_revision_makes_the_same_octets(wheel, tmp_path):
    """A second build, of a source archive that is unpacked elsewhere and later, is the same file."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / f"leveret-{leveret.__version__}"
    for path in source.rglob("*.py"):
        os.utime(path, (2_000_000_000, 2_000_000_000))
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=source)
    (again,) = tmp_path.glob("*.whl")

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
    tmp_path = tmp_path_factory.mktemp("installed")
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    binaries = tmp_path / "env" / "bin"
    run(
        sys.executable, "-m", "pip", "--python", binaries / "python", "install", "--quiet", "--no-deps", "--no-index",
        "--disable-pip-version-check", wheel, cwd=tmp_path,
    )  # fmt: skip
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    # The dependencies come from the environment of the tests, after the wheel's own packages.
    found = [each for each in sys.path if each.endswith("site-packages")]
    (site / "dependencies.pth").write_text("".join(f"{each}\n" for each in found))
    return binaries


def test_the_index_would_take_both_archives(wheel, tmp_path):
    """The metadata and the README of the wheel and of the source archive are valid for the package index."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)

    told = run(
        sys.executable, "-m", "twine", "check", "--strict", wheel, *tmp_path.glob("*.tar.gz"), cwd=tmp_path
    )

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
