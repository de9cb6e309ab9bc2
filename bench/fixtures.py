"""Seconds of tests that use the pytest plugin, from a fresh environment with the wheel.

A file of ten lines with a Celery task, and 500 tests with a virtual host, a connection and a message each. The first
run of each compiles modules; the figures are the median and the greatest of the others.

    make bench NAME=fixtures
"""

import argparse
import statistics
import subprocess
import sys
import time
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
CELERY = """import pytest
from celery import shared_task
@pytest.fixture
def celery_config(leveret_celery_config):
    return leveret_celery_config
@shared_task
def add(a, b):
    return a + b
def test_add(celery_app, celery_worker):
    assert 5 == add.delay(2, 3).get(timeout=5)
"""
VHOSTS = """import pika, pytest
@pytest.mark.parametrize("number", range(500))
def test_orders(leveret, number):
    with pika.BlockingConnection(pika.URLParameters(leveret.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("orders")
        channel.basic_publish("", "orders", b"one")
    assert 1 == leveret.queue("orders").depth
"""
EMPTY = "def test_nothing():\n    pass\n"
CASES = {
    "nothing, without a fixture": (EMPTY, ()),
    "a Celery task, 10 lines": (CELERY, ("-p", "celery.contrib.pytest")),
    "500 tests with a vhost each": (VHOSTS, ()),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    with TemporaryDirectory() as name:
        folder = Path(name)
        python = environment(folder)
        for title, (source, arguments) in CASES.items():
            test = folder / "test_it.py"
            test.write_text(source)
            taken = [seconds(python, *arguments, str(test), cwd=folder) for _ in range(1 + runs)][1:]
            print(f"{title:30} {statistics.median(taken):6.2f} s, at most {max(taken):6.2f} s", flush=True)


def environment(folder: Path) -> Path:
    """Make an environment with the wheel, pytest, Celery and pika of the pinned versions; return its Python."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    pinned = [line for line in (ROOT / "requirements" / "test.txt").read_text().splitlines() if "==" in line]
    (folder / "pinned.txt").write_text("\n".join(line.rstrip("\\ ") for line in pinned))
    run(
        sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check",
        "-c", str(folder / "pinned.txt"), str(wheel), "pytest", "celery", "pika", cwd=folder,
    )  # fmt: skip
    return python


def seconds(python: Path, *arguments: str, cwd: Path) -> float:
    began = time.monotonic()
    run(str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, cwd=cwd)
    return time.monotonic() - began


def run(*words: str, cwd: Path) -> None:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


if __name__ == "__main__":
    main()
