"""Previews of policies: the queues whose settings a policy would change, and the messages that they would drop."""

from collections.abc import Mapping
from typing import Any, Final

from leveret.broker.administration.access import (
    AdministeredBroker,
    BadRequestError,
    Right,
    authorize,
    found_vhost,
    refusals,
)
from leveret.broker.administration.definitions_document import json_text
from leveret.broker.administration.explaining import SETTING_KEYS, value_in_effect
from leveret.broker.administration.messages import Steps
from leveret.broker.auth.users import User
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.settings import DROP_HEAD, QueueSettings, exchange_settings
from leveret.broker.vhost.parameter_checks import ParameterError
from leveret.broker.vhost.policies import EXCHANGES, Policies, queue_kind
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Exchange
from leveret.exchanges.erlang_hash import octets

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
