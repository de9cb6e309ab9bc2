"""Installs the wheel with each combination of its extras into an empty environment, and uses it: `make campaign NAME=extras`.

Every command of `COMMANDS` runs in every environment: where its extra is installed it must not ask for it, elsewhere it
must say in one line what to install. pip installs none and all of the extras into new environments. uv installs all
combinations into one environment, which then has exactly what is resolved anew for each. Two combinations in a row differ in one
extra, and the last extras change least, so that few files are written. Needs an index of packages.
"""

import json
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
    also: tuple[str, ...] = ()
    """Other extras that have its packages."""


EXPORT: Final = "import sys, leveret.export as e\ntry: e.read('.', 'event')\nexcept ImportError as error: sys.exit(str(error))"
CONFIG: Final = ("-m", "leveret", "serve", "--data-dir", "data", "--set", "frame_max=none", "--set")
COMMANDS: Final = {
    "ldap": Command((*CONFIG, "auth_backends.1=ldap"), ("ldap3",), 78),
    "oauth2": Command((*CONFIG, "auth_backends.1=oauth2"), ("jwt",), 78),
    "postgresql": Command((*CONFIG, "replication.url=postgresql://127.0.0.1:1/none"), ("psycopg",), 78),
    "re2": Command((*CONFIG, "default_limits.vhosts.1.pattern=\\bq"), ("re2",), 78),
    "top": Command(("-m", "leveret", "top", "--data-dir", "none"), ("textual",), 69),
    "notebook": Command(("-c", EXPORT), ("pyarrow",), 1, ("analytics",)),
    "analytics": Command(
        ("-m", "leveret.analytics", "latency", "--input", ".", "--output", "out"), ("pyspark",), 69
    ),
}
"""The extras of users, the largest last, each with a command that needs it. `frame_max=none` keeps the brokers from starting."""
UV: Final = "uv>=0.6"
SECONDS: Final = 900
"""Time for all commands of one environment."""
NEWEST: Final = ("django", "fastapi", "celery", "pandas")
"""Installed beside it by the resolver, without files; tests/test_packaging.py has versions of two years ago."""
USE: Final = """
import leveret
with leveret.Broker(data_dir="kept") as broker:
    broker.declare("orders", durable=True)
    broker.publish("", "orders", "one")
    assert [b"one"] == [message.body for message in broker.queue("orders").messages]
"""
RUN: Final = """
import json, os, runpy, sys
import leveret.broker.cli.main  # which no command changes: each has a process that is a copy of this one
copies = []
for place, words in enumerate(json.loads(sys.argv[1])):
    copies.append(os.fork())
    if copies[-1] == 0:
        os.dup2(os.open(f"{place}.txt", os.O_CREAT | os.O_WRONLY), 1)
        os.dup2(1, 2)
        break
else:
    for copy in copies:
        print(os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]))
    sys.exit()
sys.argv = words[1:]
if words[0] == "-m":
    runpy.run_module(words[1], run_name="__main__", alter_sys=True)
else:
    exec(words[1], {"__name__": "__main__"})
"""
"""A program that runs commands beside each other, each like an interpreter of its own: it prints their exit codes and
leaves their outputs in files."""


def asks_for(extra: str, text: str) -> bool:
    return 1 == len([line for line in text.splitlines() if f"pip install 'leveret[{extra}]'" in line])


def combinations(extras: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return all combinations, each of which differs from the one before in one extra, and the last extras least often."""
    codes = [number ^ number >> 1 for number in range(1 << len(extras))]  # Gray's
    return [tuple(extra for place, extra in enumerate(extras) if code >> place & 1) for code in codes]


def made(folder: Path, wheel: Path, extras: tuple[str, ...], uv: Path | None) -> str:
    """Return the interpreter of an environment with the wheel and some extras, whose versions fit together.

    pip makes it anew; uv removes what does not belong to it.
    """
    python = str(folder / "bin" / "python")
    if uv is None or not folder.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    pip = [uv, "pip"] if uv else [sys.executable, "-m", "pip", "--python", python]
    where = ("--python", python) if uv else ()
    exactly = (
        ("--exact", "--upgrade") if uv else ()
    )  # as in a new one: nothing stays that would not be chosen now
    named = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    subprocess.run([*pip, "install", *where, *exactly, "--quiet", named], check=True)
    subprocess.run([*pip, "check", *where, "--quiet"], check=True)
    return python


def tried(python: str, extras: tuple[str, ...]) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = ""  # without a Java, whose start takes longer than all the rest
    commands = json.dumps([("-c", USE), *[command.words for command in COMMANDS.values()]])
    with tempfile.TemporaryDirectory() as folder:
        done = execute(
            [python, "-c", RUN, commands], cwd=folder, env=environment, timeout=SECONDS, check=True
        )
        used, *codes = map(int, done.stdout.split())
        texts = [Path(folder, f"{place}.txt").read_text(encoding="utf-8") for place in range(len(codes) + 1)]
    wrong = [f"use: {used}, {texts[0]}"] if used else []
    for (extra, command), code, text in zip(COMMANDS.items(), codes, texts[1:], strict=True):
        asks = asks_for(extra, text)
        if asks is any(each in extras for each in (extra, *command.also)) or (asks and code != command.code):
            wrong.append(f"{extra}: {code}, {text}")
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
    tries += [(extras, uv) for extras in combinations(tuple(COMMANDS))]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder)
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", built], cwd=ROOT, check=True
        )
        (wheel,) = built.glob("*.whl")
        failed += not resolved(built, wheel)
        os.environ["PYTHONPYCACHEPREFIX"] = str(built / "compiled")  # the paths stay the same
        for extras, tool in tries:
            began = time.monotonic()
            wrong = tried(made(built / ("uv" if tool else "pip"), wheel, extras, tool), extras)
            failed += bool(wrong)
            name, seconds = "uv" if tool else "pip", time.monotonic() - began
            print(f"{name}: leveret[{','.join(extras)}]: {wrong or 'good'} ({seconds:.0f} s)", flush=True)
    print(f"{len(tries) + 1 - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
