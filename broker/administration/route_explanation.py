"""The way of a message from an exchange to its queues, each step with the bindings that match."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from leveret.broker.administration.definitions_document import plain_arguments
from leveret.broker.administration.messages import Steps
from leveret.broker.amqp.properties import Properties, build
from leveret.broker.amqp.tables import Table
from leveret.broker.queue.queue import Queue
from leveret.broker.statistics.queue_health import needs_consumer, refusal
from leveret.broker.time_text import moment
from leveret.broker.vhost.publish_route import PropertyDemands
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Binding, Exchange
from leveret.exchanges.choice import ChoiceExchange
from leveret.exchanges.delayed import delay_of, due_headers

MOST_STEPS: Final = 100  # exchanges of a way that are explained at most
MOST_BINDINGS: Final = 100  # matching bindings of an exchange that are shown at most
_TRIED = 256  # bindings to one destination that are compared at most, to name the one that matches
_PIECE = 256
_LISTED = 20  # queues and bindings in the lines of a publish


def route_of(
    vhost: VHost, exchange: Exchange, routing_key: str, demands: PropertyDemands
) -> Steps[dict[str, Any]]:
    """Return the way of a message with these headers, in steps: the exchanges it passes, the queues it reaches."""
    found = _Found()
    yield from _walk(vhost, found, exchange, [], (routing_key, *demands.extra_keys), demands.headers)
    delay = delay_of(demands.headers)
    kept = demands
    if found.arrivals and demands.has_bcc:  # the queues and the exchanges that keep it share one message
        kept = PropertyDemands(Properties(build(0, headers=demands.without_bcc())))
    for keeper, way in found.keepers:
        keys = routing_key, *kept.extra_keys
        yield from _walk(vhost, found, keeper, way, keys, due_headers(kept.headers), delay)
    return {
        "exchange": exchange.name,
        "routing_key": routing_key,
        "extra_keys": list(demands.extra_keys),
        "removes_bcc": demands.has_bcc,
        "routed": bool(found.arrivals),
        "delay": delay if found.keepers else None,
        "queues": [_reached(*arrival) for arrival in islice(found.arrivals, MOST_BINDINGS)],
        "queue_count": len({queue for queue, _, _ in found.arrivals}),
        "steps": found.steps,
        "is_complete": found.is_complete,
    }


class _Found:
    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.arrivals: list[tuple[Queue, list[str], int]] = []
        """The queues that it reaches, each with the exchanges before it and the milliseconds until then."""
        self.keepers: list[tuple[Exchange, list[str]]] = []
        """The exchanges that keep it until its delay is over, each with the exchanges before it."""
        self.is_complete = True


def _walk(
    vhost: VHost,
    found: _Found,
    exchange: Exchange,
    way: list[str],
    keys: Sequence[str],
    headers: Table,
    delay: int = 0,
) -> Steps[None]:
    """Follow a message until it is in queues, or kept by exchanges that delay it."""
    # An exchange that has kept it for some `delay` (milliseconds) routes it like a publish: it may come once more to
    # where it has been.
    queues: dict[Queue, list[str]] = {}
    work = [(exchange, way)]
    seen = {exchange}
    while work and len(found.steps) < MOST_STEPS:
        visited, before = work.pop(0)
        if visited.line is not None and 0 < delay_of(headers) <= visited.line.longest:
            found.keepers.append((visited, before))
            yield None
            continue
        way = [*before, visited.name]
        matches = yield from _matches(vhost, visited, keys, headers)
        step, alternate = yield from _step(vhost, visited, matches, keys, headers)
        found.steps.append({**step, "delay": delay if delay and visited is exchange else None})
        following: list[Exchange] = []
        for number, destination in enumerate(matches, 1):
            if isinstance(destination, Queue):
                queues.setdefault(destination, way)
            elif isinstance(destination, Exchange):
                following.append(destination)
            if not number % _PIECE:
                yield None
        if not matches and alternate is not None:
            following = [alternate]
        following = [other for other in dict.fromkeys(following) if other not in seen]
        seen.update(following)
        work += [(other, way) for other in following]
    found.arrivals += [(queue, by, delay) for queue, by in queues.items()]
    found.is_complete = found.is_complete and not work


def _matches(
    vhost: VHost, exchange: Exchange, keys: Sequence[str], headers: Table
) -> Steps[dict[Any, str | None]]:
    """Return the destinations of one exchange, each with the first key that leads there; None if none matters."""
    # Those of the default exchange are the queues with these names.
    if exchange.picks_one:
        return dict.fromkeys(exchange.match_keys(keys, headers))
    found: dict[Any, str | None] = {}
    matches: dict[int, Collection[object]] = {}
    for key in keys[:1] if exchange.keyless else keys:
        if exchange.name:
            for _ in exchange.prepare(key) or ():
                yield None
            match = exchange.match(key, headers)
        else:
            queue = vhost.queues.get(key)
            match = () if queue is None else (queue,)
        if id(match) in matches:  # many keys may lead to the same collection, and that may be long
            continue
        matches[id(match)] = match
        for number, destination in enumerate(tuple(match), 1):
            found.setdefault(destination, None if exchange.keyless else key)
            if not number % _PIECE:
                yield None
        yield None
    return found


def _step(
    vhost: VHost, exchange: Exchange, found: Mapping[Any, str | None], keys: Sequence[str], headers: Table
) -> Steps[tuple[dict[str, Any], Exchange | None]]:
    """Return what happens at one exchange, and the alternate exchange that takes the message, if one does."""
    alternate = None
    if not found and exchange.alternate is not None:
        alternate = vhost.router.get(exchange.alternate)
    matches = []
    for destination, key in islice(found.items(), MOST_BINDINGS):
        binding = next(
            matching_bindings(exchange, destination, keys[0] if key is None else key, headers), None
        )
        matches.append(
            {
                "destination": destination.name,
                "destination_type": "exchange" if isinstance(destination, Exchange) else "queue",
                "matched_key": key,
                "routing_key": None if binding is None else binding.binding_key,
                "arguments": {} if binding is None else plain_arguments(binding.arguments),
            }
        )
        yield None
    return {
        "exchange": exchange.name,
        "type": exchange.type,
        "bindings": exchange.binding_count,
        "choice": exchange.reason(keys) if isinstance(exchange, ChoiceExchange) else None,
        "matched": len(found),
        "matches": matches,
        "alternate_exchange": exchange.alternate,
        "alternate_takes_it": alternate is not None,
    }, alternate


def matching_bindings(
    exchange: Exchange, destination: object, routing_key: str, headers: Table
) -> Iterator[Binding]:
    """Yield the bindings by which an exchange passes a message to a destination."""
    for binding in islice(exchange.bindings_to(destination), _TRIED):
        alone = type(exchange)(exchange.name, arguments=exchange.arguments)
        alone.bind(destination, binding.binding_key, binding.arguments or None)
        if destination in alone.match(routing_key, headers):
            yield binding


def _reached(queue: Queue, way: list[str], delay: int) -> dict[str, Any]:
    return {
        "name": queue.name,
        "way": way,
        "delay": delay or None,
        "messages_ready": queue.ready_count,
        "consumers": queue.consumer_count,
        "needs_consumer": needs_consumer(queue),
        "refuses": refusal(queue),
        "paused": queue.is_paused,
    }


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which has an s unless there is one of it."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# -- the same for people ----------------------------------------------------------------------------------------------


def lines_of_publish(facts: Mapping[str, Any], exchange: Exchange) -> Iterator[str]:
    """Yield the way of a message to an exchange (`route_of`) in sentences."""
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
    if facts["duplicate_of"] is not None:
        first = moment(facts["duplicate_of"])
        yield f"  not routed: duplicate of a message of {first}; the first one was routed so:"
    elif (ids := facts["ids"]) is not None:
        known, repeated = counted(ids["ids"], "id"), counted(ids["repeated"], "repeat")
        yield f"  the exchange takes each message once ({ids['deduplicate']}): knows {known}, dropped {repeated}"
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
    listed = facts["queues"][:_LISTED]
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
    if not keys:
        return ""
    more = f" and {len(keys) - _LISTED} others" if len(keys) > _LISTED else ""
    names = ", ".join([f"'{key}'" for key in keys[:_LISTED]])
    return f", and {names}{more} in CC or BCC"


def _lines_of_step(step: Mapping[str, Any], keys: int) -> Iterator[str]:
    name = named(step["exchange"])
    if step["delay"] is not None:
        yield f"  {name} keeps it for {step['delay']} ms, and then:"
    if not step["exchange"] and keys > 1:
        yield f"  {name} finds {counted(step['matched'], 'queue')} for {keys} keys"
    elif not step["exchange"]:
        yield f"  {name} finds {'the' if step['matched'] else 'no'} queue of that name"
    elif step["choice"] and step["matched"]:
        yield f"  {name} ({step['type']}): one of its {step['bindings']} bindings is chosen by {step['choice']}"
    else:
        yield f"  {name} ({step['type']}): {step['matched']} of its {step['bindings']} bindings' destinations match"
    for each in step["matches"][:_LISTED]:
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
