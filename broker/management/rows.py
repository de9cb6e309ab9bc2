"""Rows of the API for callers in the same process, who act as the operator on the host.

A broker is the managed one (`http.call.ManagedBroker`), whatever kinds of users and clocks it has.
"""

from typing import Any

from leveret.broker.administration.messages import found_queue
from leveret.broker.http.call import Call
from leveret.broker.management.client_fields import (
    connection_fields,
    consumer_counts,
    consumer_fields,
    shown,
)
from leveret.broker.management.queue_fields import queue_fields


def queue_row(broker: Any, vhost: str, name: str) -> dict[str, Any]:
    """Return the row of a queue. Raises NotFoundError if it or its vhost does not exist."""
    _, queue = found_queue(broker, None, vhost, name)
    return shown(queue_fields(Call(broker, None)), queue)


def consumer_rows(broker: Any, vhost: str, name: str) -> list[dict[str, Any]]:
    """Return the rows of the consumers of a queue, with their counts, which RabbitMQ has not. Raises as `queue_row`."""
    _, queue = found_queue(broker, None, vhost, name)
    fields = {**consumer_fields(Call(broker, None)), "message_stats": consumer_counts}
    return [shown(fields, consumer) for consumer in tuple(queue.consumers)]


def connection_rows(broker: Any, vhost: str) -> list[dict[str, Any]]:
    """Return the rows of the connections to a vhost."""
    fields = connection_fields(Call(broker, None))
    return [shown(fields, each) for each in broker.administration.listings.connections(None, vhost)]
