"""Installs the wheel with each combination of its extras into an empty environment, and uses it: `make campaign NAME=extras`.

Every command of `COMMANDS` runs in every environment: where its extra is installed it must not ask for it, elsewhere it
must say in one line what to install. pip installs none and all of the extras; uv, which links files where pip copies
them, all combinations. Needs an index of packages.
"""

import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from processes.commands import execute  # noqa: E402
from services.programs import installed  # noqa: E402 - found by the line above


class Command(NamedTuple):
    """Words after the interpreter, packages of the extra that hide it if they are missing, and the exit code then."""

    words: tuple[str, ...]
    packages: tuple[str, ...]
    code: int


EXPORT: Final = "import sys, leveret.export as e\ntry: e.read('.', 'event')\nexcept ImportError as error: sys.exit(str(error))"
CONFIG: Final = ("-m", "leveret", "serve", "--data-dir", "data", "--set", "frame_max=none", "--set")
COMMANDS: Final = {
    "analytics": Command(
        ("-m", "leveret.analytics", "latency", "--input", ".", "--output", "out"), ("pyspark",), 69
    ),
    "ldap": Command((*CONFIG, "auth_backends.1=ldap"), ("ldap3",), 78),
    "notebook": Command(("-c", EXPORT), ("pyarrow",), 1),
    "oauth2": Command((*CONFIG, "auth_backends.1=oauth2"), ("jwt",), 78),
    "postgresql": Command((*CONFIG, "replication.url=postgresql://127.0.0.1:1/none"), ("psycopg",), 78),
    "re2": Command((*CONFIG, "default_limits.vhosts.1.pattern=\\bq"), ("re2",), 78),
    "top": Command(("-m", "leveret", "top", "--data-dir", "none"), ("textual",), 69),
}
"""The extras of users, each with a command that needs it. `frame_max=none` keeps the brokers from starting."""
UV: Final = "uv>=0.5"
NEWEST: Final = ("django", "fastapi", "celery", "pandas")
"""Installed beside it by the resolver, without files; tests/test_packaging.py has versions of two years ago."""
USE: Final = """
import leveret
with leveret.Broker(data_dir="kept") as broker:
    broker.declare("orders", durable=True)
    broker.publish("", "orders", "one")
    assert [b"one"] == [message.body for message in broker.queue("orders").messages]
"""


def asks_for(extra: str, text: str) -> bool:
    """Return whether one line of a text says how to install an extra."""
    return 1 == len([line for line in text.splitlines() if f"pip install 'leveret[{extra}]'" in line])


def made(folder: Path, wheel: Path, extras: tuple[str, ...], uv: Path | None) -> str:
    """Return the interpreter of a new environment with the wheel and some extras, whose versions fit together."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    python = str(folder / "bin" / "python")
    pip = [uv, "pip"] if uv else [sys.executable, "-m", "pip", "--python", python]
    where = ("--python", python) if uv else ()
    named = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    subprocess.run([*pip, "install", *where, "--quiet", named], check=True)
    subprocess.run([*pip, "check", *where, "--quiet"], check=True)
    return python


def tried(python: str, extras: tuple[str, ...]) -> list[str]:
    """Return what is wrong with an environment that has some extras."""
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = ""  # without a Java, whose start takes longer than all the rest
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-c", USE], cwd=folder, check=True, timeout=60)
        for extra, (words, _packages, code) in COMMANDS.items():
            done = execute([python, *words], cwd=folder, env=environment, timeout=300)
            asks = asks_for(extra, done.stdout + done.stderr)
            if asks is (extra in extras) or (asks and done.returncode != code):
                wrong.append(f"{extra}: {done.returncode}, {done.stdout}{done.stderr}")
    return wrong


def resolved(folder: Path, wheel: Path) -> bool:
    """Return whether pip finds versions beside the newest ones of what applications use."""
    words = ["install", "--dry-run", "--ignore-installed", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([sys.executable, "-m", "pip", *words, wheel, *NEWEST], cwd=folder, check=False)
    return done.returncode == 0


def main() -> None:
    """Try every environment."""
    uv = installed(ROOT / "build" / "uv", "uv", UV)
    tries: list[tuple[tuple[str, ...], Path | None]] = [((), None), (tuple(COMMANDS), None)]
    tries += [
        (extras, uv)
        for count in range(len(COMMANDS) + 1)
        for extras in itertools.combinations(COMMANDS, count)
    ]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder)
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", built], cwd=ROOT, check=True
        )
        (wheel,) = built.glob("*.whl")
        failed += not resolved(built, wheel)
        os.environ["PYTHONPYCACHEPREFIX"] = str(built / "compiled")  # each environment has the same path
        for extras, tool in tries:
            began = time.monotonic()
            wrong = tried(made(built / "env", wheel, extras, tool), extras)
            failed += bool(wrong)
            name, seconds = "uv" if tool else "pip", time.monotonic() - began
            print(f"{name}: leveret[{','.join(extras)}]: {wrong or 'good'} ({seconds:.0f} s)", flush=True)
    print(f"{len(tries) + 1 - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
