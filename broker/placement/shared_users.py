"""The users that logs of a database share: read from where the leader of their log publishes them (driver)."""

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import msgspec

from leveret.broker.auth.users import Users
from leveret.broker.config.config import Config
from leveret.broker.metadata.recorder import text
from leveret.broker.placement.database_reads import DatabaseReads
from leveret.broker.placement.messages import Rows
from leveret.broker.placement.node_rows import FollowedRows, changes_to, in_order, is_shared
from leveret.broker.replication.directory import LogFacts
from leveret.broker.replication.settings import Settings
from leveret.broker.replication.takeover import Roll
from leveret.storage.store.metadata_rows import decode

log = logging.getLogger("leveret.replication")

_NO_LEADER: Final = "its leader, once there is one"
STALE_SECONDS: Final = 10.0  # age from which users are reported as old
GONE_SECONDS: Final = 30.0
"""Time without a virtual host in any log after which its permissions are removed; a move, or a start, takes less."""


def without_users(config: Config) -> Config:
    """Return a configuration that creates no users in a new store."""
    limits = msgspec.structs.replace(config.limits, user_limits={})
    return msgspec.structs.replace(config, users=(), topic_permissions=(), limits=limits)


class SharedUsers(DatabaseReads):
    """The users, permissions and global parameters of log `name`, for a node of another log or a front.

    In a node of that log (`is_owner`) only the virtual hosts of the others are read.
    """

    def __init__(self, reader: Any, name: str, *, is_owner: bool) -> None:
        super().__init__(reader, f"the users of log {name}")
        self.name = name
        self.is_owner = is_owner
        self.rows: dict[bytes, bytes] = {}
        self.on_change: Callable[[Rows], object] | None = None  # called with changes of the rows
        self.on_gone: Callable[[str], object] | None = None
        """Called, again and again, with each of `named` that no log has any more."""
        self.named: Callable[[], set[str]] = set  # returns the names of virtual hosts that permissions have
        self.vhosts: frozenset[str] = frozenset()  # of all logs
        self._since = (0, -1)
        self._roll = Roll("", Settings())
        self._leader = _NO_LEADER
        self._read_at: float | None = None  # by the monotonic clock
        self._missing: dict[str, float] = {}

    def joined(self, rows: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return stored rows with these users instead of their own."""
        if self.is_owner:
            return rows
        return [*(row for row in rows if not is_shared(row[0])), *list(self.rows.items())]

    @classmethod
    def of(cls, config: Config, servers: Any) -> "SharedUsers | None":
        """Return those of a configuration; None if users are of this log, or this broker, alone."""
        if not (name := config.placement.users_log):
            return None
        from leveret.broker.replication.postgresql_directory import LogReader  # noqa: PLC0415 - an extra

        return cls(LogReader(servers), name, is_owner=config.replication.log == name)

    def load(self, server: Any, rows: Iterable[tuple[bytes, bytes]], load: Callable[[Any], Any]) -> Any:
        """Have `load` create what stored rows of a server say, but with these users, which it follows from now on."""
        loaded = load([row for row in rows if not is_shared(row[0])])
        server.users.are_shared = True
        followed = FollowedRows(server.directory)
        followed.follow(in_order(self.rows.items()))

        def follow(changes: Rows) -> None:
            followed.follow(changes)
            server.loop.run_and_finish_turn()

        self.on_change = lambda changes: server.loop.run_step("change of users", partial(follow, changes))
        return loaded

    def watch(self, server: Any) -> None:
        """Have the server that owns the users remove the rights in virtual hosts that no log has any more."""

        def gone(name: str) -> None:
            log.warning("virtual host '%s' is in no log any more: the rights in it are removed", name)
            server.users.remove_vhost(name)
            server.loop.run_and_finish_turn()

        users: Users = server.users
        self.named = lambda: users.vhosts() - set(server.vhosts)
        self.on_gone = lambda name: server.loop.run_step("end of rights", partial(gone, name))

    @property
    def age(self) -> float | None:
        """Seconds since these were the users of the log; None before the first answer."""
        return None if self._read_at is None else time.monotonic() - self._read_at

    @property
    def warning(self) -> str:
        """`problem`, with the age of users that are old; '' for none."""
        if self.is_owner or self.age is None or self.age < STALE_SECONDS:
            return self.problem
        return (
            f"the users of log {self.name} were read {self.age:.0f} s ago: {self.problem or 'no answer yet'}"
        )

    @property
    def refusal(self) -> str:
        """Reason for which no user can be changed here, and the place where one can; '' if here."""
        return (
            "" if self.is_owner else f"the users are those of log {self.name}: change them at {self._leader}"
        )

    async def _read(self) -> str:
        logs: list[LogFacts] = await self._reader.read()
        found = None if self.is_owner else await self._reader.users(self.name, self._since)
        problem = self._take_logs(logs)
        if found is not None:
            self._take_rows(found)
        elif not self.is_owner:
            return f"log {self.name} has published no users yet"
        self._read_at = time.monotonic()
        return problem

    def _take_logs(self, logs: list[LogFacts]) -> str:
        self.vhosts = frozenset(text(vhost) for each in logs for vhost in each.vhosts)
        facts = next((each for each in logs if each.name == self.name), None)
        now = time.monotonic()
        self._roll.note(() if facts is None else facts.members, now)
        up = self._roll.others_up(now, proved=False)
        leaders = [each for each in up if facts is not None and each.name == facts.leader]
        self._leader = _NO_LEADER
        for each in leaders:
            self._leader = f"its leader, {each.name} at {each.address}"
        self._look_for_gone(now)
        return "" if leaders else f"no node leads log {self.name}: its users stay as they are"

    def _take_rows(self, found: Any) -> None:
        epoch, number, rows, is_whole = found
        changes = changes_to(self.rows, rows, is_whole=is_whole)
        for key, value in changes:
            if value is not None:
                decode(key, value)
        if changes and self.on_change is not None:
            self.on_change(changes)
        self._since = epoch, number  # from now on: changes that fail are read again
        for key, value in changes:
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def _look_for_gone(self, now: float) -> None:
        if self.on_gone is None:
            return
        missing = self.named() - self.vhosts
        self._missing = {name: self._missing.get(name, now) for name in missing}
        for name, since in self._missing.items():
            if now - since >= GONE_SECONDS:
                self.on_gone(name)
