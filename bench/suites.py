"""Test suites of other projects that need a RabbitMQ, run on an embedded broker and beside it on RabbitMQ.

Suites come with the source archives of the projects on PyPI, at the versions below, into `build/suites`; nothing in
them is changed. Each has an environment of its own with the wheel of this checkout. With Leveret a suite gets its
broker from the pytest plugin (`--leveret-env`). Suites that ask Docker for a container get one from a server that
answers like Docker: a container is an embedded broker in this process.

    make bench NAME=suites                                    # all, on Leveret
    make bench NAME=suites ARGS="kombu --brokers leveret,rabbitmq"
"""

import argparse
import contextlib
import dataclasses
import os
import re
import socket
import subprocess
import sys
import tarfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import leveret
from bench import brokers
from bench.docker_api import containers

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "suites"
LIMIT = 3600
"""Maximum seconds of a suite."""


@dataclasses.dataclass(frozen=True)
class Suite:
    """The test suite of a project.

    Attributes:
        name: name of the distribution.
        version: its version.
        tests: what pytest runs, and with which arguments.
        requirements: what it needs besides pytest, with extras of the distribution first, as `[redis]`.
        environment: variables that have the address of the broker.
        docker: whether it asks Docker for its broker.
        port: a port of localhost at which something else that it needs must listen; 0 for nothing.

    """

    name: str
    version: str
    tests: tuple[str, ...]
    requirements: tuple[str, ...] = ("",)
    environment: tuple[str, ...] = ()
    docker: bool = False
    port: int = 0


SUITES = (
    Suite(
        "aio-pika", "10.2.1",
        ("tests", "--ignore=tests/test_amqps.py", "--ignore=tests/test_robust_recovery.py", "-o", "log_cli=false"),
        ("", "aiomisc-pytest", "pytest-rst", "shortuuid", "timeout-decorator"),
        docker=True,
    ),
    Suite(
        "amqp", "5.4.2",
        ("t/integration/test_rmq.py", "-k", "not tls"),
        ("", "pytest-rerunfailures", "pytest<=8.0.0"),
        ("RABBITMQ_HOST={host}", "RABBITMQ_5672_TCP={port}"),
    ),
    Suite(
        "celery", "5.7.0",
        ("t/integration", "--timeout=120"),
        (
            "[redis,sqlalchemy,pymemcache,auth,msgpack,yaml,pydantic,azureblockblob,gcs,mongodb,django]",
            "pytest-celery", "pytest-rerunfailures", "pytest-subtests", "pytest-timeout", "pytest-click",
            "pytest-order", "freezegun",
        ),
        ("TEST_BROKER={url}",),
        port=6379,
    ),
    Suite(
        "kombu", "5.7.0",
        ("t/integration/test_py_amqp.py",),
        ("", "pytest-freezer", "pytest-rerunfailures", "hypothesis<7"),
        ("RABBITMQ_HOST={host}", "RABBITMQ_5672_TCP={port}"),
    ),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(suite.name for suite in SUITES)}")
    parser.add_argument(
        "--brokers", default="leveret", help="some of leveret, rabbitmq, rabbitmq-4.3, with commas"
    )
    parser.add_argument("--profile", default="3.13", help="compatibility.profile of Leveret")
    options = parser.parse_args()
    unknown = set(options.names) - {suite.name for suite in SUITES}
    if unknown:
        parser.error(f"no suite called {', '.join(unknown)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    wheel = built()
    for suite in SUITES:
        if options.names and suite.name not in options.names:
            continue
        if suite.port and not listens(suite.port):
            print(f"{suite.name}: left out, because nothing listens at port {suite.port}", flush=True)
            continue
        folder, python = prepared(suite, wheel)
        for broker in options.brokers.split(","):
            began = time.monotonic()
            output = run_suite(suite, folder, python, broker, options.profile)
            seconds = time.monotonic() - began
            print(
                f"{suite.name} {suite.version} on {broker}: {summary(output)}, {seconds:.0f} s in all",
                flush=True,
            )
            for line in failures(output):
                print(f"  {line}", flush=True)


def built() -> Path:
    """Build the wheel of this checkout, and return it."""
    for old in FOLDER.glob("*.whl"):
        old.unlink()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(FOLDER), cwd=ROOT)
    (wheel,) = FOLDER.glob("*.whl")
    return wheel


def prepared(suite: Suite, wheel: Path) -> tuple[Path, Path]:
    """Fetch and unpack the source archive of a suite, and make its environment; return the folder and its Python."""
    place = FOLDER / f"{suite.name}-{suite.version}"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    if not list(place.glob("*.tar.gz")):
        wanted = f"{suite.name}=={suite.version}"
        run(*pip, "download", "--no-deps", "--no-binary", suite.name, "-d", str(place), wanted, cwd=ROOT)
    (archive,) = place.glob("*.tar.gz")
    folder = place / archive.name.removesuffix(".tar.gz")
    if not folder.is_dir():
        with tarfile.open(archive) as found:
            found.extractall(place, filter="data")
    python = place / "env" / "bin" / "python"
    extras, *others = suite.requirements
    if not python.exists():
        venv.create(place / "env", with_pip=False, symlinks=True)
    install = [*pip[:3], "--python", str(python), *pip[3:], "install"]
    run(*install, "pytest", f"{suite.name}{extras}=={suite.version}", *others, str(wheel), cwd=place)
    run(*install, "--force-reinstall", "--no-deps", str(wheel), cwd=place)
    return folder, python


def run_suite(suite: Suite, folder: Path, python: Path, broker: str, profile: str) -> str:
    """Run a suite on a broker, and return what pytest has printed."""
    command = [str(python), "-m", "pytest", "-rfE", "-p", "no:cacheprovider", *suite.tests]
    variables = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    with contextlib.ExitStack() as stack:
        if broker == "leveret" and not suite.docker:
            command += [word for text in suite.environment for word in ("--leveret-env", text)]
            command += ["--leveret-profile", profile]
        elif suite.docker:
            variables["DOCKER_HOST"] = (
                f"tcp://127.0.0.1:{stack.enter_context(containers(address_of(broker, profile)))}"
            )
        else:
            host, port = stack.enter_context(address_of(broker, profile))
            url = f"amqp://guest:guest@{host}:{port}/%2F"
            for text in suite.environment:
                name, _, value = text.format(host=host, port=port, url=url).partition("=")
                variables[name] = value
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    (folder.parent / f"{broker}.log").write_text(done.stdout + done.stderr)
    return done.stdout


@contextlib.contextmanager
def address_of(name: str, profile: str) -> Iterator[tuple[str, int]]:
    """Run a broker, and return its address."""
    if name == "leveret":
        with leveret.Broker(config={"compatibility.profile": profile}) as broker:
            yield "127.0.0.1", broker.port
    else:
        with brokers.running((name,)) as running:
            yield "127.0.0.1", running[name].port


def summary(output: str) -> str:
    """Return the counts and the time of pytest's last line, or what it has printed last."""
    lines = [line.strip("= \n") for line in output.splitlines()]
    counts = [line for line in lines if re.search(r"\d+ \w+.* in [\d.]+s", line)]
    return counts[-1] if counts else " ".join(lines[-3:])


def failures(output: str) -> list[str]:
    """Return the lines of pytest's output that name a failed test."""
    return [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def run(*words: str, cwd: Path) -> None:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


if __name__ == "__main__":
    main()
