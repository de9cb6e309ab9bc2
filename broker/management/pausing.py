"""Queues whose deliveries are paused and resumed: `/api/leveret/queues/.../pause` and `.../resume`."""

from leveret.broker.http.call import Answer, Call, Done
from leveret.broker.http.route import Routes, Scope
from leveret.broker.management.client_errors import changing

ROUTES = Routes("queues")


@ROUTES.put("leveret/queues/{vhost}/{queue}/pause", scope=Scope.CLIENT, statuses=(204,))
def pause(call: Call) -> Answer:
    """Pause the deliveries of a queue to its consumers; it stays paused until it is resumed, a durable
    queue also when the broker restarts. Needs read and configure on the queue.
    """
    return _set(call, paused=True)


@ROUTES.put("leveret/queues/{vhost}/{queue}/resume", scope=Scope.CLIENT, statuses=(204,))
def resume(call: Call) -> Answer:
    """Resume the deliveries of a paused queue; needs read and configure on the queue."""
    return _set(call, paused=False)


def _set(call: Call, *, paused: bool) -> Answer:
    with changing(call):
        call.administration.topology.set_queue_paused(
            call.actor, call.names["vhost"], call.names["queue"], paused=paused
        )
    return Done()
