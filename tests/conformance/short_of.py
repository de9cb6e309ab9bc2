"""Our broker, started so that a test says when memory or disk are short: a file of that name in a directory.

python short_of.py DIRECTORY serve ...
"""

import sys
from pathlib import Path
from typing import Any

from leveret.broker.cli import main as cli
from leveret.broker.persistence import data_store
from leveret.broker.process import resource_alarms
from leveret.broker.server import resource_monitor

PLENTY = 1 << 60


def main() -> None:
    """Run the broker, its eyes replaced."""
    place = Path(sys.argv.pop(1))
    disk_usage = data_store.DataStore.disk_usage

    def faked(of: data_store.DataStore) -> Any:
        return disk_usage(of)._replace(free=0 if (place / "disk").exists() else PLENTY)

    resource_alarms.DISK_SECONDS = (0.05, 0.05)
    resource_monitor.MEMORY_SECONDS = 0.05
    resource_monitor.anonymous_memory = lambda: PLENTY if (place / "memory").exists() else 0
    data_store.DataStore.disk_usage = faked
    cli.main()


if __name__ == "__main__":
    main()
