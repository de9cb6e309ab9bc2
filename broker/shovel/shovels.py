"""The shovels of a broker (driver), one for each parameter `shovel`: they connect, again after failures, to the end."""

import asyncio
import logging
import time
from collections.abc import Callable
from enum import StrEnum
from math import inf
from typing import Any

from leveret.broker.administration.access import AdministeredBroker
from leveret.broker.client.errors import ClientError
from leveret.broker.client.sockets import Contexts
from leveret.broker.shovel.definition import Definition
from leveret.broker.shovel.pace import Pace
from leveret.broker.shovel.session import Session, Shared
from leveret.broker.vhost.parameter_checks import SHOVEL
from leveret.broker.vhost.shovel_keys import PROTOCOL

log = logging.getLogger("leveret.shovel")

STOP_SECONDS = 6.0  # time for a shovel to end in order
REPEAT_SECONDS = 60.0  # time for which the same failure is not logged again: it comes each second


class State(StrEnum):
    """The states of a shovel, under RabbitMQ's names."""

    STARTING = "starting"
    RUNNING = "running"
    TERMINATED = "terminated"


class Worker:
    """One shovel, which runs from `start` to `stop`; `on_complete` is called once all messages of a limit are moved."""

    def __init__(
        self,
        definition: Definition,
        host: AdministeredBroker,
        shared: Shared,
        on_complete: Callable[[], object],
    ) -> None:
        self.definition = definition
        self._host = host
        self._shared = shared
        self._on_complete = on_complete
        self.state = State.STARTING  # its state
        self.reason = ""  # why it is terminated; '' otherwise
        self.since = host.wall_clock()  # time of the last change of the state, in epoch ms
        self._moved = 0
        self._left: int | None = None
        self.session: Session | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._logged = ("", -inf)  # reason of the last failure that was logged, and its time of the loop
        self._announced = -inf  # the time at which its beginning was logged

    def start(self, after: "asyncio.Task[None] | None" = None) -> None:
        """Start; `after`: the end of the shovel that had this name before."""
        self._task = asyncio.get_running_loop().create_task(self._work(after))

    async def stop(self) -> None:
        """End: what is under way is confirmed and acked first if that takes no longer than a moment."""
        self._is_stopping = True
        task = self._task
        if task is None:
            return
        if self.session is None or self.state is not State.RUNNING:
            task.cancel()
        else:
            self.session.stop()
        await asyncio.wait((task,), timeout=STOP_SECONDS)
        task.cancel()

    def abandon(self) -> None:
        """End without a word."""
        self._is_stopping = True
        if self.session is not None:
            self.session.drop()
        if self._task is not None:
            self._task.cancel()

    @property
    def forwarded(self) -> int:
        """Number of messages moved so far."""
        return self._moved + (0 if self.session is None else self.session.forwarding.settled)

    @property
    def details(self) -> dict[str, Any]:
        """Facts that belong to its state, under RabbitMQ's names; URIs have no logins."""
        session = self.session
        if self.state is State.TERMINATED:
            return {"reason": self.reason}
        if self.state is not State.RUNNING or session is None:
            return {}
        return {
            "src_uri": session.source,
            "src_protocol": PROTOCOL,
            "dest_protocol": PROTOCOL,
            "dest_uri": session.destination,
            **_keyed(self.definition.ends()),
        }

    def _enter(self, state: State, reason: str = "") -> None:
        self.state, self.reason = state, reason
        self.since = self._host.wall_clock()
        self._host.context.tell(
            "shovel_status", self.definition.vhost, self.definition.name, str(state), self.details
        )
        self._host.loop.schedule_turn()

    async def _work(self, after: "asyncio.Task[None] | None") -> None:
        if after is not None:
            await asyncio.wait((after,))  # which goes on if this is cancelled
        name, vhost = self.definition.name, self.definition.vhost
        while True:
            self._enter(State.STARTING)
            reason, is_complete = "", False
            try:
                is_complete = await self._attempt()
            except ClientError as error:
                reason = str(error)
            except Exception:
                log.exception("internal error of shovel '%s' in vhost '%s'", name, vhost)
                reason = "internal error"
            if is_complete:
                log.info("shovel '%s' in vhost '%s' has moved all messages, and is deleted", name, vhost)
                self._on_complete()
                return
            if self._is_stopping:
                return
            self._enter(State.TERMINATED, reason or "messages were refused")
            self._log_failure()
            if not self.definition.reconnect_seconds:
                return
            await asyncio.sleep(self.definition.reconnect_seconds)

    @property
    def _is_logged(self) -> bool:
        return asyncio.get_running_loop().time() < self._logged[1] + REPEAT_SECONDS

    def _log_failure(self) -> None:
        if self._logged[0] == self.reason and self._is_logged:
            return
        self._logged = self.reason, asyncio.get_running_loop().time()
        seconds = self.definition.reconnect_seconds
        log.error(
            "shovel '%s' in vhost '%s' has stopped: %s; %s",
            self.definition.name,
            self.definition.vhost,
            self.reason,
            f"it tries again every {seconds:g} s, which is logged once a minute"
            if seconds
            else "`leveret ctl restart_shovel` starts it again",
        )

    async def _attempt(self) -> bool:
        """Run once; returns whether all messages are moved."""
        level = logging.DEBUG if self._is_logged else logging.WARNING
        session = self.session = Session(self.definition, self._host, self._shared, self._left, level)
        drains = False
        try:
            await session.open()
            self._enter(State.RUNNING)
            now = asyncio.get_running_loop().time()
            if now >= self._announced + REPEAT_SECONDS:
                self._announced = now
                ends = (self.definition.name, self.definition.vhost, session.source, session.destination)
                log.info("shovel '%s' in vhost '%s' moves messages from %s to %s", *ends)
            await session.run()
            drains = True
        finally:
            try:
                await session.close(drains=drains)
            finally:  # of what is still open if this was cancelled
                session.drop()
                self.session = None
                self._moved += session.forwarding.settled
                if session.left is not None:
                    self._left = max(0, session.left - session.forwarding.settled)
        return self._left == 0


class Shovels:
    """The shovels that run in a broker, in its event loop."""

    def __init__(self, host: AdministeredBroker) -> None:
        self._host = host
        self._shared = Shared(Pace(), Contexts())
        self._workers: dict[tuple[str, str], Worker] = {}
        self._ending: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._is_stopping = False

    def start(self) -> None:
        """Start all shovels that there are."""
        for vhost in self._host.vhosts.values():
            for component, name, _ in vhost.parameters.items():
                if component == SHOVEL:
                    self.changed(vhost.name, name)

    def changed(self, vhost: str, name: str) -> None:
        """Start, replace or stop a shovel after a change of its parameter."""
        self._stop(vhost, name)
        found = self._host.vhosts.get(vhost)
        value = None if found is None else found.parameters.get(SHOVEL, name)
        if found is None or value is None:
            return
        try:
            definition = Definition.of(vhost, name, value, found.parameters.setter(SHOVEL, name))
        except Exception:  # of another version: it must not keep the broker from starting
            log.exception("shovel '%s' in vhost '%s' cannot run", name, vhost)
            return
        worker = Worker(definition, self._host, self._shared, lambda: self._completed(vhost, name, value))
        self._workers[vhost, name] = worker
        worker.start(self._ending.get((vhost, name)))

    def restart(self, vhost: str, name: str) -> bool:
        """Restart a shovel; returns whether there is one."""
        if (vhost, name) not in self._workers:
            return False
        self.changed(vhost, name)
        return True

    def _stop(self, vhost: str, name: str) -> None:
        worker = self._workers.pop((vhost, name), None)
        if worker is not None:
            task = asyncio.get_running_loop().create_task(_end(worker, self._ending.get((vhost, name))))
            self._ending[vhost, name] = task
            task.add_done_callback(lambda done: self._ended((vhost, name), done))

    def _ended(self, key: tuple[str, str], task: asyncio.Task[None]) -> None:
        if self._ending.get(key) is task:
            del self._ending[key]
        if not self._is_stopping:
            self._host.context.tell("shovel_removed", *key)
            self._host.loop.schedule_turn()

    def _completed(self, vhost: str, name: str, value: object) -> None:
        """Delete a shovel that has moved all it should, unless another one has been set under its name meanwhile."""
        found = self._host.vhosts.get(vhost)
        if found is not None and found.parameters.get(SHOVEL, name) is value:
            found.parameters.clear(SHOVEL, name)
            self._host.loop.run_turn()

    async def stop(self) -> None:
        """Stop all shovels."""
        self._is_stopping = True
        for vhost, name in list(self._workers):
            self._stop(vhost, name)
        if self._ending:
            await asyncio.wait(set(self._ending.values()))

    def abandon(self) -> None:
        """Stop all shovels without a word."""
        self._is_stopping = True
        for worker in self._workers.values():
            worker.abandon()
        for task in self._ending.values():
            task.cancel()
        self._workers.clear()
        self._ending.clear()

    def statuses(self) -> list[dict[str, Any]]:
        """Return the status of each shovel under RabbitMQ's names; URIs have no logins."""
        return [self._status(worker) for worker in self._workers.values()]

    def _status(self, worker: Worker) -> dict[str, Any]:
        definition, session = worker.definition, worker.session
        status: dict[str, Any] = {
            "timestamp": time.strftime(
                "%Y-%m-%d %H:%M:%S", time.localtime(worker.since / 1000)
            ),  # as in RabbitMQ
            "state_since": worker.since,
            "name": definition.name,
            "vhost": definition.vhost,
            "type": "dynamic",
            "state": str(worker.state),
            **_keyed({**definition.brokers, **definition.ends()}),  # RabbitMQ tells them of running ones only
        }
        status |= worker.details
        if worker.state is State.RUNNING and session is not None:
            status |= {
                "state": session.state,
                "blocked_status": session.state,
                "pending": session.forwarding.unconfirmed,
            }
            if session.left is not None:
                status["remaining"] = max(0, session.left - session.forwarding.settled)
        return {**status, "forwarded": worker.forwarded}


def _keyed(keys: dict[str, str]) -> dict[str, str]:
    """Return the keys of a definition as those of a status."""
    return {key.replace("-", "_"): name for key, name in keys.items()}


async def _end(worker: Worker, before: "asyncio.Task[None] | None") -> None:
    """Stop a shovel; it is over when those of its name before it are, for which it has waited itself."""
    await worker.stop()
    if before is not None:
        await asyncio.wait((before,))
