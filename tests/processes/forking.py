"""Processes of the broker that are forked from one that has loaded it: a tenth of the processor time of a new interpreter.

    python forking.py

serves one process of the tests. The command line, files, sockets, environment and signals are those of a process of its
own, and it is a child of the tests. It is not for tests of the start itself, of memory, or of what is loaded late.
"""

import atexit
import ctypes
import gc
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

ANSWER_SECONDS = 60.0
"""Seconds to wait for the process that forks."""
AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_")
"""Beginnings of the names of variables that are read when an interpreter starts, and never again."""
PIPES = ("c2pwrite", "errwrite")
"""Arguments of `subprocess.Popen._execute_child`: the child's ends of the pipes for its output."""
SIZE_OCTETS = 4
_DEATH_SIGNAL, _REAPER = 1, 36
"""Linux: PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER."""
_sources: "dict[tuple[tuple[str, str], ...], _Source]" = {}
"""Those of this process, by the variables that they have read when they started."""
_EXECUTE = inspect.signature(subprocess.Popen._execute_child)


def is_possible() -> bool:
    """Return whether processes can be forked here: on Linux, from the main thread, as a leash to another one ends with it."""
    return (
        sys.platform == "linux"
        and {*PIPES, "cwd", "env"} <= set(_EXECUTE.parameters)
        and threading.current_thread() is threading.main_thread()
    )


class Forked(subprocess.Popen):
    """A process that runs the command line of the broker, with pipes for its output; it ends with the tests.

    Args:
        words: those of the command line after `leveret`.
        cwd: its folder.
        env: its environment.

    """

    def __init__(self, words: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        super().__init__(
            list(words), cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def _execute_child(self, *given: object) -> None:
        """Have the child forked, instead of executing a program."""
        arguments = _EXECUTE.bind(self, *given).arguments
        pipes = [arguments[each] for each in PIPES]
        try:
            self.pid = _Source.of(arguments["env"]).fork(
                self.args, str(arguments["cwd"]), arguments["env"], pipes
            )
            self._child_created = True
        finally:
            for pipe in pipes:
                os.close(pipe)


class _Source:
    """The process that forks, with what it has read of its environment when it started."""

    def __init__(self, env: Mapping[str, str]) -> None:
        from processes.running import leash

        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(ANSWER_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                [*leash(), sys.executable, "-W", "error", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # as in the children: what can be done to a file is found out only once
                stderr=subprocess.PIPE,
                text=True,
            )

    @classmethod
    def of(cls, env: Mapping[str, str]) -> "_Source":
        early = tuple(sorted((name, value) for name, value in env.items() if name.startswith(AT_START)))
        found = _sources.get(early)
        if found is not None and found._process.poll() is None:
            return found
        if found is not None:
            found.close()
        found = _sources[early] = cls(env)
        atexit.register(found.close)
        return found

    def close(self) -> None:
        """End the process, whose children live on, and close what leads to it."""
        atexit.unregister(self.close)
        self._socket.close()
        self._process.kill()
        with self._process:
            self._process.communicate(timeout=ANSWER_SECONDS)

    def fork(self, words: Sequence[str], cwd: str, env: Mapping[str, str], files: Sequence[int]) -> int:
        """Return the id of a new child of this process."""
        request = json.dumps([words, cwd, dict(env), os.getpid()]).encode()
        _prctl(_REAPER, 1)
        try:
            socket.send_fds(self._socket, [len(request).to_bytes(SIZE_OCTETS, "big")], files)
            self._socket.sendall(request)
            answer = self._socket.recv(16)
        except ConnectionError:
            answer = b""
        finally:
            _prctl(_REAPER, 0)
        if not answer:
            raise OSError(f"the process that forks brokers has ended: {self._process.communicate()[1]}")
        return int(answer)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def load_everything() -> None:
    """Import what a serving broker imports late, and have patterns compiled that it compiles at each start."""
    import asyncio
    import encodings.idna

    import aiofiles.os
    import lmdb
    import uvloop

    from leveret.broker.cli import main as cli
    from leveret.broker.config.config import load
    from leveret.broker.server import server

    assert all((asyncio, encodings.idna, aiofiles.os, lmdb, uvloop, server, cli))
    load()


def serve(link: socket.socket) -> None:
    """Fork a child for each request, until the tests close their end."""
    while True:
        head, files, _, _ = socket.recv_fds(link, SIZE_OCTETS, len(PIPES))
        if not head:
            return
        request = b""
        while len(request) < int.from_bytes(head, "big"):
            request += link.recv(int.from_bytes(head, "big") - len(request))
        ours, answer = os.pipe()
        # forked twice: when the process between has ended, the child is one of the tests, which wait for it
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if (child := os.fork()) == 0:
                link.close()
                os.close(ours)
                os.close(answer)
                run(between, files, *json.loads(request))
            os.write(answer, str(child).encode())
            os._exit(0)
        os.waitpid(between, 0)
        for each in (answer, *files):
            os.close(each)
        link.sendall(os.read(ours, 16))
        os.close(ours)


def run(
    between: int, files: Sequence[int], words: list[str], cwd: str, env: dict[str, str], tests: int
) -> NoReturn:
    """Run the command line in a child of the process `between`, which is about to end.

    With `-c` the second word is a program that runs the rest of them.
    """
    from leveret.broker.cli.main import main

    while os.getppid() == between:
        time.sleep(0.0005)
    _prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != tests:
        os._exit(1)
    for number, file in enumerate(files, 1):
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(words[1], {})
    sys.argv = ["leveret", *words]
    main(words)
    sys.exit()


if __name__ == "__main__":
    load_everything()
    gc.collect()
    gc.freeze()  # nobody copies pages to look for garbage
    with socket.socket(fileno=int(sys.argv[1])) as end:
        serve(end)
