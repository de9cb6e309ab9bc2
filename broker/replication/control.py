"""The cluster as the node of this process sees it, for operators (`broker.administration.access.Cluster`)."""

from collections.abc import Callable
from typing import Any

from leveret.broker.administration.access import Figures
from leveret.broker.replication.keeper import Keeper
from leveret.broker.replication.standing import (
    described,
    figures,
    forget_problem,
    member_problem,
    transfer_problem,
)


class Control:
    """Shows the cluster, and changes it.

    Args:
        keeper: of the node.
        warnings: what is wrong by the configuration.

    """

    def __init__(self, keeper: Keeper, warnings: list[str]) -> None:
        self._keeper = keeper
        self._warnings = warnings
        self.on_transfer: Callable[[str], object] = str
        """Called with the name of the successor, which may be empty, to begin to hand over."""

    def figures(self) -> Figures:
        """Return the figures for metrics."""
        keeper = self._keeper
        return figures(keeper.node, keeper.append_seconds, keeper.now)

    def described(self) -> dict[str, Any]:
        """Return the state of the node and of the others, as a value of JSON."""
        keeper = self._keeper
        return described(
            keeper.node,
            keeper.append_seconds,
            keeper.now,
            is_answered=keeper.is_answered,
            warnings=self._warnings,
        )

    def member_problem(self) -> str:
        """Return the reason for which this node could not take over now; '' if it could, or leads."""
        return member_problem(self._keeper.node, self._keeper.now)

    def transfer_problem(self, successor: str) -> str:
        """Return the reason for which the lead cannot be handed over; '' if it can."""
        return transfer_problem(self._keeper.node, successor, self._keeper.now)

    def transfer(self, successor: str) -> None:
        """Begin to hand over: to a member, or to any that comes first."""
        self.on_transfer(successor)

    def forget_problem(self, name: str) -> str:
        """Return the reason for which a member cannot be forgotten; '' if it can."""
        return forget_problem(self._keeper.node, name, self._keeper.now)

    def forget(self, name: str, done: Callable[[None], object]) -> None:
        """Remove a member, and call back once it is gone."""
        self._keeper.forget(name, done)

    def acceptance_problem(self) -> str:
        """Return the reason for which there is no log to be accepted; '' if there is one."""
        if self._keeper.node.is_too_short:
            return ""
        return "the log is not shorter than the copies of all nodes"

    def accept_log(self) -> None:
        """Go on with a log that is shorter than the copies of all nodes."""
        self._keeper.accept_log()
