"""Replicas of quorum queues, of which there is one: `/api/queues/quorum`."""

from leveret.broker.administration.access import Right, found_vhost
from leveret.broker.http.call import Answer, Call, Listing
from leveret.broker.http.errors import ApiError, not_found
from leveret.broker.http.route import Routes, Scope
from leveret.broker.queue.arguments import QUORUM

ROUTES = Routes("replicas")


@ROUTES.get("queues/quorum/{vhost}/{queue}/status", scope=Scope.VISIBLE)
def get_status(call: Call) -> Answer:
    """State of the replica of a quorum queue."""
    queue = found_vhost(call.broker, call.names["vhost"]).queues.get(call.names["queue"])
    if queue is None or queue.type != QUORUM:
        raise not_found()
    return Listing(
        [{"Node Name": call.broker.node_name, "Raft State": "leader", "Membership": "voter"}], sort=()
    )


@ROUTES.post(
    "queues/quorum/{vhost}/{queue}/replicas/add",
    "queues/quorum/replicas/on/{node}/grow",
    needs=Right.ADMINISTRATOR,
    statuses=(),
)
@ROUTES.delete(
    "queues/quorum/{vhost}/{queue}/replicas/delete",
    "queues/quorum/replicas/on/{node}/shrink",
    needs=Right.ADMINISTRATOR,
    statuses=(),
)
def refuse(_call: Call) -> Answer:
    """Refused: there is one node."""
    raise ApiError(405, "method_not_allowed", "Broker settings disallow quorum queue replica operations.")
