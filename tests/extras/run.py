"""Installs the wheel with each extra alone, with none and with all into empty environments, and uses it: `make campaign NAME=extras`.

Every command of `COMMANDS` runs in every environment: where its extra is installed it must not ask for it, elsewhere it
must say in one line what to install. Needs an index of packages.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]


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


def tried(folder: Path, wheel: Path, extras: tuple[str, ...]) -> list[str]:
    """Return what is wrong with the wheel and some extras in a new environment."""
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    python = str(folder / "env" / "bin" / "python")
    named = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", named], check=True
    )
    subprocess.run([python, "-m", "pip", "check"], check=True)
    subprocess.run([python, "-c", USE], cwd=folder, check=True, timeout=60)
    wrong = []
    for extra, (words, _packages, code) in COMMANDS.items():
        done = subprocess.run(
            [python, *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )
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
    choices = [(), *((extra,) for extra in COMMANDS), tuple(COMMANDS)]
    failed = 0
    with tempfile.TemporaryDirectory() as built:
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", built], cwd=ROOT, check=True
        )
        (wheel,) = Path(built).glob("*.whl")
        failed += not resolved(Path(built), wheel)
        for extras in choices:
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                wrong = tried(Path(folder), wheel, extras)
            failed += bool(wrong)
            print(
                f"leveret[{','.join(extras)}]: {wrong or 'good'} ({time.monotonic() - began:.0f} s)",
                flush=True,
            )
    print(f"{len(choices) + 1 - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
