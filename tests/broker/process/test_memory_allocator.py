"""Large blocks that are allocated and freed again and again."""

import ctypes
import os
import subprocess
import sys

import pytest

ROUNDS = 50
SCRIPT = f"""
import resource
from leveret.broker.process.memory_allocator import keep_large_blocks
keep_large_blocks()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def body():
    return b"".join([bytes(65536) for _ in range(16)])
body()
before = faults()
for _ in range({ROUNDS}):
    body()
print((faults() - before) / {ROUNDS})
"""


def faults(**environment: str) -> float:
    """Return the page faults for each body of a megabyte."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env=inherited | environment,
    )
    return float(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_a_body_of_a_megabyte_takes_memory_that_is_there():
    """The memory of one body serves the next, without page faults for its 512 pages."""
    assert faults() < 64


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
@pytest.mark.parametrize(
    ("name", "value"),
    [("MALLOC_TRIM_THRESHOLD_", "65536"), ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=65536")],
)
def test_the_environment_configures_the_allocator(name, value):
    """An environment that configures the allocator is left to decide."""
    assert faults(**{name: value}) > 64
