"""No test waits for ever: silent brokers, connections without an answer, tests that hang."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from crash import link
from processes import deadlines, forking
from processes.commands import execute
from processes.running import ROOT, Running, command, deadline, environment, leash, serving

needs_forks = pytest.mark.skipif(not forking.is_possible(), reason="needs Linux")

HANGING = """
import asyncio
import ctypes
import threading

import pytest
import uvloop


@pytest.mark.timeout(1)
def test_hangs():
    async def hang():
        {hang}

    uvloop.run(hang())


def test_goes_on():
    pass
"""
FAILING = """
import sys
import time

import pytest
from hypothesis import given, strategies as st


def is_traced():
    return sys.gettrace() or (sys.version_info >= (3, 12) and any(map(sys.monitoring.get_tool, range(6))))


@pytest.mark.timeout(12)
@given(st.lists(st.integers(0, 10**6), min_size=20))
def test_fails(numbers):
    time.sleep(0.1)  # as long as a large example takes
    assert not is_traced(), "traced"
    assert len(set(numbers)) <= 10
"""
"""A failing test whose case takes more than 300 examples to shrink."""
OTHERS, BEFORE = 6, 4
"""Number of files before and after the one that hangs, and of tests in each before it; those after it have one."""
PLUGIN = 'pytest_plugins = ("processes.deadlines",)'


def _is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _comes(what: Callable[[], bool], seconds: float = 30.0) -> bool:
    latest = time.monotonic() + seconds
    while not (is_so := what()) and time.monotonic() < latest:
        time.sleep(0.005)
    return is_so


def _ends(pid: int) -> bool:
    return _comes(lambda: not _is_there(pid))


def _run(folder: Path) -> subprocess.CompletedProcess[str]:
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "-p", "no:cacheprovider"]
    return execute(
        [sys.executable, "-m", "pytest", *settings, "-n", "2", "--dist", "loadfile", str(folder)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        timeout=200,
    )


@pytest.mark.parametrize(
    "hang",
    [
        "await asyncio.get_running_loop().create_future()",
        "threading.Event().wait()",
        "ctypes.PyDLL(None).sleep(1000)",
    ],
    ids=["future", "lock", "call in C"],
)
def test_a_test_that_hangs_in_uvloop_is_ended_once(tmp_path, hang):
    """A test that hangs in uvloop's run is ended with a stack, and is not run again; the others run."""
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "test_hanging.py").write_text(HANGING.format(hang=hang))
    before, after = ("".join(f"def test_{n}(): pass\n" for n in range(count)) for count in (BEFORE, 1))
    for number in range(OTHERS):  # large files come first
        (tmp_path / f"test_before{number}.py").write_text(before)
        (tmp_path / f"test_after{number}.py").write_text(after)

    done = _run(tmp_path)

    assert pytest.ExitCode.TESTS_FAILED == done.returncode
    assert f"1 failed, {1 + OTHERS * (BEFORE + 1)} passed" in done.stdout
    assert "in test_hangs" in done.stderr


def test_files_with_spark_are_of_one_worker_and_the_cluster_of_another():
    """A worker gets all files that use the one session of Spark; the file with a cluster is a piece of work of its own."""
    split = object.__new__(deadlines.OnceScheduling)._split_scope
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "analytics").glob("test_*.py")]

    assert deadlines.WITH_A_CLUSTER in files
    assert {deadlines.ANALYTICS, deadlines.WITH_A_CLUSTER} == {split(f"{file}::test_any") for file in files}
    assert deadlines.ANALYTICS != split("tests/test_any.py::test_any")


def test_a_model_that_fails_says_so_before_its_deadline(tmp_path):
    """A failing case is printed, with how to reproduce it, though shrinking it would take longer."""
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_failing.py").write_text(FAILING)

    done = _run(tmp_path)

    assert pytest.ExitCode.TESTS_FAILED == done.returncode
    assert "1 failed" in done.stdout
    assert "test_fails(" in done.stdout
    assert "@reproduce_failure(" in done.stdout
    assert "AssertionError: traced" not in done.stdout


def test_a_silent_broker_is_killed(tmp_path):
    """A broker without the awaited log line is killed at the deadline, with its children."""
    program = ("-c", "import os, time; os.fork(); print('begun', flush=True); time.sleep(1000)")
    with Running(tmp_path, program=program) as running:
        running.wait_for("begun")
        with pytest.raises(AssertionError, match="no line with 'never': within"):
            running.wait_for("never", 0.2)
        assert _ends(running.process.pid)


def test_a_deadline_that_is_met_kills_nobody():
    """A process goes on if the event came before the deadline."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        with deadline(process, 30.0) as late:
            pass
        assert not late.is_set()
        assert process.poll() is None
        process.kill()


@pytest.mark.skipif(not leash(), reason="no setpriv")
def test_a_process_dies_with_the_run_that_started_it():
    """A process on a leash is killed when its parent is, in whatever way."""
    program = (
        "import os, subprocess, sys; from processes.running import leash\n"
        "print(subprocess.Popen([*leash(), 'sleep', '1000']).pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
    ) as starter:
        with deadline(starter, 30.0):
            pid = int(starter.stdout.readline())
        assert _comes(lambda: b"sleep" == Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0])
        starter.send_signal(signal.SIGKILL)
        assert _ends(pid)


@needs_forks
def test_a_forked_broker_is_our_child(tmp_path):
    """A forked broker is our child, in the folder that it was given, and ends as we tell it."""
    with serving(tmp_path) as running:
        assert isinstance(running.process, forking.Forked)
        about = Path(f"/proc/{running.process.pid}")
        assert str(os.getpid()) == about.joinpath("stat").read_text().rpartition(")")[2].split()[1]
        assert tmp_path == about.joinpath("cwd").readlink()
        code, out, err = running.stopped_by(signal.SIGTERM)
        assert (0, "") == (code, err)
        assert "stopped" in out


@needs_forks
def test_a_forked_command_fails_as_one_of_its_own(tmp_path):
    """An error has the same exit code and text, forked or not, and variables are those of now."""
    words = ("serve", "--data-dir", "data")
    env = environment() | {"LEVERET_HEARTBEAT": "none"}
    alone = execute(command(*words), cwd=tmp_path, env=env)
    with forking.Forked(words, cwd=tmp_path, env=env) as forked:
        _, text = forked.communicate(timeout=60)

    assert "heartbeat" in text
    assert (alone.returncode, alone.stderr) == (forked.returncode, text)


@needs_forks
def test_brokers_are_forked_again_after_an_end(tmp_path):
    """If the process that forks has ended, the next broker is forked from another."""
    for _ in range(2):
        with serving(tmp_path):
            pass
        for source in forking._sources.values():
            source._process.kill()
            source._process.wait(30)


@needs_forks
def test_a_forked_broker_dies_with_the_run_that_started_it(tmp_path):
    """A forked broker is killed when the tests are, in whatever way."""
    program = (
        "import sys; from pathlib import Path; from processes.running import Running\n"
        "running = Running(Path.cwd()); running.wait_for('Server startup complete')\n"
        "print(running.process.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
    ) as starter:
        with deadline(starter, 60.0):
            pid = int(starter.stdout.readline())
        starter.send_signal(signal.SIGKILL)
        assert _ends(pid)


async def test_a_connection_that_nobody_answers_is_given_up(monkeypatch):
    """Connecting ends with an error if a listener accepts and sends nothing."""
    monkeypatch.setattr(link, "CONNECT_SECONDS", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(AssertionError, match=r"no connection\.start within"),
    ):
        await link.Link.connect(listener.getsockname()[1])
