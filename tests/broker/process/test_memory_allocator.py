"""Large blocks that are allocated and freed again and again."""

import ctypes
import os
import sys

import pytest
from processes.commands import execute

ROUNDS = 50
SCRIPT = f"""
import resource, sys
from leveret.broker.process import memory
pieces = int(sys.argv[1])
if pieces > 16:
    memory.keep_large_blocks(memory.KEPT_ENTRY, memory.KEPT_ENTRIES)
else:
    memory.keep_large_blocks()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def body():
    return b"".join([bytes(65536) for _ in range(pieces)])
body()
before = faults()
for _ in range({ROUNDS}):
    body()
print((faults() - before) / {ROUNDS})
"""


def faults(pieces: int = 16, **environment: str) -> float:
    """Return the page faults for each body of so many pieces of 64 KiB."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    done = execute([sys.executable, "-c", SCRIPT, str(pieces)], check=True, env=inherited | environment)
    return float(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_a_body_of_a_megabyte_takes_memory_that_is_there():
    """The memory of one body serves the next, without page faults for its 512 pages."""
    assert faults() < 64


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_an_entry_of_a_replicated_log_takes_memory_that_is_there():
    """The memory of an entry of 4 MiB serves the next one, too, as the limits for replicated nodes are higher."""
    assert faults(64) < 64


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
@pytest.mark.parametrize(
    ("name", "value"),
    [("MALLOC_TRIM_THRESHOLD_", "65536"), ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=65536")],
)
def test_the_environment_configures_the_allocator(name, value):
    """An environment that configures the allocator is left to decide."""
    assert faults(**{name: value}) > 64
