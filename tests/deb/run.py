"""Installs the package of `make deb` into a new Debian, starts what its unit starts, and removes it: `make campaign NAME=debian`.

Runs as root, with debootstrap and an index of Debian's packages. `--root DIR` takes a Debian that is there, for another
try. There is no systemd in the directory: the command of the unit runs as its user, and its notification is waited for.
"""

import argparse
import configparser
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pika

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from services.debian import SUITES, inside, made  # noqa: E402 - found by the line above

SECONDS: Final = 60


def told(root: Path, *words: str) -> str:
    """Return the output of a command in the directory, which must succeed."""
    return subprocess.run(
        inside(root, *words), check=True, stdout=subprocess.PIPE, text=True, timeout=600
    ).stdout


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def service(root: Path) -> configparser.SectionProxy:
    """Return the section of the service of the unit that was installed."""
    parser = configparser.ConfigParser(
        interpolation=None, delimiters=("=",), comment_prefixes=("#",), strict=False
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(root / "lib/systemd/system/leveret.service")
    return parser["Service"]


def used(root: Path, port: int) -> int:
    """Start the service, publish a message, stop it; return its exit code."""
    unit = service(root)
    told(
        root,
        "install",
        "-d",
        "-m",
        "700",
        "-o",
        unit["User"],
        "-g",
        unit["Group"],
        f"/var/lib/{unit['StateDirectory']}",
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(root / "run/notify"))
        (root / "run/notify").chmod(0o777)
        notified.settimeout(SECONDS)
        words = ["NOTIFY_SOCKET=/run/notify", *shlex.split(unit["ExecStart"].replace("%i", ""))]
        with subprocess.Popen(inside(root, *words, user=unit["User"])) as broker:
            try:
                while b"READY=1" not in notified.recv(4096):
                    pass
                with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
                    channel = connection.channel()
                    channel.confirm_delivery()
                    channel.queue_declare("orders", durable=True)
                    channel.basic_publish("", "orders", b"one", pika.BasicProperties(delivery_mode=2))
                broker.send_signal(signal.SIGTERM)
                return broker.wait(SECONDS)
            finally:
                broker.kill()
                (root / "run/notify").unlink()


def tried(root: Path, package: Path) -> None:
    """Install, use twice, install again over it, remove and purge; an assertion fails if anything is wrong."""
    port = free_port()
    shutil.rmtree(root / "var/lib/leveret", ignore_errors=True)  # of an earlier try
    (root / "leveret.deb").write_bytes(package.read_bytes())
    told(root, "dpkg", "-i", "/leveret.deb")
    assert "leveret " in told(root, "leveret", "--version")
    assert (root / "etc/leveret").stat().st_mode & 0o777 == 0o750
    (root / "etc/leveret/leveret.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n", encoding="utf-8")
    assert 0 == used(root, port)
    told(root, "dpkg", "-i", "/leveret.deb")  # keeps what the operator wrote
    assert 0 == used(root, port)
    checked = told(root, "leveret", "store", "check", "--data-dir", "/var/lib/leveret")
    assert "2 messages" in checked, checked
    told(root, "dpkg", "--remove", "leveret")
    assert not (root / "opt/leveret").exists(), sorted((root / "opt/leveret").rglob("*"))[:5]
    assert (root / "etc/leveret/leveret.conf").exists()
    told(root, "dpkg", "--purge", "leveret")
    assert not (root / "etc/leveret").exists()
    assert (root / "var/lib/leveret").exists()


def main() -> None:
    """Build the package twice, and try it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, help="a Debian with python3, made by debootstrap")
    parser.add_argument("--python", choices=SUITES, default="3.11", help="the version of Debian's python3")
    asked = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("chroot and debootstrap need root")
    with tempfile.TemporaryDirectory() as folder:
        root = asked.root or Path(folder, "debian")
        if asked.root is None:
            made(root, SUITES[asked.python], ["python3"])
        built = []
        for _ in range(2):
            environment = {**os.environ, "PYTHON": sys.executable, "DEB_PYTHON": asked.python}
            done = subprocess.run(
                [ROOT / "systemd/deb.sh"], env=environment, check=True, stdout=subprocess.PIPE, text=True
            )
            built.append((ROOT / done.stdout.strip()).read_bytes())
        assert built[0] == built[1], "two builds differ"
        tried(root, ROOT / done.stdout.strip())
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
