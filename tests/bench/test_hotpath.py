"""`bench.hotpath` measures the broker of this tree."""

import json
import sys
from pathlib import Path

from processes.commands import execute

from bench import hotpath

ROOT = Path(__file__).resolve().parents[2]


def test_each_judged_case_runs():
    """Each case that a change is judged by still runs against the broker as it is."""
    cases = sorted(hotpath.JUDGED)
    command = [sys.executable, str(ROOT / "bench/hotpath.py"), "--count", "2000", "--once", *cases]
    done = execute(command, check=True, timeout=50, cwd=ROOT)
    assert cases == sorted(json.loads(done.stdout))
