"""The part of the input that a command asks for: a range of time, a virtual host, a queue. Pure."""

import dataclasses
from datetime import UTC, datetime
from typing import Final

OPTIONS: Final = ("--since", "--until", "--vhost", "--queue")


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

    def told(self) -> dict[str, str]:
        """Return what is asked for in words, by the options of the command that ask for it; empty for everything."""
        times = [None if ms is None else written(ms) for ms in (self.since_ms, self.until_ms)]
        names = ("since", "until", "virtual host", "queue")
        given = zip(OPTIONS, names, (*times, self.vhost, self.queue), strict=True)
        return {option: f"{name} {value}" for option, name, value in given if value is not None}


EVERYTHING: Final = Scope()


def written(ms: int) -> str:
    """Return a time (ms) as pages write it, in UTC."""
    return f"{moment(ms):%Y-%m-%d %H:%M:%S}"


def moment(ms: int) -> datetime:
    """Return a time (ms) in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)
