"""Checkouts of other revisions of this project, for comparison."""

import contextlib
import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@contextlib.contextmanager
def revision(ref: str) -> Iterator[Path]:
    """Unpack a git revision into a temporary folder for the duration of a `with` block."""
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", ref], check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory(prefix="leveret-bench-") as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)
