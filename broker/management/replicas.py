"""Replicas of quorum queues, of which there is one: `/api/queues/quorum`."""

from leveret.broker.administration.access import Right, found_vhost
from leveret.broker.http.call import Answer, Call, Listing
from leveret.broker.http.errors import ApiError, not_found
from leveret.broker.http.route import Operation, Route, Scope
from leveret.broker.queue.arguments import QUORUM


def get_status(call: Call) -> Answer:
    """Return the state of the only replica of a quorum queue."""
    queue = found_vhost(call.broker, call.names["vhost"]).queues.get(call.names["queue"])
    if queue is None or queue.type != QUORUM:
        raise not_found()
    return Listing(
        [{"Node Name": call.broker.node_name, "Raft State": "leader", "Membership": "voter"}], sort=()
    )


def refuse(_call: Call) -> Answer:
    """Refuse to change replicas, as a RabbitMQ that is configured so."""
    raise ApiError(405, "method_not_allowed", "Broker settings disallow quorum queue replica operations.")


_POST = {"POST": Operation(refuse, "Refused: there is one node.", Right.ADMINISTRATOR, statuses=())}
_DELETE = {"DELETE": Operation(refuse, "Refused: there is one node.", Right.ADMINISTRATOR, statuses=())}
ROUTES = (
    Route("queues/quorum/{vhost}/{queue}/replicas/add", "replicas", _POST),
    Route("queues/quorum/{vhost}/{queue}/replicas/delete", "replicas", _DELETE),
    Route("queues/quorum/replicas/on/{node}/grow", "replicas", _POST),
    Route("queues/quorum/replicas/on/{node}/shrink", "replicas", _DELETE),
    Route(
        "queues/quorum/{vhost}/{queue}/status",
        "replicas",
        {"GET": Operation(get_status, "State of the replica of a quorum queue.", scope=Scope.VISIBLE)},
    ),
)
