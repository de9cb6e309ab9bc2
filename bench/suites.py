"""Test suites of other projects that need a RabbitMQ, run on an embedded broker and beside it on RabbitMQ.

Suites come with the source archives of the projects on PyPI, at the versions below, into `build/suites`; nothing in
them is changed. Each has an environment of its own with the wheel of this checkout. With Leveret a suite gets its
broker from the pytest plugin (`--leveret-env`). Suites that ask Docker for a container get one from a server that
answers like Docker: a container is an embedded broker in this process. A test that fails on Leveret and is not in
`Suite.expected` runs once more; if it fails again, the command ends with 1.

    make bench NAME=suites                                    # all, on Leveret
    make bench NAME=suites ARGS="kombu --brokers leveret,rabbitmq"
    make bench NAME=suites ARGS="celery --tests t/integration/test_inspect.py"
"""

import argparse
import contextlib
import dataclasses
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import leveret
from bench import brokers
from bench.docker_api import containers

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "suites"
LIMIT = 3600
"""Maximum seconds of a suite."""
START_SECONDS = 30
"""Maximum seconds until Redis answers."""

OLD_CHANNELS = "fails on RabbitMQ, too: finds channels in Redis that earlier tests have left"
NO_BROKER = "fails on RabbitMQ, too: takes longer than two minutes; its tasks use no broker"
NO_LOG = "fails on RabbitMQ, too: the log records of the worker are not captured after other tests"


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
        redis: whether it needs a Redis, which is started for it.
        expected: tests that may fail, without their parameters, each with the reason.

    """

    name: str
    version: str
    tests: tuple[str, ...]
    requirements: tuple[str, ...] = ("",)
    environment: tuple[str, ...] = ()
    docker: bool = False
    redis: bool = False
    expected: Mapping[str, str] = dataclasses.field(default_factory=dict)


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
        redis=True,
        expected={
            "test_canvas.py::test_chord::test_disabling_flag_allow_error_cb_on_chord_header":
                "fails on RabbitMQ, too: the errback runs more than once",
            "test_mem_leak_in_exception_handling.py::test_mem_leak_unhandled_exceptions": NO_BROKER,
            "test_mem_leak_in_exception_handling.py::test_mem_leak_retry_failures": NO_BROKER,
            "test_mem_leak_in_exception_handling.py::test_mem_leak_nested_exception_stacks": NO_BROKER,
            "test_redis_backend.py::test_pubsub_subscribe_churn_while_draining": OLD_CHANNELS,
            "test_redis_backend.py::test_pubsub_reentrant_cancel_from_finalizer": OLD_CHANNELS,
            "test_tasks.py::test_trace_log_arguments::test_task_success": NO_LOG,
            "test_tasks.py::test_trace_log_arguments::test_task_failed": NO_LOG,
            "test_tasks.py::test_task_replacement::test_replaced_task_nesting_level_0":
                "clears a variable after it has sent the task that sets it: a broker that delivers at once may win",
            "test_worker.py::test_pidbox_reset_after_repeated_control_errors":
                "fails on RabbitMQ, too: after other tests Celery refuses `result.get()`; passes alone",
        },
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
    parser.add_argument("--tests", nargs="+", default=[], help="files of a suite instead of all its tests")
    options = parser.parse_args()
    unknown = set(options.names) - {suite.name for suite in SUITES}
    if unknown:
        parser.error(f"no suite called {', '.join(unknown)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    wheel = built()
    surprises = []
    for suite in SUITES:
        if options.names and suite.name not in options.names:
            continue
        if suite.redis and shutil.which("redis-server") is None:
            print(f"{suite.name}: left out, because redis-server is not installed", flush=True)
            surprises += [suite.name] if options.names else []
            continue
        folder, python = prepared(suite, wheel)
        for broker in options.brokers.split(","):
            began = time.monotonic()
            output = run_suite(suite, folder, python, broker, options.profile, options.tests)
            seconds = time.monotonic() - began
            print(
                f"{suite.name} {suite.version} on {broker}: {summary(output)}, {seconds:.0f} s in all",
                flush=True,
            )
            again = []
            for line in failures(output):
                reason = suite.expected.get(test_of(line))
                print(f"  {line}\n    {f'expected: {reason}' if reason else 'not expected'}", flush=True)
                again += [] if reason else [id_of(line)]
            if again and broker == "leveret":  # some depend on the speed of the machine
                alone = run_suite(suite, folder, python, broker, options.profile, again)
                print(f"  those that are not expected, once more: {summary(alone)}", flush=True)
                surprises += failures(alone) if re.search(r"\d+ passed", summary(alone)) else again
            if not re.search(r"\d+ passed", summary(output)):
                surprises.append(f"{suite.name} on {broker}: no test passed")
    if surprises:
        sys.exit("\n".join(["not expected:", *surprises]))


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


def run_suite(
    suite: Suite, folder: Path, python: Path, broker: str, profile: str, tests: Sequence[str] = ()
) -> str:
    """Run a suite on a broker, or some files of it, and return what pytest has printed."""
    command = [str(python), "-m", "pytest", "-rfE", "-p", "no:cacheprovider"]
    command += [*tests, *suite.tests[1:]] if tests else suite.tests
    variables = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    with contextlib.ExitStack() as stack:
        if suite.redis:
            variables |= stack.enter_context(redis())
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
        log = folder.parent / f"{broker}-{profile}.log"
        with log.open("wb") as file:
            subprocess.run(
                command, cwd=folder, env=variables, stdout=file, stderr=file, timeout=LIMIT, check=False
            )
    return log.read_text(errors="replace")


@contextlib.contextmanager
def redis() -> Iterator[dict[str, str]]:
    """Run a Redis that keeps nothing, and return the variables that have its address."""
    with tempfile.TemporaryDirectory(prefix="leveret-redis-") as folder:
        port = str(brokers.free_port())
        words = ["redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", folder]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not listens(int(port)):
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit("redis-server does not start")
                time.sleep(0.05)
            yield {
                "REDIS_HOST": "127.0.0.1",
                "REDIS_PORT": port,
                "TEST_BACKEND": f"redis://127.0.0.1:{port}",
            }
        finally:
            process.terminate()
            process.wait()


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
    return [line for line in output.splitlines() if re.match(r"(FAILED|ERROR) \S+\.py", line)]


def id_of(line: str) -> str:
    """Return pytest's id of the test that a line of `failures` names."""
    return line.partition(" ")[2].partition(" - ")[0]


def test_of(line: str) -> str:
    """Return the test that a line of `failures` names, without its folder and its parameters."""
    return id_of(line).partition("[")[0].rpartition("/")[2]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def run(*words: str, cwd: Path) -> None:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


if __name__ == "__main__":
    main()
