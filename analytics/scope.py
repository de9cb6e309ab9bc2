"""The part of the input that a command asks for: a range of time, a virtual host, a queue. Pure."""

import dataclasses
from datetime import UTC, datetime
from typing import Final


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """The part to analyse; None is everything."""

    since_ms: int | None = None  # the first millisecond (Unix time)
    until_ms: int | None = None  # the last
    vhost: str | None = None  # tables with virtual hosts are reduced to this one
    queue: str | None = None  # tables with queues are reduced to the queues of this name

    @property
    def is_all(self) -> bool:
        """True if nothing is left out."""
        return self == Scope()

    @property
    def has_range(self) -> bool:
        """True if only some time is asked for."""
        return self.since_ms is not None or self.until_ms is not None

    @property
    def has_objects(self) -> bool:
        """True if only some queues or virtual hosts are asked for, which figures of a whole node do not tell."""
        return self.vhost is not None or self.queue is not None

    def options(self) -> list[str]:
        """Return the options of the command that ask for it."""
        given = {
            "--since": self.since_ms,
            "--until": self.until_ms,
            "--vhost": self.vhost,
            "--queue": self.queue,
        }
        return [option for option, value in given.items() if value is not None]

    def words(self) -> str:
        """Return what is asked for in words; empty for everything."""
        said = []
        if self.since_ms is not None:
            said.append(f"since {written(self.since_ms)}")
        if self.until_ms is not None:
            said.append(f"until {written(self.until_ms)}")
        if self.vhost is not None:
            said.append(f"virtual host {self.vhost}")
        if self.queue is not None:
            said.append(f"queue {self.queue}")
        return ", ".join(said)


EVERYTHING: Final = Scope()


def written(ms: int) -> str:
    """Return a time (ms) as pages write it, in UTC."""
    return f"{moment(ms):%Y-%m-%d %H:%M:%S}"


def moment(ms: int) -> datetime:
    """Return a time (ms) in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)
