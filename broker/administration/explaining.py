"""Explanations: why a queue is as it is, where a publish would go, why a message is where it is.

Each is a dict of facts, for programs, with `lines`, which say the same to people.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from leveret.broker.administration.access import (
    AdministeredBroker,
    BadRequestError,
    Group,
    NotFoundError,
    as_client_errors,
    entered,
    exchange_of,
    queue_of,
)
from leveret.broker.administration.definitions_document import plain_arguments
from leveret.broker.administration.known_ids import ids_row
from leveret.broker.administration.messages import (
    MessageAdministration,
    MessageView,
    State,
    Steps,
    Wanted,
    found_queue,
)
from leveret.broker.administration.route_explanation import (
    counted,
    lines_of_publish,
    matching_bindings,
    named,
    route_of,
)
from leveret.broker.administration.setting_catalogue import SETTINGS
from leveret.broker.amqp.errors import MalformedProperties
from leveret.broker.amqp.properties import Properties, build
from leveret.broker.amqp.tables import typed
from leveret.broker.auth.users import User
from leveret.broker.errors import resource
from leveret.broker.queue.arguments import HEADER, ID_KEYS
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.settings import COUNTED, LIMITS, NO_SETTINGS, QueueSettings, strictest
from leveret.broker.queue.unknown_arguments import unknown_arguments
from leveret.broker.statistics.queue_health import Reason, health, shown as shown_health
from leveret.broker.time_text import moment
from leveret.broker.transfer.retry import retries_of, time_of
from leveret.broker.vhost.policies import EXCHANGES, Applied, queue_kind
from leveret.broker.vhost.publish_route import PERSISTENT, PropertyDemands
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Exchange


class Explaining(Group):
    """Explanations."""

    def queue(self, actor: User | None, vhost: str, name: str) -> Steps[dict[str, Any]]:
        """Explain a queue: its settings and where each comes from, its policies, and what looks wrong.

        Raises NotFoundError and ForbiddenError: there is no such queue, or the user may not see it.
        """
        place = entered(self._broker, actor, vhost)
        return self._explained(place, queue_of(place, name))

    def _explained(self, place: VHost, queue: Queue) -> Steps[dict[str, Any]]:
        applied = place.queue_policies(queue)
        letters = yield from dead_letters(place, queue)
        others = yield from policies_without_effect(place, queue)
        judged = health(queue, self._broker.statistics, self._broker.now())
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
            "policies_without_effect": others,
            "health": shown_health(judged),
            "settings": settings_of(queue, applied),
            "dead_letters": letters,
            "retention": retention_of(queue),
            "ids": None if (ids := queue.ids) is None or queue.settings.deduplicate is None else ids_row(ids),
            "promises": promises_of(queue),
            "holders": holders,
            "warnings": warnings(queue, letters),
            "troubles": list(_troubles(queue, judged)),
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
        """Explain where a message with these headers (plain values) would go that is published now.

        Raises NotFoundError, ForbiddenError: there is no such exchange, or the user may not see it; BadRequestError:
        the headers are no AMQP table, or a publish with them is refused.
        """
        place = entered(self._broker, actor, vhost)
        found = exchange_of(place, exchange)
        try:
            demands = PropertyDemands(Properties(build(0, headers=typed(dict(headers or {})))))
        except (TypeError, ValueError, AttributeError, MalformedProperties) as error:
            raise BadRequestError(f"invalid headers: {error}") from None
        with as_client_errors():
            demands.validate("", impersonator=True)
            demands.check_extra_keys(self._broker.config.limits.cc_keys)
        return self._routed(place, found, routing_key, demands)

    def _routed(
        self, place: VHost, exchange: Exchange, routing_key: str, demands: PropertyDemands
    ) -> Steps[dict[str, Any]]:
        facts = yield from route_of(place, exchange, routing_key, demands)
        facts["ids"], facts["duplicate_of"] = _first_of(place, exchange, demands)
        alarm = self._broker.alarm
        if alarm:
            facts["blocked"] = alarm
        return {**facts, "lines": list(lines_of_publish(facts, exchange))}

    def message(
        self, actor: User | None, vhost: str, name: str, number: int, state: State = "ready"
    ) -> Steps[dict[str, Any]]:
        """Explain why a message is in a queue; the user needs the permission to read it.

        `number` is its place among the messages of its state, from 1, as a peek lists them. Raises NotFoundError and
        ForbiddenError as for a client; or there is no such message.
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
        found = yield from MessageAdministration(self._broker).peek(actor, vhost, name, wanted)
        if not found.messages:
            raise NotFoundError(f"no {state} message {number} in {resource('queue', name, vhost)}")
        (view,) = found.messages
        lines = lines_of_message(self._broker, place, queue, view, number)
        return {"number": number, "state": state, "message": view, "lines": lines}


def _first_of(
    place: VHost, exchange: Exchange, demands: PropertyDemands
) -> tuple[dict[str, Any] | None, int | None]:
    """Return what an exchange knows of ids, and when (epoch ms) it took the message with the id in these headers."""
    ids = place.once.get(exchange.name)
    if ids is None:
        return None, None
    kind, _, name = str(ids.settings.deduplicate).partition(":")
    field = demands.headers.get(name) if f"{kind}:" == HEADER else None
    until = None if field is None else ids.known_until(str(field[1]))
    return ids_row(ids), None if until is None else until - ids.settings.deduplicate_for


def policies_without_effect(vhost: VHost, queue: Queue) -> Steps[list[dict[str, Any]]]:
    """Return the policies that match the name of a queue and do not apply to it, each with the reason."""
    applied = vhost.queue_policies(queue)
    octets, kind = queue.name.encode("utf-8", "surrogateescape"), queue_kind(queue.arguments)
    found = []
    for operator, chosen in ((False, applied.policy), (True, applied.operator_policy)):
        for policy in vhost.policies.list(operator=operator):
            if policy is not chosen and policy.search(octets):
                reason = vhost.policies.obstacle(policy, kind) or (
                    f"'{chosen.name}' applies instead, with priority {chosen.priority}" if chosen else ""
                )
                found.append(
                    {"name": policy.name, "priority": policy.priority, "operator": operator, "reason": reason}
                )
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
    return found


def _troubles(queue: Queue, judged: Iterable[Reason]) -> Iterator[str]:
    """Yield what is wrong with a queue now, with the messages that it is about."""
    waiting = f"{counted(queue.ready_count, 'ready message')}, {queue.unacked_count} unacked"
    if queue.awaiting is not None:
        waiting += f", {queue.awaiting.open_count} unconfirmed"
    for each in judged:
        yield f"{each.reason} ({waiting}): {each.advice}"


def _lines_of_queue(facts: Mapping[str, Any]) -> Iterator[str]:
    kind = ", ".join([
        facts["type"],
        "durable" if facts["durable"] else "transient",
        *[name for name in ("exclusive", "auto_delete") if facts[name]],
    ])  # fmt: skip
    yield f"queue '{facts['name']}' in vhost '{facts['vhost']}' ({kind})"
    for what in ("policy", "operator_policy"):
        yield f"{what.replace('_', ' ')}: {facts[what] or 'none'}"
    for each in facts["policies_without_effect"]:
        what = "operator policy" if each["operator"] else "policy"
        yield f"  {what} '{each['name']}' matches this name and is not in effect: {each['reason']}"
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
    if (ids := facts["ids"]) is not None:
        known, repeated = counted(ids["ids"], "id"), counted(ids["repeated"], "repeat")
        yield f"takes each message once ({ids['mode']}): knows {known}, dropped {repeated}"
    for text in (*facts["warnings"], *facts["troubles"]):
        yield f"warning: {text}"


def _lines_of_retention(facts: Mapping[str, Any]) -> Iterator[str]:
    since = "" if facts["oldest"] is None else f", acked since {moment(facts['oldest'])}"
    yield f"retains {counted(facts['messages'], 'acked message')} with {facts['bytes']} bytes{since}"
    for cause, count in facts["skipped"].items():
        yield f"  {counted(count, 'acked message')} not retained: {cause}"


def shown(value: Any) -> str:
    """Return the value of a setting; quotes show one that is empty."""
    return "''" if value == "" else str(value)


def _over(row: Mapping[str, Any]) -> str:
    text = "" if row["given"] == row["value"] else f" (given as {row['given']})"
    if row["over"]:
        others = ", ".join(f"{each['value']} of {each['source']}" for each in row["over"])
        text += f", not {others}: {row['rule']}"
    return text


# -- the settings of a queue, each with where it comes from -----------------------------------------------------------


_NUMBER_RULE = "of several limits the smallest applies"
_ARGUMENT_RULE = "an argument goes before policies"
_OPERATOR_RULE = "an operator policy goes before a policy"

SETTING_KEYS = ("queue-type", *[each.name for each in SETTINGS if each.kinds != (EXCHANGES,)])
"""Settings that arguments (with `x-` before their names) and policies of queues can give."""
_FIELDS = {"max-length-bytes": "max_octets", "retain-bytes": "retain_octets"}
"""Those whose names in `QueueSettings` are others."""
_AS_GIVEN = frozenset(
    ("max-age", *ID_KEYS[1:])
)  # those in another form in `QueueSettings`, or with another default


class Given(NamedTuple):
    """A value that was given for a setting, and where."""

    value: Any
    source: str


def settings_of(queue: Queue, applied: Applied) -> list[dict[str, Any]]:
    """Return the explicit settings in effect, each with its source, its rule, and the values that it overrides."""
    arguments = plain_arguments(queue.arguments)
    rows = []
    for key in SETTING_KEYS:
        given = list(_given(key, arguments, applied))
        effective = value_in_effect(key, queue.settings)
        if not given:
            if effective is not None:
                rows.append(_row(key, effective, Given(effective, "the configuration of the broker"), [], ""))
            continue
        chosen, rule = _chosen(key, given)
        others = [each for each in given if each is not chosen]
        rows.append(_row(key, chosen.value if effective is None else effective, chosen, others, rule))
    return rows


def retention_of(queue: Queue) -> dict[str, Any] | None:
    """Return what a queue retains of the messages that were acked; None if it retains nothing.

    Returns:
        `messages` that are retained, and `bytes` of their contents; `oldest`, the time of the first ack (ms since the
        epoch; None if there is none); `skipped`, the numbers of acked messages that were not retained, by cause.
    """
    retention = queue.retention
    retained = queue.retained
    if retention is None or retained is None:
        return None
    return {
        "messages": retained.ready_count,
        "bytes": retained.log.kept_octets,
        "oldest": retained.log.segments[0].time if retained.ready_count else None,
        "skipped": dict(sorted(retention.skipped.items())),
    }


def _given(key: str, arguments: Mapping[str, Any], applied: Applied) -> Iterator[Given]:
    """Yield the values that were given for a setting: by an argument, an operator policy, a policy."""
    if f"x-{key}" in arguments:
        yield Given(arguments[f"x-{key}"], f"argument x-{key}")
    for what, policy in (("operator policy", applied.operator_policy), ("policy", applied.policy)):
        if policy is not None and key in policy.definition:
            yield Given(policy.definition[key], f"{what} '{policy.name}'")


def _chosen(key: str, given: list[Given]) -> tuple[Given, str]:
    """Return the value that applies of those given, in the order of `_given`, and the rule by which it does."""
    if len(given) == 1:
        return given[0], ""
    if key in LIMITS:
        limit = strictest([each.value for each in given])
        return next(each for each in given if each.value == limit), _NUMBER_RULE
    return given[0], _ARGUMENT_RULE if given[0].source.startswith("argument") else _OPERATOR_RULE


def value_in_effect(key: str, settings: QueueSettings) -> Any:
    """Return the value in effect; None for the default, and for what is not kept among the settings."""
    name = _FIELDS.get(key, key.replace("-", "_"))
    if key in _AS_GIVEN or not hasattr(NO_SETTINGS, name):
        return None
    value = getattr(settings, name)
    return None if value in (getattr(NO_SETTINGS, name), COUNTED) else value


def _row(key: str, value: Any, chosen: Given, others: list[Given], rule: str) -> dict[str, Any]:
    return {
        "key": key,
        "value": value,
        "source": chosen.source,
        "given": chosen.value,
        "over": [each._asdict() for each in others],
        "rule": rule,
    }


# -- promises of a queue that are open, and messages that its consumers hold ------------------------------------------


MOST_CONSUMERS: Final = 200  # consumers of a queue that are looked at
_SCANNED: Final = 4096  # unacked deliveries of a channel among which the oldest of a consumer is sought


def promises_of(queue: Queue) -> dict[str, int] | None:
    """Return the numbers of open (without a verdict), accepted and refused promises; None if the queue makes none."""
    awaiting = queue.awaiting
    if awaiting is None:
        return None
    return {"open": awaiting.open_count, "accepted": awaiting.accepted, "refused": awaiting.refused}


def holders_of(queue: Queue, now: float) -> Steps[list[dict[str, Any]]]:
    """Return the consumers of a queue that hold messages.

    `unacked_for` are the seconds since the oldest of them was delivered, within a second or two; None if that is not
    found among the first deliveries of the channel.
    """
    found = []
    for consumer in list(islice(queue.consumers, MOST_CONSUMERS)):
        channel: Any = consumer.channel
        if consumer.unacked:
            found.append(
                {
                    "consumer_tag": consumer.tag,
                    "channel": f"{channel.host.name} ({channel.number})",
                    "messages_unacknowledged": consumer.unacked,
                    "unacked_for": next(_ages(channel, consumer, now), None),
                }
            )
        yield None
    return found


def _ages(channel: Any, consumer: Consumer, now: float) -> Iterator[float]:
    for tag, (receiver, _) in islice(channel.unacked.items(), _SCANNED):
        if receiver is consumer:
            yield 0.0 if channel.ages is None else channel.ages.age(tag, now)


# -- why a message is where it is -------------------------------------------------------------------------------------


_DEATHS = 10
_CONSUMERS = 10


def lines_of_message(
    broker: AdministeredBroker, vhost: VHost, queue: Queue, view: MessageView, number: int
) -> list[str]:
    """Return why a message is where it is, in sentences; `number` is its place among those of its state."""
    return [
        f"{view.state} message {number} of queue '{queue.name}': {counted(view.size, 'byte')}",
        *_came(vhost, queue, view),
        *_waits(queue, view, number),
        *_will(broker, queue, view),
    ]


def _came(vhost: VHost, queue: Queue, view: MessageView) -> Iterator[str]:
    what = f"exchange '{view.exchange}'" if view.exchange else "the default exchange"
    yield f"came by {what} with routing key '{view.routing_key}'{_binding(vhost, queue, view)}"
    for each in view.deaths[:_DEATHS]:
        count = each.get("count")
        times = "once" if count == 1 else f"{count} times"
        yield f"died {times} in queue '{each.get('queue')}': {_reason(each.get('reason'))}{_first(each)}"
    if len(view.deaths) > _DEATHS:
        yield f"and {len(view.deaths) - _DEATHS} further deaths"
    if retries := retries_of(view.headers):
        yield f"was retried {'once' if retries == 1 else f'{retries} times'}"


def _binding(vhost: VHost, queue: Queue, view: MessageView) -> str:
    """Return the binding that passes such messages to the queue now."""
    if not view.exchange:
        return ""
    exchange = vhost.router.get(view.exchange)
    if exchange is None:
        return ", which does not exist any more"
    try:
        headers = typed(view.headers)
    except (TypeError, ValueError):  # values that have no equivalent
        headers = {}
    binding = next(matching_bindings(exchange, queue, view.routing_key, headers), None)
    if binding is None:
        return "; none of its own bindings leads here now"
    return f", by the binding '{binding.binding_key}'"


def _reason(reason: Any) -> str:
    return {
        "rejected": "rejected by a consumer",
        "expired": "its time to live was over",
        "maxlen": "the queue was full",
        "delivery_limit": "it was returned too often",
    }.get(str(reason), str(reason))


def _first(death: dict[str, Any]) -> str:
    seconds = time_of(death)
    if seconds is None:
        return ""
    return f" (first at {moment(seconds * 1000)})"


def _waits(queue: Queue, view: MessageView, number: int) -> Iterator[str]:
    if view.state == "held":
        yield f"the queue holds it until {moment(view.due or 0)}"
        return
    if view.state == "delayed":
        yield f"its exchange keeps it until {moment(view.due or 0)}"
        return
    if view.state == "unacked":
        since = "" if view.unacked_for is None else f" for {int(view.unacked_for)} s"
        if view.consumer:
            yield f"consumer '{view.consumer}' on channel {view.channel} has it{since}, and has not acknowledged it"
        elif view.channel:
            yield f"channel {view.channel} has fetched it by basic.get{since}, and has not acknowledged it"
        else:
            yield "the broker is moving it"
        return
    if number > 1:
        yield f"{counted(number - 1, 'message')} before it"
    if view.redelivered:
        yield "it was delivered before, and came back"
    if queue.is_paused:
        yield "the queue is paused: consumers get nothing before it is resumed"
    yield from _consumers(queue)


def _consumers(queue: Queue) -> Iterator[str]:
    consumers = list(queue.consumers)
    if not consumers:
        yield "the queue has no consumer"
        return
    active = queue.consumers.active
    if queue.consumers.single_active and active is not None:
        yield f"only the single active consumer '{active.tag}' gets messages, of {len(consumers)}"
        consumers = [active]
    for consumer in consumers[:_CONSUMERS]:
        yield f"consumer '{consumer.tag}' {_state(consumer)}"
    if len(consumers) > _CONSUMERS:
        yield f"and {len(consumers) - _CONSUMERS} further consumers"


def _state(consumer: Consumer) -> str:
    if consumer.outbox.full:
        return "does not read what was sent to it: its connection is congested"
    if consumer.room > 0:
        return f"can take messages ({consumer.unacked} unacked)"
    if not consumer.limit:
        return "has timed out, and gets none before its client has settled the messages that it had"
    if consumer.prefetch_count and consumer.unacked >= consumer.prefetch_count:
        return (
            f"has all that its prefetch count allows: {consumer.unacked} unacked of {consumer.prefetch_count}"
        )
    return "has all that the prefetch count of its channel allows"


def _will(broker: AdministeredBroker, queue: Queue, view: MessageView) -> Iterator[str]:
    settings = queue.settings
    if view.expires is not None:
        left = (view.expires - broker.wall_clock()) // 1000
        yield (
            f"expires at {moment(view.expires)}, in {left} s"
            if left > 0
            else f"expired at {moment(view.expires)}; it leaves the queue when it comes to its head"
        )
    limit = settings.delivery_limit
    if limit is not None and limit != COUNTED:
        yield f"was returned {view.headers.get('x-delivery-count', 0)} of {limit} times (delivery-limit)"
    if settings.dead_letter_exchange is None:
        yield "if it is rejected or expires, it is deleted: the queue has no dead letter exchange"
    else:
        yield f"if it is rejected or expires, it goes to exchange '{settings.dead_letter_exchange}'"
