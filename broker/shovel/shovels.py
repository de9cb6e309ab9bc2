"""The shovels of a broker: one for each parameter of component `shovel` (driver)."""

import asyncio
import logging
import time
from typing import Any, Protocol

from leveret.broker.client.tls import Contexts
from leveret.broker.shovel.definition import Definition
from leveret.broker.shovel.pace import Pace
from leveret.broker.shovel.session import Shared, ShovelHost
from leveret.broker.shovel.worker import State, Worker
from leveret.broker.vhost.parameter_checks import SHOVEL
from leveret.broker.vhost.parameters import Parameters

log = logging.getLogger("leveret.shovel")


class ShovelsHost(ShovelHost, Protocol):
    """The broker that shovels run in."""

    parameters: Parameters


class Shovels:
    """The shovels that run.

    Args:
        host: the broker, in its event loop.

    """

    def __init__(self, host: ShovelsHost) -> None:
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
            self._host.schedule_turn()

    def _completed(self, vhost: str, name: str, value: object) -> None:
        """Delete a shovel that has moved all it should, unless another one has been set under its name meanwhile."""
        found = self._host.vhosts.get(vhost)
        if found is not None and found.parameters.get(SHOVEL, name) is value:
            found.parameters.clear(SHOVEL, name)
            self._host.run_turn()

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
            "timestamp": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(worker.since / 1000)),
            "name": definition.name,
            "vhost": definition.vhost,
            "type": "dynamic",
            "state": str(worker.state),
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


async def _end(worker: Worker, before: "asyncio.Task[None] | None") -> None:
    """Stop a shovel; it is over when those of its name before it are, for which it has waited itself."""
    await worker.stop()
    if before is not None:
        await asyncio.wait((before,))
