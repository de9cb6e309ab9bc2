"""The part of the input that a command asks for: a range of time, a virtual host, a queue."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql import Column, functions as F

from leveret.analytics.schemas import Table

_MARGIN: Final = timedelta(hours=1)
"""A row may be in the directory of the hour after its own, in which it was written."""


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

    def hours(self) -> Column:
        """Return the condition on `dt` and `hour` of directories that may have rows of the range."""
        hour = F.concat_ws("T", "dt", "hour")
        wanted = F.lit(True)
        if self.since_ms is not None:
            wanted &= hour >= f"{_time(self.since_ms) - _MARGIN:%Y-%m-%dT%H}"
        if self.until_ms is not None:
            wanted &= hour <= f"{_time(self.until_ms) + _MARGIN:%Y-%m-%dT%H}"
        return wanted

    def condition(self, table: Table) -> Column:
        """Return the condition on the rows of a table that are asked for."""
        names = {column.name for column in table.columns}
        wanted = F.lit(True)
        if "ts" in names and self.since_ms is not None:
            wanted &= F.col("ts") >= self.since_ms
        if "ts" in names and self.until_ms is not None:
            wanted &= F.col("ts") <= self.until_ms
        if "vhost" in names and self.vhost is not None:
            wanted &= F.col("vhost") == self.vhost
        if self.queue is not None:
            if "queue" in names:
                wanted &= F.col("queue") == self.queue
            elif table.name == "latency_hist":
                wanted &= (F.col("scope") == "queue") & (F.col("name") == self.queue)
            elif table.name == "event":
                # The name of an event is that of its object, which is a queue or not.
                wanted &= F.col("kind").rlike("^(queue|consumer)_") & (F.col("name") == self.queue)
        return wanted

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
    return f"{_time(ms):%Y-%m-%d %H:%M:%S}"


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
