"""Explanations: why a queue is as it is, where a publish would go, why a message is where it is.

Each is a dict of facts, for programs, with `lines`, which say the same to people.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from leveret.broker.administration.access import (
    AdministeredBroker,
    BadRequestError,
    NotFoundError,
    Right,
    authorize,
    found_vhost,
    translated,
)
from leveret.broker.administration.holding import holders_of, promises_of
from leveret.broker.administration.message_explanation import lines_of_message
from leveret.broker.administration.messages import Steps, found_queue
from leveret.broker.administration.peeking import Peeking, State, Wanted
from leveret.broker.administration.queue_explanation import retention_of, settings_of
from leveret.broker.administration.route_explanation import counted, route_of
from leveret.broker.amqp.errors import MalformedProperties
from leveret.broker.amqp.properties import Properties, build
from leveret.broker.amqp.tables import typed
from leveret.broker.auth.users import User
from leveret.broker.errors import AMQPError, resource
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.unknown_arguments import unknown_arguments
from leveret.broker.vhost.policies import queue_kind
from leveret.broker.vhost.publish_route import PERSISTENT, Special
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Exchange

_SHOWN = 20
"""Queues and bindings in the lines of a publish."""


class Explaining:
    """Explanations. Every method takes the acting user first (`access.authorize`).

    Args:
        broker: the administered broker.
        peeking: finds messages.

    """

    def __init__(self, broker: AdministeredBroker, peeking: Peeking) -> None:
        self._broker = broker
        self._peeking = peeking

    def queue(self, actor: User | None, vhost: str, name: str) -> Steps[dict[str, Any]]:
        """Explain a queue: its settings and where each comes from, its policies, and what looks wrong.

        Raises:
            NotFoundError, ForbiddenError: there is no such queue, or the user may not see it.

        """
        authorize(self._broker.users, actor, Right.MANAGEMENT, vhost)
        place = found_vhost(self._broker, vhost)
        queue = place.queues.get(name)
        if queue is None:
            raise NotFoundError(f"no {resource('queue', name, vhost)}")
        return self._explained(place, queue)

    def _explained(self, place: VHost, queue: Queue) -> Steps[dict[str, Any]]:
        applied = place.queue_policies(queue)
        letters = yield from dead_letters(place, queue)
        others = yield from outranked(place, queue)
        holders = yield from holders_of(queue, self._broker.time_source.now())
        facts: dict[str, Any] = {
            "name": queue.name,
            "vhost": place.name,
            "type": queue.type,
            "durable": queue.durable,
            "exclusive": queue.exclusive_owner is not None,
            "auto_delete": queue.auto_delete,
            "paused": queue.is_paused,
            "policy": None if applied.policy is None else applied.policy.name,
            "operator_policy": None if applied.operator_policy is None else applied.operator_policy.name,
            "outranked_policies": others,
            "settings": settings_of(queue, applied),
            "dead_letters": letters,
            "retention": retention_of(queue),
            "promises": promises_of(queue),
            "holders": holders,
            "warnings": warnings(queue, letters),
        }
        return {**facts, "lines": list(_lines_of_queue(facts))}

    def publish(
        self,
        actor: User | None,
        vhost: str,
        exchange: str,
        routing_key: str,
        headers: Mapping[str, Any] | None = None,
    ) -> Steps[dict[str, Any]]:
        """Explain where a message would go that is published now.

        Args:
            actor: the acting user.
            vhost: the virtual host.
            exchange: name of the exchange; '' for the default exchange.
            routing_key: the routing key.
            headers: the headers as plain values.

        Raises:
            NotFoundError, ForbiddenError: there is no such exchange, or the user may not see it.
            BadRequestError: the headers are no AMQP table, or a publish with them is refused.

        """
        authorize(self._broker.users, actor, Right.MANAGEMENT, vhost)
        place = found_vhost(self._broker, vhost)
        found = place.router.get(exchange)
        if found is None:
            raise NotFoundError(f"no {resource('exchange', exchange, vhost)}")
        try:
            special = Special(Properties(build(0, headers=typed(dict(headers or {})))))
        except (TypeError, ValueError, AttributeError, MalformedProperties) as error:
            raise BadRequestError(f"invalid headers: {error}") from None
        try:
            special.validate("", impersonator=True)
            special.check_extra_keys(self._broker.limits.cc_keys)
        except AMQPError as error:
            raise translated(error) from None
        return self._routed(place, found, routing_key, special)

    def _routed(
        self, place: VHost, exchange: Exchange, routing_key: str, special: Special
    ) -> Steps[dict[str, Any]]:
        facts = yield from route_of(place, exchange, routing_key, special)
        alarm = self._broker.alarm
        if alarm:
            facts["blocked"] = alarm
        return {**facts, "lines": list(_lines_of_publish(facts, exchange))}

    def message(
        self, actor: User | None, vhost: str, name: str, number: int, state: State = "ready"
    ) -> Steps[dict[str, Any]]:
        """Explain why a message is in a queue; the user needs the permission to read it.

        Args:
            actor: the acting user.
            vhost: the virtual host.
            name: name of the queue.
            number: its place among the messages of its state, from 1, as a peek lists them.
            state: its state.

        Raises:
            NotFoundError, ForbiddenError: as for a client; or there is no such message.

        """
        place, queue = found_queue(self._broker, actor, vhost, name)
        if number < 1:
            raise BadRequestError("the number of a message is at least 1")
        queue.settle()
        ready = queue.backing.ready_count
        from_tail = state == "ready" and ready // 2 < number <= ready
        wanted = Wanted(
            1, from_tail=from_tail, skip=ready - number if from_tail else number - 1, states=(state,)
        )
        found = yield from self._peeking.peek(actor, vhost, name, wanted)
        if not found.messages:
            raise NotFoundError(f"no {state} message {number} in {resource('queue', name, vhost)}")
        (view,) = found.messages
        lines = lines_of_message(self._broker, place, queue, view, number)
        return {"number": number, "state": state, "message": view, "lines": lines}


def outranked(vhost: VHost, queue: Queue) -> Steps[list[dict[str, Any]]]:
    """Return the policies that match a queue and do not apply to it, because another one has a higher priority."""
    applied = vhost.queue_policies(queue)
    octets, kind = queue.name.encode("utf-8", "surrogateescape"), queue_kind(queue.arguments)
    found = []
    for operator, chosen in ((False, applied.policy), (True, applied.operator_policy)):
        for policy in vhost.policies.list(operator=operator):
            if policy is not chosen and kind in policy.kinds and policy.search(octets):
                found.append({"name": policy.name, "priority": policy.priority, "operator": operator})
            yield None
    return found


def dead_letters(vhost: VHost, queue: Queue) -> Steps[dict[str, Any] | None]:
    """Return where messages go that a queue discards; None if they are deleted."""
    name = queue.settings.dead_letter_exchange
    if name is None:
        return None
    key = queue.settings.dead_letter_routing_key
    exchange = vhost.router.get(name)
    queues: list[str] | None = None
    if exchange is not None and key is not None:
        route = yield from route_of(vhost, exchange, key, PERSISTENT)
        queues = [each["name"] for each in route["queues"]]
    return {"exchange": name, "routing_key": key, "exists": exchange is not None, "queues": queues}


def warnings(queue: Queue, letters: Mapping[str, Any] | None) -> list[str]:
    """Return what looks wrong with the settings of a queue, given where its dead letters go."""
    found = [str(each) for each in unknown_arguments(queue.arguments)]
    settings = queue.settings
    if letters is not None:
        if not letters["exists"]:
            found.append(
                f"the dead letter exchange '{letters['exchange']}' does not exist: dead letters are deleted"
            )
        elif letters["queues"] == []:
            found.append(
                f"no queue gets the dead letters: exchange '{letters['exchange']}' does not route the key "
                f"'{letters['routing_key']}'"
            )
    if settings.overflow != "drop-head" and not settings.rejects:
        found.append(
            f"overflow is '{settings.overflow}' without max-length or max-length-bytes: it has no effect"
        )
    asked = queue.arguments.get("x-confirm-mode")
    if asked is not None and asked[1] != settings.confirm_mode:
        found.append(
            f"the confirm mode is '{settings.confirm_mode}' instead of '{asked[1]}' (docs/confirms.md)"
        )
    if queue.tally.cycled:
        found.append(
            f"{counted(queue.tally.cycled, 'dead letter')} of this queue dropped: without a reject, it would have "
            "returned to a queue it died in (a dead-letter cycle)"
        )
    if queue.is_paused:
        found.append("the queue is paused: consumers get nothing before it is resumed")
    if queue.awaiting is not None and queue.awaiting.open_count and not queue.consumer_count:
        found.append(
            f"{counted(queue.awaiting.open_count, 'unconfirmed message')}, and the queue has no consumer: in confirm "
            f"mode '{settings.confirm_mode}' the acks of consumers confirm them"
        )
    elif queue.ready_count and not queue.consumer_count:
        found.append(f"{counted(queue.ready_count, 'ready message')}, and the queue has no consumer")
    return found


def _lines_of_queue(facts: Mapping[str, Any]) -> Iterator[str]:
    kind = ", ".join([
        facts["type"],
        "durable" if facts["durable"] else "transient",
        *[name for name in ("exclusive", "auto_delete") if facts[name]],
    ])  # fmt: skip
    yield f"queue '{facts['name']}' in vhost '{facts['vhost']}' ({kind})"
    for what in ("policy", "operator_policy"):
        yield f"{what.replace('_', ' ')}: {facts[what] or 'none'}"
    for each in facts["outranked_policies"]:
        what = "operator policy" if each["operator"] else "policy"
        yield f"  {what} '{each['name']}' (priority {each['priority']}) matches too, but only one applies"
    yield "settings:" if facts["settings"] else "settings: all are the defaults"
    for row in facts["settings"]:
        yield f"  {row['key']} = {shown(row['value'])}   from {row['source']}{_over(row)}"
    letters = facts["dead_letters"]
    if letters is None:
        yield "discarded messages are deleted (no dead letter exchange)"
    else:
        key = (
            "their own routing keys"
            if letters["routing_key"] is None
            else f"routing key '{letters['routing_key']}'"
        )
        queues = letters["queues"]
        reached = f", which reaches {', '.join(queues)}" if queues else ""
        yield f"discarded messages go to exchange {named(letters['exchange'])} with {key}{reached}"
    if facts["retention"] is not None:
        yield from _lines_of_retention(facts["retention"])
    for text in facts["warnings"]:
        yield f"warning: {text}"


def _lines_of_retention(facts: Mapping[str, Any]) -> Iterator[str]:
    oldest = facts["oldest"]
    since = (
        ""
        if oldest is None
        else f", acked since {datetime.fromtimestamp(oldest / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    )
    least = "" if facts["exact"] else "at least "
    yield f"retains {least}{counted(facts['messages'], 'acked message')} with {facts['bytes']} bytes{since}"
    for cause, count in facts["skipped"].items():
        yield f"  {counted(count, 'acked message')} not retained: {cause}"


def shown(value: Any) -> str:
    """Return the value of a setting; quotes show one that is empty."""
    return "''" if value == "" else str(value)


def _over(row: Mapping[str, Any]) -> str:
    """Return what a setting prevails over, and why."""
    text = "" if row["given"] == row["value"] else f" (given as {row['given']})"
    if row["over"]:
        others = ", ".join(f"{each['value']} of {each['source']}" for each in row["over"])
        text += f", not {others}: {row['rule']}"
    return text


def _lines_of_publish(facts: Mapping[str, Any], exchange: Exchange) -> Iterator[str]:
    yield (
        f"a message for exchange {named(facts['exchange'])} with routing key '{facts['routing_key']}'"
        f"{_copied(facts['extra_keys'])}:"
    )
    if facts["removes_bcc"]:
        yield "  consumers get it without its header BCC"
    if "blocked" in facts:
        yield f"  publishers are blocked now: {facts['blocked']}"
    if exchange.internal:
        yield "  clients may not publish to this exchange: it is internal"
    for step in facts["steps"]:
        yield from _lines_of_step(step, 1 + len(facts["extra_keys"]))
    count = facts["queue_count"]
    if not count:
        lost = (
            "it is dropped then"
            if facts["delay"]
            else "it is dropped, or returned to its publisher if it is mandatory"
        )
        yield f"  reaches no queue: {lost}"
        return
    yield f"  reaches {counted(count, 'queue')}:"
    listed = facts["queues"][:_SHOWN]
    for queue in listed:
        way = " -> ".join(map(named, queue["way"]))
        refuses = f"; {queue['refuses']}" if queue["refuses"] else ""
        refuses += "; paused" if queue["paused"] else ""
        counts = f"{queue['messages_ready']} ready, {counted(queue['consumers'], 'consumer')}"
        after = f", after {queue['delay']} ms" if queue["delay"] else ""
        yield f"    '{queue['name']}' ({counts}{refuses}) by {way}{after}"
    others = count - len({queue["name"] for queue in listed})
    if others:
        yield f"    and {others} others"


def _copied(keys: Sequence[str]) -> str:
    """Return the keys in CC and BCC."""
    if not keys:
        return ""
    more = f" and {len(keys) - _SHOWN} others" if len(keys) > _SHOWN else ""
    names = ", ".join([f"'{key}'" for key in keys[:_SHOWN]])
    return f", and {names}{more} in CC or BCC"


def _lines_of_step(step: Mapping[str, Any], keys: int) -> Iterator[str]:
    """Yield what happens at one exchange to a message with so many routing keys."""
    name = named(step["exchange"])
    if step["delay"] is not None:
        yield f"  {name} keeps it for {step['delay']} ms, and then:"
    if not step["exchange"] and keys > 1:
        yield f"  {name} finds {counted(step['matched'], 'queue')} for {keys} keys"
    elif not step["exchange"]:
        yield f"  {name} finds {'the' if step['matched'] else 'no'} queue of that name"
    else:
        yield f"  {name} ({step['type']}): {step['matched']} of its {step['bindings']} bindings' destinations match"
    for each in step["matches"][:_SHOWN]:
        by = "" if each["routing_key"] is None else f" by '{each['routing_key']}'"
        by += f" {each['arguments']}" if each["arguments"] else ""
        by += f" for the key '{each['matched_key']}'" if keys > 1 and each["matched_key"] is not None else ""
        if by:
            yield f"    {each['destination_type']} '{each['destination']}'{by}"
    if not step["matched"] and step["alternate_exchange"] is not None:
        takes = "takes it" if step["alternate_takes_it"] else "does not exist"
        yield f"    its alternate exchange {named(step['alternate_exchange'])} {takes}"


def named(exchange: str) -> str:
    """Return the name of an exchange as people know it."""
    return f"'{exchange}'" if exchange else "(default)"
