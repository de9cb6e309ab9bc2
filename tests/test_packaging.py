"""What ships: the wheel is built, listed, installed into a fresh environment and run."""

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command that must succeed, without our sources in reach."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LEVERET_"))}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=clean, capture_output=True, text=True, timeout=50, check=False
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout; the backend is run directly, so no network is needed."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_packages_and_nothing_else(wheel):
    """The top-level names are ours and the metadata: no tests, no benchmarks, no documents."""
    names = {Path(name).parts[0] for name in zipfile.ZipFile(wheel).namelist()}

    assert {"broker", "confirm", "exchanges", "storage", f"leveret-{PROJECT['version']}.dist-info"} == names


def test_the_wheel_holds_every_module(wheel):
    """Each source file of the packages is in the wheel."""
    packages = ("broker", "confirm", "exchanges", "storage")
    sources = {str(path.relative_to(ROOT)) for package in packages for path in (ROOT / package).rglob("*.py")}

    assert sources == {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}


def test_the_installed_command_runs(wheel, tmp_path):
    """In a fresh environment the command is there, is ours, and tells the version."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    binaries = tmp_path / "env" / "bin"
    run(
        sys.executable, "-m", "pip", "--python", binaries / "python", "install", "--quiet", "--no-deps", "--no-index",
        "--disable-pip-version-check", wheel, cwd=tmp_path,
    )  # fmt: skip
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    # The dependencies come from the environment of the tests, after the wheel's own packages.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    assert f"leveret {PROJECT['version']}\n" == run(binaries / "leveret", "--version", cwd=tmp_path)
    told = run(
        binaries / "python",
        "-c",
        "import broker, storage; print(broker.__file__, storage.__file__)",
        cwd=tmp_path,
    )
    assert all(str(site) in file for file in told.split())


def test_nothing_would_shadow_another_package():
    """No __init__.py makes docker, docs or tests an importable package of the checkout."""
    assert [] == [name for name in ("docker", "docs", "tests") if (ROOT / name / "__init__.py").exists()]
