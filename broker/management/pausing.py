"""Queues whose deliveries are paused and resumed: `/api/leveret/queues/.../pause` and `.../resume`."""

from leveret.broker.http.call import Answer, Call, Done
from leveret.broker.http.route import Operation, Route, Scope
from leveret.broker.management.client_errors import changing


def pause(call: Call) -> Answer:
    """Pause a queue."""
    return _set(call, paused=True)


def resume(call: Call) -> Answer:
    """Resume a queue."""
    return _set(call, paused=False)


def _set(call: Call, *, paused: bool) -> Answer:
    with changing(call):
        call.administration.topology.set_queue_paused(
            call.actor, call.names["vhost"], call.names["queue"], paused=paused
        )
    return Done()


_PAUSE = (
    "Pause the deliveries of a queue to its consumers; it stays paused until it is resumed, a durable queue also when "
    "the broker restarts. Needs read and configure on the queue."
)
_GROUP = "queues"
_PATH = "leveret/queues/{vhost}/{queue}"
ROUTES = (
    Route(
        f"{_PATH}/pause",
        _GROUP,
        {"PUT": Operation(pause, _PAUSE, scope=Scope.CLIENT, statuses=(204,))},
    ),
    Route(
        f"{_PATH}/resume",
        _GROUP,
        {
            "PUT": Operation(
                resume,
                "Resume the deliveries of a paused queue; needs read and configure on the queue.",
                scope=Scope.CLIENT,
                statuses=(204,),
            )
        },
    ),
)
