"""The nodes of a broker whose log is replicated, as operators see and change them."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from leveret.broker.administration.access import AdministeredBroker, BadRequestError, Right, authorize
from leveret.broker.auth.users import User


class Figures(NamedTuple):
    """Figures of a node for metrics."""

    role: int
    """1 while it leads, 0 while it waits."""
    epoch: int
    lag_batches: int
    lag_seconds: float
    append_seconds: float


class Cluster(Protocol):
    """The cluster, as a node sees it (`broker.replication.control`)."""

    def figures(self) -> Figures:
        """Return the figures for metrics."""

    def described(self) -> dict[str, Any]:
        """Return the state of the node and of the others, as a value of JSON."""

    def member_problem(self) -> str:
        """Return the reason for which this node could not take over now; '' if it could, or leads."""

    def transfer_problem(self, successor: str) -> str:
        """Return the reason for which the lead cannot be handed over; '' if it can."""

    def transfer(self, successor: str) -> None:
        """Begin to hand over: to a member, or to any that comes first."""

    def forget_problem(self, name: str) -> str:
        """Return the reason for which a member cannot be forgotten; '' if it can."""

    def forget(self, name: str, done: Callable[[None], object]) -> None:
        """Remove a member, and call back once it is gone."""

    def acceptance_problem(self) -> str:
        """Return the reason for which there is no log to be accepted; '' if there is one."""

    def accept_log(self) -> None:
        """Go on with a log that is shorter than the copies of all nodes."""


class ClusterAdministration:
    """The cluster. Every method takes the acting user first (`access.authorize`).

    Args:
        broker: the administered broker.

    """

    def __init__(self, broker: AdministeredBroker) -> None:
        self._broker = broker

    def described(self, actor: User | None) -> dict[str, Any]:
        """Return the state of the cluster; that of one node if the log is not replicated."""
        authorize(self._broker.users, actor, Right.MONITORING)
        cluster = self._broker.cluster
        return {"replicated": False} if cluster is None else cluster.described()

    def transfer(self, actor: User | None, successor: str) -> None:
        """Begin to hand over to another node; '' for any. Raises BadRequestError if none can take over."""
        cluster = self._cluster(actor)
        _check(cluster.transfer_problem(successor))
        cluster.transfer(successor)

    def forget(self, actor: User | None, name: str) -> Callable[[Callable[[None], object]], None]:
        """Return what removes a member that is down, and calls back then. Raises BadRequestError."""
        cluster = self._cluster(actor)
        _check(cluster.forget_problem(name))
        return lambda done: cluster.forget(name, done)

    def accept_log(self, actor: User | None) -> None:
        """Go on with a log that is shorter than the copies of all nodes. Raises BadRequestError if it is not."""
        cluster = self._cluster(actor)
        _check(cluster.acceptance_problem())
        cluster.accept_log()

    def _cluster(self, actor: User | None) -> Cluster:
        authorize(self._broker.users, actor, Right.ADMINISTRATOR)
        cluster: Cluster | None = self._broker.cluster
        if cluster is None:
            raise BadRequestError("this broker is one node: replication.url is not set")
        return cluster


def _check(problem: str) -> None:
    if problem:
        raise BadRequestError(problem)
