"""The steps of the image's build, as plain processes: the files that get there are enough to install and start."""

import re
import shutil
import signal
import subprocess
import zipfile

import pytest
from processes.installing import ROOT, built, installed, run
from processes.running import LISTENING

SECONDS = 50
IGNORED = (ROOT / ".dockerignore").read_text().splitlines()
PACKAGES = ("analytics", "broker", "confirm", "exchanges", "storage")


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
    """The wheel that `pip install .` builds from it."""
    return built("wheel", tmp_path_factory.mktemp("wheel"), context)


@pytest.fixture(scope="module")
def image(wheel, tmp_path_factory):
    return installed(wheel, tmp_path_factory.mktemp("opt") / "leveret").parent


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


def test_the_broker_of_the_image_starts(context, image, tmp_path):
    """The entry point finds what lies beside it, the check finds the broker healthy, and a stop ends it well."""
    share = tmp_path / "share"
    shutil.copytree(context / "docker", share)
    variables = {
        "PATH": f"{image}/bin:/usr/bin:/bin",
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


def test_the_analysis_of_the_image_knows_its_jobs_and_tables(image, tmp_path):
    """The entry point of the other image lists its jobs, and has the tables that it reads."""
    output = run(image / "bin" / "leveret", "analyze", "--help", cwd=tmp_path)
    where = "import leveret.analytics.schemas as schemas; print(schemas.__file__, *schemas.tables())"
    file, *tables = run(image / "bin" / "python", "-P", "-c", where, cwd=tmp_path).split()

    assert "latency" in output
    assert str(image / "lib") in file
    assert "queue_interval" in tables
