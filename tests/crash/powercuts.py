"""Cut the power of the disk at random moments under load. As `kills`, with what was not flushed gone as well.

The control does the same to a broker that does not flush (`storage.sync = false`), and must lose something: it
shows that the cut takes away what was only in the page cache.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from crash.kills import Totals, kills
from crash.loopdisk import LoopDisk

UNSYNCED = ("--set", "storage.sync=false")
CONTROL_CUTS = 5


async def powercuts(home: Path, count: int, seed: int, **options: Any) -> Totals:
    """Cut the power `count` times; the options are those of `kills`."""
    with LoopDisk(home) as disk:
        return await kills(disk.mount_point, count, seed, disk=disk, **options)


async def control(home: Path, seed: int, *, say: Callable[[str], object] = print) -> Totals:
    """Cut the power of a broker that does not flush, until it has lost something, a few times at most."""
    with LoopDisk(home) as disk:
        return await kills(
            disk.mount_point,
            CONTROL_CUTS,
            seed,
            say=say,
            settings=UNSYNCED,
            variants=[("without flushing", ())],
            disk=disk,
            enough=1,
        )
