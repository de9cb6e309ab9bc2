"""Functional tests of amqpstorm and its client of the management API, as released; nothing is changed.

Run inside, with the directory of the unpacked archive and a path for the report, beside a broker.
"""

import os
import subprocess
import sys
import tarfile
import venv
import xml.etree.ElementTree as ET
from pathlib import Path

from bench.management_clients.api import ask
from bench.management_clients.tools import run

VERSION = "3.1.4"
TESTS = ("amqpstorm/tests/functional", "--ignore=amqpstorm/tests/functional/ssl")
CLUSTER = "rabbit@rmq.eandersson.net"
"""Name of the cluster that a test expects."""
VARIABLES = {
    "AMQP_HOST": "127.0.0.1",
    "AMQP_USERNAME": "guest",
    "AMQP_PASSWORD": "guest",
    "AMQP_URI": "amqp://guest:guest@127.0.0.1:5672/%2F",
    "AMQP_HTTP_URL": "http://127.0.0.1:15672",
}


def build(folder: Path) -> Path:
    """Fetch amqpstorm with pip, with what its tests need, and return the directory that they run in."""
    copy = folder / f"amqpstorm-{VERSION}"
    environment = folder / "amqpstorm-env"
    if not (environment / "ready").exists():
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
        wanted = f"amqpstorm[management]=={VERSION}"
        words = ("download", "--no-deps", "--no-binary=amqpstorm", "--dest=.", wanted)
        run(*pip, *words, cwd=folder)
        with tarfile.open(copy.with_name(f"{copy.name}.tar.gz")) as archive:
            archive.extractall(folder, filter="data")
        venv.create(environment, clear=True, symlinks=True)
        run(
            *pip[:3], "--python", str(environment / "bin" / "python"), "install", "pytest", wanted, cwd=folder
        )
        (environment / "ready").touch()
    return copy


def results(report: Path) -> dict[str, str]:
    """Return the results of a run by test: passed, failed or skipped."""
    words = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    return {
        f"{case.attrib['classname'].rpartition('.')[2]}.{case.attrib['name']}": next(
            (words[child.tag] for child in case if child.tag in words), "passed"
        )
        for case in ET.parse(report).getroot().iter("testcase")
    }


def main() -> int:
    copy, report = map(Path, sys.argv[1:])
    ask("PUT", "cluster-name", {"name": CLUSTER})
    python = copy.with_name("amqpstorm-env") / "bin" / "python"
    command = [str(python), "-m", "pytest", "-c", "pyproject.toml", f"--junitxml={report}", *TESTS]
    return subprocess.run(command, cwd=copy, env=os.environ | VARIABLES, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
