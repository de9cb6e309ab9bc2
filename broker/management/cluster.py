"""The nodes of a broker whose log is replicated: `/api/leveret/cluster`."""

from leveret.broker.administration.access import Right
from leveret.broker.http.call import Answer, Call, Callback, Done, Item, Steps, text
from leveret.broker.http.route import Key, Operation, Route


def get_cluster(call: Call) -> Answer:
    """Return the nodes, and how far each is."""
    return Item(call.administration.cluster.described(call.actor))


def transfer(call: Call) -> Answer:
    """Begin to hand over to another node."""
    call.administration.cluster.transfer(call.actor, text(call.body(), "name"))
    return Done(202)


def forget(call: Call) -> Steps:
    """Remove a node that is gone for good."""
    yield Callback(call.administration.cluster.forget(call.actor, call.names["name"]))
    return Done()


def accept_log(call: Call) -> Answer:
    """Go on with a log that is shorter than the copies of all nodes."""
    call.administration.cluster.accept_log(call.actor)
    return Done()


_GROUP = "cluster"
_PATH = "leveret/cluster"
ROUTES = (
    Route(
        _PATH,
        _GROUP,
        {
            "GET": Operation(
                get_cluster,
                "Role and lag of this node, who leads, the members and when they were seen, and problems; also on a "
                "node that waits.",
                Right.MONITORING,
            )
        },
    ),
    Route(
        f"{_PATH}/transfer",
        _GROUP,
        {
            "POST": Operation(
                transfer,
                "Have another node lead; this one closes its clients and waits.",
                Right.ADMINISTRATOR,
                body=(Key("name", doc="the node; any by default"),),
                statuses=(202,),
                is_stored=False,
            )
        },
    ),
    Route(
        f"{_PATH}/members/{{name}}",
        _GROUP,
        {
            "DELETE": Operation(
                forget,
                "Forget a node that is down for good.",
                Right.ADMINISTRATOR,
                statuses=(204,),
                is_stored=False,
            )
        },
    ),
    Route(
        f"{_PATH}/accept-log",
        _GROUP,
        {
            "POST": Operation(
                accept_log,
                "Go on with a log that is shorter than the copies of all nodes; drops all later entries.",
                Right.ADMINISTRATOR,
                statuses=(204,),
                is_stored=False,
            )
        },
    ),
)
