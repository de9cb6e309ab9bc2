"""The steps of the image's build, as plain processes: the files that get there are enough to install and start."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from processes.commands import execute
from processes.running import LISTENING, ROOT

SECONDS = 50
IGNORED = (ROOT / ".dockerignore").read_text().splitlines()
PACKAGES = ("analytics", "broker", "confirm", "exchanges", "storage")


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command that must succeed, without our sources in reach."""
    ours = ("PYTHON", "LEVERET_", "RABBITMQ_")
    done = execute(
        command,
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if not name.startswith(ours)},
        timeout=SECONDS,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    """The checkout as a build sees it: only what .dockerignore lets through."""
    folder = tmp_path_factory.mktemp("context")
    unwanted = shutil.ignore_patterns(
        *(line.removeprefix("**/") for line in IGNORED if line.startswith("**/"))
    )
    for name in (line[1:] for line in IGNORED if line.startswith("!")):
        (folder / name).parent.mkdir(exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(context, tmp_path_factory):
    """The wheel that `pip install .` builds from it; the backend is run directly, so no network is needed."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=context)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The environment of the image, /opt/leveret; dependencies come from that of the tests."""
    folder = tmp_path_factory.mktemp("opt") / "leveret"
    venv.create(folder, with_pip=False, symlinks=True)
    run(
        sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet", "--no-deps", "--no-index",
        "--disable-pip-version-check", wheel, cwd=folder,
    )  # fmt: skip
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def test_every_file_of_the_packages_gets_there(wheel):
    """An installed wheel has each file of the packages, those that are no modules as well, and the licence."""
    files = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    names = zipfile.ZipFile(wheel).namelist()

    assert "analytics/tables.json" in files
    nested = tuple(f"leveret/{package}/" for package in PACKAGES)
    assert files == {name.removeprefix("leveret/") for name in names if name.startswith(nested)}
    assert [] != [name for name in names if re.fullmatch(r"leveret-.*\.dist-info/licenses/LICENSE", name)]


def test_the_broker_of_the_image_starts(context, installed, tmp_path):
    """The entry point finds what lies beside it, the check finds the broker healthy, and a stop ends it well."""
    share = tmp_path / "share"
    shutil.copytree(context / "docker", share)
    variables = {
        "PATH": f"{installed}/bin:/usr/bin:/bin",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": "0",
        "LEVERET_DATA_DIR": str(tmp_path / "data"),
        "LEVERET_PROMETHEUS_TCP_IP": "127.0.0.1",
        "LEVERET_PROMETHEUS_TCP_PORT": "0",
        "LEVERET_EXPORT_DIR": str(tmp_path / "export"),
    }
    with subprocess.Popen(
        [share / "entrypoint.sh", "serve"], env=variables, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as broker:
        try:
            port = ""
            for line in broker.stdout:
                if (match := LISTENING.search(line)) is not None:
                    port = match[2]
                if "Server startup complete" in line:
                    break
            health = subprocess.run(
                ["python", share / "healthcheck.py"],
                env=variables | {"RABBITMQ_NODE_PORT": port},
                timeout=SECONDS,
                check=False,
            )
            broker.send_signal(signal.SIGTERM)
            code = broker.wait(SECONDS)
        finally:
            broker.kill()

    assert (0, 0) == (health.returncode, code)
    assert [] != list((tmp_path / "export").rglob("*.jsonl"))


def test_the_analysis_of_the_image_knows_its_jobs_and_tables(installed, tmp_path):
    """The entry point of the other image lists its jobs, and has the tables that it reads."""
    output = run(installed / "bin" / "leveret", "analyze", "--help", cwd=tmp_path)
    where = "import leveret.analytics.schemas as schemas; print(schemas.__file__, *schemas.tables())"
    file, *tables = run(installed / "bin" / "python", "-P", "-c", where, cwd=tmp_path).split()

    assert "latency" in output
    assert str(installed / "lib") in file
    assert "queue_interval" in tables
