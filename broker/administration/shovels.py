"""Status of shovels; they are set and deleted as parameters of component `shovel`."""

from typing import Any

from leveret.broker.administration.access import (
    AdministeredBroker,
    NotFoundError,
    Right,
    authorize,
    found_vhost,
    may_see,
)
from leveret.broker.administration.policies import PolicyAdministration
from leveret.broker.auth.users import User
from leveret.broker.vhost.parameter_checks import SHOVEL


class ShovelAdministration:
    """Shovels that run. Every method takes the acting user first (`access.authorize`).

    Args:
        broker: the administered broker.
        policies: sets and deletes parameters.

    """

    def __init__(self, broker: AdministeredBroker, policies: PolicyAdministration) -> None:
        self._broker = broker
        self._policies = policies

    def statuses(self, actor: User | None, vhost: str | None = None) -> list[dict[str, Any]]:
        """Return the status of the shovels of one vhost, or of all that the actor may see. Raises NotFoundError."""
        users = self._broker.users
        authorize(users, actor, Right.MONITORING)
        if vhost is not None:
            found_vhost(self._broker, vhost)
        return [
            status
            for status in self._broker.shovel_statuses()
            if vhost in {None, status["vhost"]} and may_see(users, actor, status["vhost"])
        ]

    def definition(self, actor: User | None, vhost: str, name: str) -> dict[str, Any]:
        """Return the parameter of a shovel, with passwords for administrators only. Raises NotFoundError."""
        authorize(self._broker.users, actor, Right.MONITORING)
        return self._policies.shown_parameter(actor, vhost, SHOVEL, name)

    def delete(self, actor: User | None, vhost: str, name: str) -> None:
        """Stop and delete a shovel, as by deleting its parameter. Raises NotFoundError."""
        self._policies.clear_parameter(actor, vhost, SHOVEL, name)

    def restart(self, actor: User | None, vhost: str, name: str) -> None:
        """Stop a shovel and start it again. Raises NotFoundError."""
        authorize(self._broker.users, actor, Right.POLICYMAKER, vhost)
        found_vhost(self._broker, vhost)
        if not self._broker.restart_shovel(vhost, name):
            raise NotFoundError(f"Shovel '{name}' in virtual host '{vhost}' does not exist")
