"""The node: its resource limits, its log, its end."""

import logging
import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from leveret.broker.administration.access import AdministeredBroker, BadRequestError, Right, authorize
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.users import LoginRefusedError, User
from leveret.broker.process.logs import CATEGORIES, LEVELS, LOGGER_NAME
from leveret.broker.process.resource_alarms import memory_limit, total_memory

LOOPBACK = "127.0.0.1"


class ProcessControl(Protocol):
    """The process, if it is the broker's own (`broker.cli.main`)."""

    def stop(self) -> None:
        """Begin the shutdown, as SIGTERM does."""

    def reopen_logs(self) -> None:
        """Reopen the log files, as SIGHUP does."""


class NodeAdministration:
    """The node. Every method takes the acting user first (`access.authorize`).

    Args:
        broker: the administered broker.

    """

    def __init__(self, broker: AdministeredBroker) -> None:
        self._broker = broker

    def resources(self, actor: User | None) -> dict[str, Any]:
        """Return process, memory and disk: in use, limits, and whether their alarms are raised; bytes."""
        broker = self._broker
        authorize(broker.users, actor, Right.MONITORING)
        memory, disk = broker.resource_monitor.memory, broker.resource_monitor.disk
        return {
            "node": broker.clients.node_name,
            "pid": os.getpid(),
            "os": "Windows" if sys.platform == "win32" else os.uname().sysname,
            "memory": {
                "used": memory.used,
                "limit": memory.limit,
                "total": total_memory(),
                "alarm": memory.raised,
            },
            "disk": {"free": disk.free, "limit": disk.limit, "alarm": disk.raised, "full": disk.full},
        }

    def set_memory_watermark(self, actor: User | None, limit: Mapping[str, Any]) -> int:
        """Set the limit of the memory alarm until the next start, and check it at once; returns it in bytes.

        Args:
            actor: the acting user.
            limit: `relative`, a fraction of the total memory from 0 to 1, or `absolute`, bytes.

        Raises:
            BadRequestError: it has neither or an invalid one.

        """
        broker = self._broker
        authorize(broker.users, actor, Right.ADMINISTRATOR)
        octets = _limit(limit, memory_limit(None, 1.0), most=1)
        broker.resource_monitor.memory.limit = octets
        broker.resource_monitor.check_memory(0.0)
        return octets

    def set_disk_free_limit(self, actor: User | None, limit: Mapping[str, Any]) -> int:
        """Set the limit of the disk alarm until the next start; returns it in bytes.

        Args:
            actor: the acting user.
            limit: `mem_relative`, a multiple of the total memory, or `absolute`, bytes.

        Raises:
            BadRequestError: it has neither or an invalid one.

        """
        broker = self._broker
        authorize(broker.users, actor, Right.ADMINISTRATOR)
        given = {"relative" if key == "mem_relative" else key: value for key, value in limit.items()}
        octets = _limit(given, total_memory(), most=100)
        broker.resource_monitor.disk.limit = octets
        broker.resource_monitor.check_disk()
        return octets

    def set_log_level(self, actor: User | None, level: str, category: str = "") -> None:
        """Set the minimum level of what is logged, of all categories ('' or `default`) or of one.

        Raises BadRequestError for an unknown level or category.
        """
        authorize(self._broker.users, actor, Right.ADMINISTRATOR)
        if level not in LEVELS:
            raise BadRequestError(f"level must be one of {', '.join(LEVELS)}")
        name = LOGGER_NAME
        if category and category != "default":
            if category not in CATEGORIES:
                raise BadRequestError(f"category must be default or one of {', '.join(CATEGORIES)}")
            name = f"{LOGGER_NAME}.{category}"
        logging.getLogger(name).setLevel(LEVELS[level])

    def rotate_logs(self, actor: User | None) -> None:
        """Reopen the log files, for example after they were moved; raises BadRequestError."""
        self._process(actor).reopen_logs()

    def reload_tls(self, actor: User | None, done: Callable[[list[str]], object]) -> None:
        """Read the certificates of listeners again; nothing happens if there is none with TLS.

        Args:
            actor: the acting user.
            done: called with a sentence about each that cannot be used, instead of which the old one stays in use.

        """
        authorize(self._broker.users, actor, Right.ADMINISTRATOR)
        self._broker.reload_tls(done)

    def forget_decisions(self, actor: User | None) -> None:
        """Forget what authentication backends have decided: they are asked again, within a second."""
        authorize(self._broker.users, actor, Right.ADMINISTRATOR)
        self._broker.forget_decisions()

    def stop(self, actor: User | None) -> None:
        """Begin the shutdown; raises BadRequestError."""
        self._process(actor).stop()

    def authenticate(self, actor: User | None, name: str, password: str) -> str:
        """Check a user's password; returns '' or the reason for which the login would be refused."""
        users = self._broker.users
        authorize(users, actor, Right.ADMINISTRATOR)
        try:
            users.authenticate(name, Password(password), LOOPBACK)
        except LoginRefusedError as error:
            return str(error)
        return ""

    def _process(self, actor: User | None) -> ProcessControl:
        authorize(self._broker.users, actor, Right.ADMINISTRATOR)
        process: ProcessControl | None = self._broker.process
        if process is None:
            raise BadRequestError("this broker is part of an application, which alone can do that")
        return process


def _limit(limit: Mapping[str, Any], total: int, *, most: float) -> int:
    """Return a limit in bytes, given as `relative` to a total, or as `absolute`."""
    for key, unit, highest in (("relative", total, most), ("absolute", 1, math.inf)):
        value = limit.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= highest:
            return int(value * unit)
    raise BadRequestError(f"the limit must be a fraction from 0 to {most} ('relative') or bytes ('absolute')")
