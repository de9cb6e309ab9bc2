"""The nodes of a broker whose log is replicated: `/api/leveret/cluster`."""

from leveret.broker.administration.access import Right
from leveret.broker.http.call import Answer, Call, Callback, Done, Item, Steps, text
from leveret.broker.http.route import Key, Routes

ROUTES = Routes("cluster", needs=Right.ADMINISTRATOR)


@ROUTES.get("leveret/cluster", needs=Right.MONITORING)
def get_cluster(call: Call) -> Answer:
    """Role and lag of this node, who leads, the members and when they were seen, and problems; also on a
    node that waits.
    """
    return Item(call.administration.cluster.described(call.actor))


@ROUTES.post(
    "leveret/cluster/transfer",
    body=(Key("name", doc="the node; any by default"),),
    statuses=(202,),
    is_stored=False,
)
def transfer(call: Call) -> Answer:
    """Have another node lead; this one closes its clients and waits."""
    call.administration.cluster.transfer(call.actor, text(call.body(), "name"))
    return Done(202)


@ROUTES.delete("leveret/cluster/members/{name}", is_stored=False)
def forget(call: Call) -> Steps:
    """Forget a node that is down for good."""
    yield Callback(call.administration.cluster.forget(call.actor, call.names["name"]))
    return Done()


@ROUTES.post("leveret/cluster/accept-log", is_stored=False)
def accept_log(call: Call) -> None:
    """Go on with a log that is shorter than the copies of all nodes; drops all later entries."""
    call.administration.cluster.accept_log(call.actor)
