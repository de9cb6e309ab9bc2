"""A broker that gives the disk back every unused page of its data file that it may, all the time.

Imported by the program that `PROGRAM` is, it has the broker look at its disk twenty times a second, and make a hole of
each free page but a few, whatever the file takes: as shipped that takes 64 MiB and ten minutes.
"""

import sys
from pathlib import Path
from typing import Any

_WORDS = "import sys; sys.path.append({!r}); import punching; punching.change(); from leveret.broker.cli.main import main; main()"
PROGRAM = ("-c", _WORDS.format(str(Path(__file__).parent)))
SECONDS = 0.05
RESERVE = 64 * 1024


def change() -> None:
    sys.path.pop()
    from leveret.broker.persistence import data_store, space_reclaim
    from leveret.broker.process import resource_alarms
    from leveret.storage.store import hole_punching

    shipped = space_reclaim.SpaceReclaim

    def eager(*arguments: Any, **_options: Any) -> space_reclaim.SpaceReclaim:
        return shipped(*arguments, fraction=0.0, worth=0)

    data_store.SpaceReclaim = eager  # type: ignore[assignment,misc]
    resource_alarms.DISK_SECONDS = (SECONDS, SECONDS)
    space_reclaim.PATIENCE = space_reclaim.PAUSE = 0.0
    hole_punching.RUN = 1
    hole_punching.RESERVE = RESERVE
