"""A broker without a garbage collector, which reports on SIGUSR2 what a collection finds.

The report is a file in its working directory: the number of objects of each type that were in cycles or reachable
only from there, and the number of connections left.
"""

import gc
import json
import signal
import sys
from collections import Counter
from pathlib import Path

ANSWER = "cycles.json"
PROGRAM = (
    "-c",
    f"import sys; sys.path[:0] = [{str(Path(__file__).parents[1])!r}]; from processes.counted import main; main()",
)


def _type(each: object) -> str:
    return f"{type(each).__module__}.{type(each).__qualname__}"


def answer(*_signal: object) -> None:
    """Collect, and write the findings to the file."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = Counter(_type(each) for each in gc.garbage)
    gc.garbage.clear()
    gc.collect()
    connections = sum(
        _type(each) == "leveret.broker.connection.connection.Connection" for each in gc.get_objects()
    )
    part = Path(ANSWER + ".part")
    part.write_text(json.dumps({"cycles": found, "connections": connections}))
    part.rename(ANSWER)


def main() -> None:
    """Run the broker's command line."""
    from leveret.broker.cli import main

    gc.disable()
    gc.collect()
    signal.signal(signal.SIGUSR2, answer)
    main.main(sys.argv[1:])
