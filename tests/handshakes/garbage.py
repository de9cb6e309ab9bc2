"""A broker without garbage collection, which tells at its end how many objects of TLS the collector would have freed."""

import gc
import sys

from leveret.broker.cli.main import main
from leveret.broker.process.memory import Collector

NAMES = {"SSLProtocol", "_SSLProtocolTransport", "SSLObject", "_SSLSocket", "MemoryBIO"}


def no_collection(*_arguments: object) -> None:
    """Do nothing."""


def count() -> int:
    """Return the number of objects of TLS in garbage."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    return sum(type(each).__name__ in NAMES for each in gc.garbage)


if __name__ == "__main__":
    Collector.start = Collector.collect_due = no_collection  # type: ignore[method-assign,assignment]
    gc.disable()
    try:
        main()
    finally:
        print(f"garbage of TLS: {count()}")
        sys.stdout.flush()
