"""The logs of a database as a broker sees them that forwards clients to the nodes which lead (driver)."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from leveret.broker.config.values import BrokerAddress, broker_addresses
from leveret.broker.metadata.recorder import octets, text
from leveret.broker.placement.database_reads import DatabaseReads
from leveret.broker.placement.shared_users import SharedUsers
from leveret.broker.replication.directory import LogFacts, balanced
from leveret.broker.replication.engine import NoAnswerError
from leveret.broker.replication.settings import Settings
from leveret.broker.replication.takeover import Roll

MISS_SECONDS: Final = 0.2  # age from which it is read again for a client of a virtual host that is not in it


class Reader(Protocol):
    """A connection to the database."""

    async def read(self) -> list[LogFacts]:
        """Return all logs; raises NoAnswerError."""

    async def want(self, log: LogFacts, successor: str) -> None:
        """Have the leader of a log hand over; raises NoAnswerError."""

    async def close(self) -> None:
        """Close the connection."""


class Logs(DatabaseReads):
    """The logs, read again and again; with `is_tls` no client is sent to a node without TLS."""

    def __init__(self, reader: Reader, *, is_tls: bool, shared: SharedUsers | None = None) -> None:
        super().__init__(reader, "the directory of logs")
        self._shared = shared
        self._is_tls = is_tls
        self._found: list[LogFacts] = []
        self._rolls: dict[str, Roll] = {}
        self._by_vhost: dict[bytes, LogFacts] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self.is_known = False  # True once the database has answered

    async def close(self) -> None:
        """Read no more, and end the hand-overs that are being asked for."""
        for task in self._jobs:
            task.cancel()
        if self._jobs:
            await asyncio.wait(self._jobs)
        await super().close()

    async def _read(self) -> str:
        self._take(await self._reader.read(), time.monotonic())
        self.is_known = True
        return ""

    def _take(self, found: list[LogFacts], now: float) -> None:
        by_vhost: dict[bytes, LogFacts] = {}
        rolls: dict[str, Roll] = {}
        for each in found:
            rolls[each.name] = roll = self._rolls.get(each.name) or Roll("", Settings())
            roll.note(each.members, now)
            for vhost in each.vhosts:
                by_vhost.setdefault(vhost, each)  # they are by name
        self._found, self._rolls, self._by_vhost = found, rolls, by_vhost

    async def addresses(self, vhost: str) -> tuple[BrokerAddress, ...] | None:
        """Return the addresses of the nodes of a virtual host, that of the leader first; None if no log has it."""
        name = octets(vhost)
        if name not in self._by_vhost:
            await self.read(MISS_SECONDS)
        if (facts := self._by_vhost.get(name)) is None:
            return None if self.is_known else ()
        members = sorted(facts.members, key=lambda each: each.name != facts.leader)
        found = []
        for member in members:
            try:
                address = broker_addresses(member.address)[0]
            except ValueError:
                continue  # `described` reports it
            if address.is_tls or not self._is_tls:
                found.append(address)
        return tuple(found)

    # -- for operators ------------------------------------------------------------------------------------------------

    def described(self) -> dict[str, Any]:
        """Return the logs as a value of JSON."""
        return {
            "replicated": False,
            "logs": [
                {
                    "name": each.name,
                    "leader": each.leader,
                    "epoch": each.epoch,
                    "vhosts": [text(vhost) for vhost in each.vhosts],
                    "nodes": {
                        member.name: {"address": member.address, "is_up": member.name in up}
                        for member in each.members
                    },
                }
                for each, up in ((each, self._up(each)) for each in self._found)
            ],
            "problems": list(self._problems()),
        }

    def _up(self, facts: LogFacts, *, proved: bool = False) -> set[str]:
        roll = self._rolls[facts.name]
        return {each.name for each in roll.others_up(time.monotonic(), proved=proved)}

    def _problems(self) -> Iterator[str]:
        yield from dict.fromkeys(
            filter(None, (self.problem, self._shared.warning if self._shared is not None else ""))
        )
        for each in self._found:
            if not each.leader:
                yield f"no node leads log {each.name}"
            for vhost in each.vhosts:
                if (other := self._by_vhost[vhost].name) != each.name:
                    yield f"virtual host '{text(vhost)}' is in log {other}, which clients get to, and in {each.name}"
            for member in each.members:
                try:
                    is_tls = broker_addresses(member.address)[0].is_tls
                except ValueError as error:
                    yield f"log {each.name}: the address {member.address} of node {member.name} {error}"
                else:
                    if self._is_tls and not is_tls:
                        yield f"log {each.name}: the address {member.address} of node {member.name} is without TLS"

    def balance(self, done: Callable[[list[dict[str, str]] | str], object]) -> None:
        """Have each node lead its share; calls back with the hand-overs that are to follow, or why there are none."""
        task = asyncio.get_running_loop().create_task(self._balance(done))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _balance(self, done: Callable[[list[dict[str, str]] | str], object]) -> None:
        await self.read()
        if self.problem:
            done(self.problem)
            return
        up = {each.name: self._up(each, proved=True) for each in self._found}
        wanted = balanced(self._found, up)
        try:
            async with self._lock:
                for each in wanted:
                    await self._reader.want(each.log, each.successor)
        except NoAnswerError as error:
            done(f"the database does not answer: {error}")
            return
        done([{"log": each.log.name, "from": each.log.leader, "to": each.successor} for each in wanted])
