"""Policies and their previews, operator policies, parameters."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from leveret.broker.administration.access import (
    AdministeredBroker,
    BadRequestError,
    ForbiddenError,
    Group,
    NotFoundError,
    Right,
    authorize,
    entered,
    found_vhost,
    may_see,
    refusals,
    visible_vhosts,
)
from leveret.broker.administration.definitions_document import json_text
from leveret.broker.administration.explaining import SETTING_KEYS, value_in_effect
from leveret.broker.administration.messages import Steps
from leveret.broker.auth.users import BackendUser, User
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.settings import DROP_HEAD, QueueSettings, exchange_settings
from leveret.broker.vhost.parameter_checks import MAX_DEPTH, SHOVEL, ParameterError, is_too_deep
from leveret.broker.vhost.parameters import LIMITS, OPERATOR_POLICY, Parameter, check_parameter
from leveret.broker.vhost.policies import EXCHANGES, Policies, Policy, queue_kind
from leveret.broker.vhost.shovel_keys import (
    check_certificates,
    check_local_access,
    check_logins,
    shown_without_secrets,
)
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Exchange
from leveret.exchanges.erlang_hash import octets

REROUTING = ("dead-letter-exchange", "dead-letter-routing-key", "alternate-exchange")
"""Keys of policies that send messages of a queue or exchange elsewhere."""


class PolicyAdministration(Group):
    """Policies and parameters.

    A policymaker may change policies of accessible vhosts, and global parameters. Restrictions (operator policies and
    the limits of vhosts) may only be changed by an administrator.
    """

    # -- policies ---------------------------------------------------------------------------------------------------

    def all(
        self, actor: User | None, vhost: str | None = None, *, operator: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield the policies or operator policies of one vhost or of all that the actor may see."""
        return (
            shown_policy(policy)
            for place in visible_vhosts(self._broker, actor, vhost)
            for policy in place.policies.list(operator=operator)
        )

    def get(self, actor: User | None, vhost: str, name: str, *, operator: bool = False) -> dict[str, Any]:
        """Return one policy; raises NotFoundError."""
        policy = entered(self._broker, actor, vhost).policies.get(name, operator=operator)
        if policy is None:
            raise NotFoundError(f"policy '{name}' in vhost '{vhost}' does not exist")
        return shown_policy(policy)

    def set(
        self, actor: User | None, vhost: str, name: str, term: Mapping[str, Any], *, operator: bool = False
    ) -> None:
        """Set a policy from RabbitMQ's keys: pattern, definition, priority (0), apply-to (all).

        With immediate effect. Raises NotFoundError, and BadRequestError with RabbitMQ's text.
        """
        place = self._changed(actor, vhost, operator=operator)
        self._check_rerouting(actor, term)
        if not name:
            raise BadRequestError("policy name cannot be empty")
        with refusals(ParameterError, BadRequestError):
            place.policies.set_term(name, {"priority": 0, **term}, operator=operator)

    def clear(self, actor: User | None, vhost: str, name: str, *, operator: bool = False) -> None:
        """Remove a policy with immediate effect. Raises NotFoundError."""
        with refusals(ParameterError, NotFoundError):
            self._changed(actor, vhost, operator=operator).policies.clear(name, operator=operator)

    def _check_rerouting(self, actor: User | None, term: Mapping[str, Any]) -> None:
        definition = term.get("definition")
        if self._broker.delegation.may_reroute or not isinstance(definition, Mapping):
            return
        for key in REROUTING:
            if key in definition and actor is not None and Right.ADMINISTRATOR not in actor.tags:
                raise ForbiddenError(f"only administrators may set {key} (policies.rerouting)")

    def _changed(self, actor: User | None, vhost: str, *, operator: bool) -> VHost:
        """Return a vhost in which the actor may change policies and parameters, or those that restrict others."""
        return entered(self._broker, actor, vhost, Right.ADMINISTRATOR if operator else Right.POLICYMAKER)

    # -- parameters -------------------------------------------------------------------------------------------------

    def parameters(
        self, actor: User | None, vhost: str | None = None, component: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the parameters of one vhost or of all that the actor may see, of one component or all."""
        broker = self._broker
        authorize(broker.users, actor, Right.POLICYMAKER, vhost)
        if vhost is not None:
            found_vhost(broker, vhost)
        return [
            _shown(actor, each)
            for each in broker.parameters.list(vhost, component)
            if may_see(broker.users, actor, each.vhost)
        ]

    def shown_parameter(self, actor: User | None, vhost: str, component: str, name: str) -> dict[str, Any]:
        """Return one parameter as the actor may see it; the caller checks the right to. Raises NotFoundError."""
        found_vhost(self._broker, vhost)
        for each in self._broker.parameters.list(vhost, component):
            if each.name == name:
                return _shown(actor, each)
        raise NotFoundError("Parameter does not exist")

    def set_parameter(self, actor: User | None, vhost: str, component: str, name: str, value: Any) -> None:
        """Set a parameter; raises NotFoundError, and BadRequestError with RabbitMQ's text."""
        self._changed(actor, vhost, operator=component in {LIMITS, OPERATOR_POLICY})
        with refusals(ParameterError, BadRequestError):
            if component == SHOVEL:
                check_parameter(component, name, value)
                if actor is not None:
                    self._check_shovel(actor, value)
            setter = "" if actor is None or Right.ADMINISTRATOR in actor.tags else actor.name
            self._broker.parameters.set(vhost, component, name, value, setter)

    def _check_shovel(self, actor: User, value: Any) -> None:
        users, vhosts = self._broker.users, self._broker.vhosts
        check_local_access(value, actor.name, lambda vhost: vhost in vhosts and users.sees(actor, vhost))
        if Right.ADMINISTRATOR in actor.tags:
            return
        setting = self._broker.delegation
        check_certificates(value, actor.name, setting.certificate_dir)
        if setting.has_setters_rights:
            check_logins(value, actor.name, is_foreign=isinstance(actor, BackendUser))

    def clear_parameter(self, actor: User | None, vhost: str, component: str, name: str) -> None:
        """Remove a parameter; raises NotFoundError."""
        self._changed(actor, vhost, operator=component in {LIMITS, OPERATOR_POLICY})
        with refusals(ParameterError, NotFoundError):
            self._broker.parameters.clear(vhost, component, name)

    def global_parameters(self, actor: User | None) -> list[dict[str, Any]]:
        """Return the global parameters."""
        authorize(self._broker.users, actor, Right.POLICYMAKER)
        values = self._broker.directory.global_parameters.list()
        return [{"name": name, "value": value} for name, value in values.items()]

    def set_global_parameter(self, actor: User | None, name: str, value: Any) -> None:
        """Set a global parameter to any value; raises BadRequestError if that is nested too deeply."""
        authorize(self._broker.users, actor, Right.POLICYMAKER)
        if is_too_deep(value):
            raise BadRequestError(f"{name} is nested deeper than {MAX_DEPTH} levels")
        self._broker.check_shared()
        self._broker.directory.global_parameters.set(name, value)

    def clear_global_parameter(self, actor: User | None, name: str) -> None:
        """Remove a global parameter; raises NotFoundError."""
        authorize(self._broker.users, actor, Right.POLICYMAKER)
        self._broker.check_shared()
        with refusals(ParameterError, NotFoundError):
            self._broker.directory.global_parameters.clear(name)


def shown_policy(policy: Policy) -> dict[str, Any]:
    """Return a policy under RabbitMQ's names."""
    return {"vhost": policy.vhost, "name": policy.name, **policy.term()}


def _shown(actor: User | None, parameter: Parameter) -> dict[str, Any]:
    """Return a parameter under RabbitMQ's names; the passwords of a shovel are for administrators only."""
    value = parameter.value
    if parameter.component == SHOVEL and actor is not None and Right.ADMINISTRATOR not in actor.tags:
        value = shown_without_secrets(value)
    return parameter._asdict() | {"value": value}


SHOWN: Final = 50  # queues that are listed at most; the numbers are of all
_PIECE: Final = 50


def policy_preview(
    broker: AdministeredBroker,
    actor: User | None,
    vhost: str,
    name: str,
    term: Mapping[str, Any] | None,
    *,
    operator: bool,
) -> Steps[dict[str, Any]]:
    """Return what setting a policy, or removing it (`term` is None), would change now; nothing is changed.

    Returns:
        `matched`: number of queues whose names match and that have such settings; `changed`: number of queues whose
        settings would be others; `queues`: these, with their `changes` (key, `now`, `then`), the number of messages
        that they would drop at once (`dropped`), and `dead_lettered`, whether those go to a dead letter exchange;
        `dropped`: number of messages that all queues would delete; `exchanges`: names of those that would get another
        alternate exchange, or know other ids.

    Raises NotFoundError, ForbiddenError, and BadRequestError with RabbitMQ's text if the policy is invalid.
    """
    authorize(broker.users, actor, Right.ADMINISTRATOR if operator else Right.POLICYMAKER, vhost)
    place = found_vhost(broker, vhost)
    with refusals(ParameterError, BadRequestError):
        tried = place.policies.tried(name, term, operator=operator)
    return _compared(place, tried, tried.get(name, operator=operator))


def _compared(place: VHost, tried: Policies, policy: Any) -> Steps[dict[str, Any]]:
    matched = changed = dropped = 0
    rows: list[dict[str, Any]] = []
    for number, queue in enumerate(list(place.queues.values()), 1):
        if not number % _PIECE:
            yield None
        kind = queue_kind(queue.arguments)
        if policy is not None and not tried.obstacle(policy, kind) and policy.search(octets(queue.name)):
            matched += 1
        then = place.settings_of(queue, tried.applied(kind, queue.name).definition)
        if queue.deleted or then == queue.settings:
            continue
        changed += 1
        row = _row(queue, then)
        if not row["dead_lettered"]:
            dropped += row["dropped"]
        if len(rows) < SHOWN or row["dropped"]:
            rows.append(row)
    rows.sort(key=lambda row: -row["dropped"])
    exchanges = yield from _exchanges(place, tried)
    return {
        "matched": matched,
        "changed": changed,
        "dropped": dropped,
        "queues": rows[:SHOWN],
        "exchanges": exchanges,
    }


def _exchanges(place: VHost, tried: Policies) -> Steps[list[str]]:
    found = []
    for number, exchange in enumerate(list(place.router.exchanges.values()), 1):
        if not number % _PIECE:
            yield None
        now, then = (each.applied(EXCHANGES, exchange.name).definition for each in (place.policies, tried))
        if exchange.name and now != then and _is_changed(exchange, now, then):
            found.append(json_text(exchange.name))
    return found


def _is_changed(exchange: Exchange, now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    key = "alternate-exchange"
    if key not in exchange.arguments and now.get(key) != then.get(key):
        return True
    return exchange_settings(exchange.arguments, now) != exchange_settings(exchange.arguments, then)


def _row(queue: Queue, then: QueueSettings) -> dict[str, Any]:
    values = [(key, value_in_effect(key, queue.settings), value_in_effect(key, then)) for key in SETTING_KEYS]
    return {
        "name": json_text(queue.name),
        "type": queue.type,
        "changes": [{"key": key, "now": now, "then": after} for key, now, after in values if now != after],
        "dropped": _dropped(queue, then),
        "dead_lettered": then.dead_letter_exchange is not None,
    }


def _dropped(queue: Queue, then: QueueSettings) -> int:
    """Return how many messages a queue would drop from its head at once; by bytes, as if all had the same size."""
    ready = queue.ready_count
    if then.overflow != DROP_HEAD or not ready:
        return 0
    excess = 0 if then.max_length is None else ready - then.max_length
    if then.max_octets is not None:
        paging = queue.backing.paging_counts()
        size = paging.ram_octets + paging.away_octets + paging.delta_octets
        if size > then.max_octets:
            excess = max(excess, -(-ready * (size - then.max_octets) // size))
    return max(0, excess)
