"""Backups of the running broker: `/api/leveret/backup`, for the operator on the host only.

Whoever starts a backup has to ask for its progress, or it is cancelled: a command that is killed leaves none behind.
"""

from pathlib import Path
from typing import Any, Protocol

from leveret.broker.administration import BadRequestError, ForbiddenError
from leveret.broker.administration.access import Right
from leveret.broker.http.call import Answer, Call, Item, number, text
from leveret.broker.http.errors import not_found
from leveret.broker.http.route import Key, Routes, required
from leveret.storage.errors import StorageError

ROUTES = Routes("backup", needs=Right.ADMINISTRATOR)
FORBIDDEN = "Only the operator on the host of the broker may do this"


class Backup(Protocol):
    """A backup, running or over."""

    dest: Path
    error: str
    state: str

    @property
    def octets(self) -> int:
        """Bytes copied so far."""

    @property
    def total(self) -> int:
        """Bytes to copy as far as known; 0 at first."""

    @property
    def seconds(self) -> float:
        """Time since the start, in seconds."""

    @property
    def files(self) -> int:
        """Number of bodies in files of their own; 0 until it is done."""

    def attend(self) -> None:
        """Note that somebody is interested in the backup."""

    def cancel(self, reason: str) -> None:
        """Cancel the backup; no effect if it is over."""


class Backups(Protocol):
    """The backups of the broker."""

    @property
    def latest(self) -> Backup | None:
        """The one that is running or was the last."""

    def start(self, dest: Path, rate: int) -> Backup:
        """Start a backup. Raises StorageError if one is running."""


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
    statuses=(200,),
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


def _of(call: Call) -> Backups:
    """Return the broker's backups; raises ForbiddenError for users, BadRequestError for a broker without data."""
    if call.actor is not None:
        raise ForbiddenError(FORBIDDEN)
    backups: Backups | None = call.broker.backups
    if backups is None:
        raise BadRequestError("the broker has no data directory")
    return backups


def _latest(call: Call) -> Backup:
    backup = _of(call).latest
    if backup is None:
        raise not_found()
    return backup


def _item(backup: Backup) -> Item:
    value: dict[str, Any] = {
        "path": str(backup.dest),
        "state": str(backup.state),
        "copied": backup.octets,
        "total": backup.total,
        "seconds": round(backup.seconds, 3),
        "files": backup.files,
        "error": backup.error,
    }
    return Item(value)
