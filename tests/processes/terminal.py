"""A terminal for tests: a real one for the process in it, drawn by an emulator for the test."""

import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl

import pyte

SECONDS = 30.0
"""Time for everything that is waited for."""
ECHO = 3
"""Position of the flags for echo in what termios gives."""


class Terminal:
    """A terminal with the program `leveret` in it.

    Args:
        arguments: words for `leveret`.
        cells, lines: its size.
        environment: variables beside those of the test.

    """

    def __init__(self, *arguments, cells=80, lines=24, **environment):
        self.screen = pyte.Screen(cells, lines)
        self.octets = b""
        self._stream = pyte.ByteStream(self.screen)
        self._ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, cells, 0, 0))
        self._before = termios.tcgetattr(theirs)
        words = [sys.executable, "-m", "leveret", *arguments]
        sized = {"COLUMNS", "LINES"}  # of a worker of xdist: they would stand for the size of the terminal
        ours = {name: value for name, value in os.environ.items() if name not in sized}
        variables = {**ours, "TERM": "xterm-256color", **environment}
        self.process = subprocess.Popen(
            words, stdin=theirs, stdout=theirs, stderr=theirs, env=variables, start_new_session=True
        )
        self._theirs = theirs

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.process.kill()
        self.process.wait(SECONDS)
        os.close(self._theirs)
        os.close(self._ours)

    @property
    def text(self):
        return "\n".join(self.screen.display)

    def press(self, keys):
        os.write(self._ours, keys.encode())

    def wait_for(self, text):
        """Wait until the terminal shows a text."""
        self._until(lambda: text in self.text, text)

    def resize(self, cells, lines):
        """Change the size, as a window does."""
        self.screen.resize(lines, cells)
        ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, cells, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def ended(self):
        """Wait for the end; returns the exit code, and whether the terminal is as it was."""
        self._until(lambda: self.process.poll() is not None, "the end")
        self._read(0.1)
        is_restored = self._before[ECHO] == termios.tcgetattr(self._theirs)[ECHO]
        return self.process.returncode, is_restored

    def _until(self, is_true, what):
        deadline = time.monotonic() + SECONDS
        while not is_true():
            assert time.monotonic() < deadline, f"{what!r} does not appear in\n{self.text}"
            self._read(0.05)

    def _read(self, seconds):
        if select.select([self._ours], [], [], seconds)[0]:
            octets = os.read(self._ours, 65536)
            self.octets += octets
            self._stream.feed(octets)
