"""Runs the broker's command line again and again in processes forked from one that has everything loaded.

Reads lines of JSON, `[words, file for stdout, file for stderr]`, and writes the process id of each child, then, when
that has ended, its exit status (as of waitpid). A child that a line `kill` finds alive is killed. Takes a hundredth
of the time of an interpreter of its own, and is otherwise the same: the command line, the files, the sockets.
"""

import asyncio  # noqa: F401 - loaded once for all children
import ctypes
import gc
import json
import os
import select
import signal
import sys
import warnings


def main() -> None:
    """Serve until stdin ends."""
    warnings.simplefilter("error")
    from leveret.broker.cli import main as cli

    load_everything()
    for line in sys.stdin:
        words, out, err = json.loads(line)
        child = os.fork()
        if child == 0:
            run(cli, words, out, err)
        print(child, flush=True)
        ended, status = wait(child)
        if not ended:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            sys.stdin.readline()
        print(status, flush=True)


def load_everything() -> None:
    """Import what a serving broker imports late, and have patterns compiled that it compiles at each start."""
    import encodings.idna

    import aiofiles.os
    import lmdb
    import uvloop

    from leveret.broker.config.config import load
    from leveret.broker.server import server

    assert all((encodings.idna, aiofiles.os, lmdb, uvloop, server))
    load()
    gc.collect()
    gc.freeze()  # nobody copies pages to look for garbage


def wait(child: int) -> tuple[bool, int]:
    """Wait for the child's end, or for a line on stdin, which is left there."""
    descriptor = os.pidfd_open(child)
    try:
        ready, _, _ = select.select([descriptor, sys.stdin.fileno()], [], [])
        if descriptor in ready:
            return True, os.waitpid(child, 0)[1]
        return False, 0
    finally:
        os.close(descriptor)


def run(cli: object, words: list[str], out: str, err: str) -> None:
    """Run the broker; does not return."""
    code = 70
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # Linux: it dies with the process that it was forked from
    try:
        for path, descriptor in ((out, 1), (err, 2)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(file, descriptor)
            os.close(file)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        try:
            cli.main(words, standalone_mode=True)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else (0 if end.code is None else 1)
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
