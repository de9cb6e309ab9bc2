"""The sentences of why a message is where it is: how it came, what it waits for, what will happen to it."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from leveret.broker.administration.access import AdministeredBroker
from leveret.broker.administration.messages import MessageView
from leveret.broker.administration.route_explanation import counted, matching_bindings
from leveret.broker.amqp.tables import typed
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.settings import COUNTED
from leveret.broker.transfer.retry import time_of
from leveret.broker.vhost.vhost import VHost

_DEATHS = 10
_CONSUMERS = 10


def lines_of_message(
    broker: AdministeredBroker, vhost: VHost, queue: Queue, view: MessageView, number: int
) -> list[str]:
    """Return the sentences.

    Args:
        broker: the broker.
        vhost: the virtual host.
        queue: the queue of the message.
        view: the message.
        number: its place among those of its state.

    """
    return [
        f"{view.state} message {number} of queue '{queue.name}': {counted(view.size, 'byte')}",
        *_came(vhost, queue, view),
        *_waits(queue, view, number),
        *_will(broker, queue, view),
    ]


def _came(vhost: VHost, queue: Queue, view: MessageView) -> Iterator[str]:
    """Yield how it came to its queue."""
    what = f"exchange '{view.exchange}'" if view.exchange else "the default exchange"
    yield f"came by {what} with routing key '{view.routing_key}'{_binding(vhost, queue, view)}"
    for each in view.deaths[:_DEATHS]:
        count = each.get("count")
        times = "once" if count == 1 else f"{count} times"
        yield f"died {times} in queue '{each.get('queue')}': {_reason(each.get('reason'))}{_first(each)}"
    if len(view.deaths) > _DEATHS:
        yield f"and {len(view.deaths) - _DEATHS} further deaths"


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
    return f" (first at {datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ})"


def _waits(queue: Queue, view: MessageView, number: int) -> Iterator[str]:
    """Yield what it waits for."""
    if view.state == "delayed":
        yield f"its exchange keeps it until {_time(view.due or 0)}"
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
    """Yield why the consumers of a queue do not take its messages."""
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
    if consumer.prefetch_count and consumer.unacked >= consumer.prefetch_count:
        return (
            f"has all that its prefetch count allows: {consumer.unacked} unacked of {consumer.prefetch_count}"
        )
    return "has all that the prefetch count of its channel allows"


def _will(broker: AdministeredBroker, queue: Queue, view: MessageView) -> Iterator[str]:
    """Yield what will happen to it."""
    settings = queue.settings
    if view.expires is not None:
        left = (view.expires - broker.wall_clock()) // 1000
        yield (
            f"expires at {_time(view.expires)}, in {left} s"
            if left > 0
            else f"expired at {_time(view.expires)}; it leaves the queue when it comes to its head"
        )
    limit = settings.delivery_limit
    if limit is not None and limit != COUNTED:
        yield f"was returned {view.headers.get('x-delivery-count', 0)} of {limit} times (delivery-limit)"
    if settings.dead_letter_exchange is None:
        yield "if it is rejected or expires, it is deleted: the queue has no dead letter exchange"
    else:
        yield f"if it is rejected or expires, it goes to exchange '{settings.dead_letter_exchange}'"


def _time(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
