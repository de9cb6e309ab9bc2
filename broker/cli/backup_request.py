"""Requests of `leveret store backup` to a running broker (driver: it waits)."""

import contextlib
import time
from pathlib import Path
from typing import Any

from leveret.broker.cli.ctl.client import ApiClient, ApiError
from leveret.broker.cli.ctl.errors import CtlError
from leveret.broker.persistence.data_lock import DataDirError
from leveret.storage.errors import StorageError
from leveret.storage.store.backup import Copied

POLL_SECONDS = (0.05, 1.0)
"""Time between two questions to the broker: at first, and at most."""
_PATH = ("leveret", "backup")


def back_up_running(data_dir: Path, dest: Path, rate: int, in_use: DataDirError) -> Copied:
    """Have a running broker back up its data, and wait until it is done; cancels the backup when interrupted.

    Args:
        data_dir: its data directory.
        dest: absolute path of the backup.
        rate: maximum bytes per second; 0 for no limit.
        in_use: the error that shows that it is running.

    Raises StorageError with the broker's reason if no backup was written, DataDirError if it does not answer.
    """
    with contextlib.closing(ApiClient(data_dir)) as client:
        return _watched(client, dest, rate, in_use)


def _watched(client: ApiClient, dest: Path, rate: int, in_use: DataDirError) -> Copied:
    pause = POLL_SECONDS[0]
    try:
        found = _ask(client, "POST", {"path": str(dest), "rate": rate}, in_use)
        while found["state"] == "running":
            time.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS[1])
            found = _ask(client, "GET", None, in_use)
    except (KeyboardInterrupt, SystemExit):
        client.close()  # an answer may be on its way
        with contextlib.suppress(Exception):
            _ask(client, "DELETE", {"path": str(dest)}, in_use)
        raise
    if found["state"] != "done":
        raise StorageError(found["error"])
    return Copied(found["copied"], found["files"])


def _ask(client: ApiClient, method: str, body: Any, in_use: DataDirError) -> Any:
    """Send a request and return the answer.

    Raises StorageError with the broker's reason for a refusal, DataDirError if it does not answer.
    """
    try:
        return client.request(method, _PATH, body)
    except ApiError as error:
        raise StorageError(str(error)) from error
    except CtlError as error:
        raise DataDirError(f"{in_use}, and it does not answer: {error}") from error
