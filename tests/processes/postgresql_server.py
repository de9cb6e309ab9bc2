"""PostgreSQL for tests: a server with a scratch directory that is reached by a socket in it; as another user if need be."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes.short_paths import short_parent

NO_POSTGRESQL = "there is no PostgreSQL: install Debian's package postgresql"
REQUIRED = "POSTGRESQL_REQUIRED"
"""Environment variable: no test that needs PostgreSQL may be left out."""
SECONDS = 120.0


def programs() -> Path | None:
    """Return the folder with `initdb` and `postgres`, of the newest version."""
    found = [*Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if found:
        return max(found, key=lambda each: int(each.parent.parent.name)).parent
    path = shutil.which("initdb")
    return Path(path).resolve().parent if path else None


def needed_programs() -> Path:
    """Return the folder with PostgreSQL's programs; leaves the test out without them, unless they are required."""
    folder = programs()
    if folder is None:
        if os.environ.get(REQUIRED):
            pytest.fail(NO_POSTGRESQL)
        pytest.skip(NO_POSTGRESQL)
    return folder


def as_whom() -> dict[str, Any]:
    """Return the user under whom a server runs: it refuses root."""
    if os.geteuid():
        return {}
    return {"user": "postgres", "group": "postgres", "extra_groups": []}


@contextlib.contextmanager
def postgresql(password: str = "") -> Iterator[str]:
    """Run a server, perhaps one that wants a password; yields what a URL of it needs behind the name of the database."""
    folder = needed_programs()
    home = Path(tempfile.mkdtemp(prefix="leveret-pg-", dir=short_parent()))
    server = None
    try:
        if not os.geteuid():
            shutil.chown(home, "postgres", "postgres")
        data = home / "data"
        login: list[object] = ["-A", "trust"]
        if password:
            (home / "password").write_text(password, encoding="ascii")
            if not os.geteuid():
                shutil.chown(home / "password", "postgres")
            login = ["-A", "scram-sha-256", "--pwfile", home / "password"]
        subprocess.run(
            [folder / "initdb", "-D", data, "-U", "leveret", *login, "-E", "UTF8", "--locale=C", "-N"],
            cwd=home, check=True, stdout=subprocess.DEVNULL, timeout=SECONDS, **as_whom(),
        )  # fmt: skip
        server = subprocess.Popen(
            [folder / "postgres", "-D", data, "-k", home, "-c", "listen_addresses=", "-c", "shared_buffers=16MB"],
            cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **as_whom(),
        )  # fmt: skip
        wait = [folder / "pg_isready", "-h", home, "-t", "1"]
        for _ in range(int(SECONDS)):
            if not subprocess.run(wait, capture_output=True, timeout=SECONDS, check=False).returncode:
                break
            assert server.poll() is None, "the server has ended"
        yield f"?host={home}&user=leveret"
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)
            server.wait(SECONDS)
        shutil.rmtree(home, ignore_errors=True)
