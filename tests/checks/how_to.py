"""Follows how-to pages: runs their programs and commands, and compares what they print with what the page says."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from processes.running import environment, serving, write_command

BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS = 60


def follow(page: Path, folder: Path, same: Callable[[str], object], *arguments: str) -> int:
    """Run the blocks of a page in their order, beside a broker on the default port of the page.

    Args:
        page: each block `text` is the output of the block `python` or `sh` before it.
        folder: an empty directory, for the broker and as the working directory.
        same: removes from an output what depends on the time.
        arguments: further words for `leveret serve`.

    Returns:
        The number of outputs that were compared.

    """
    binaries = write_command(folder / "bin")
    printed = ""
    compared = 0
    with serving(folder, *arguments) as running:
        environ = {**environment(), "LEVERET_DATA_DIR": str(running.data_dir)}
        environ["PATH"] = f"{binaries}:{environ['PATH']}"
        for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            if language == "text":
                assert same(text) == same(printed), printed
                compared += 1
                continue
            words = [sys.executable, "-c", text.replace("5672", str(running.address[1]))]
            done = subprocess.run(
                words if language == "python" else ["sh", "-ec", text],
                env=environ,
                capture_output=True,
                text=True,
                check=False,
                timeout=SECONDS,
                cwd=folder,
            )
            assert 0 == done.returncode, done.stderr
            printed = done.stdout
    return compared
