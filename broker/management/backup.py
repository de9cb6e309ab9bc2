"""Backups of the running broker: `/api/leveret/backup`, for the operator on the host only.

Whoever starts a backup has to ask for its progress, or it is cancelled: a command that is killed leaves none behind.
"""

from pathlib import Path
from typing import Any

from leveret.broker.administration import BadRequestError, ForbiddenError
from leveret.broker.administration.access import Right
from leveret.broker.http.call import Answer, Call, Item, number, text
from leveret.broker.http.errors import not_found
from leveret.broker.http.route import Key, Routes, required
from leveret.storage.errors import StorageError

ROUTES = Routes("backup", needs=Right.ADMINISTRATOR)
FORBIDDEN = "Only the operator on the host of the broker may do this"


@ROUTES.get("leveret/backup")
def get_backup(call: Call) -> Answer:
    """The progress or the result of the latest backup."""
    backup = _latest(call)
    backup.attend()
    return _item(backup)


@ROUTES.post(
    "leveret/backup",
    body=(
        required("path", doc="absolute path of the new directory"),
        Key("rate", "integer", doc="maximum bytes per second; 0 for no limit"),
    ),
)
def start_backup(call: Call) -> Answer:
    """Start a backup of the data into a new directory, on the host of the broker."""
    backups = _of(call)
    body = call.body("path")
    rate = number(body, "rate", 0)
    if rate < 0:
        raise BadRequestError("'rate' must not be negative")
    try:
        return _item(backups.start(Path(text(body, "path")), rate))
    except StorageError as error:
        raise BadRequestError(str(error)) from None


@ROUTES.delete(
    "leveret/backup", body=(Key("path", doc="cancel it only if it is written there"),), statuses=(200,)
)
def cancel_backup(call: Call) -> Answer:
    """Cancel the running backup."""
    backup = _latest(call)
    path = str(backup.dest)
    if text(call.body(), "path", path) != path:
        raise not_found()
    backup.cancel("cancelled")
    return _item(backup)


def _of(call: Call) -> Any:
    """Return the broker's backups; raises ForbiddenError for users, BadRequestError for a broker without data."""
    if call.actor is not None:
        raise ForbiddenError(FORBIDDEN)
    if call.broker.backups is None:
        raise BadRequestError("the broker has no data directory")
    return call.broker.backups


def _latest(call: Call) -> Any:
    backup = _of(call).latest
    if backup is None:
        raise not_found()
    return backup


def _item(backup: Any) -> Item:
    return Item({
        "path": str(backup.dest),
        "state": str(backup.state),
        "copied": backup.octets,
        "total": backup.total,
        "seconds": round(backup.seconds, 3),
        "files": backup.files,
        "error": backup.error,
    })  # fmt: skip
