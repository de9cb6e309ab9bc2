"""Shovels: `/api/shovels`, as of RabbitMQ's plugin."""

import contextlib

from leveret.broker.administration.access import NotFoundError, Right
from leveret.broker.http.call import Answer, Call, Done, Item, Listing
from leveret.broker.http.route import Operation, Route, Scope
from leveret.broker.management.client_errors import found_vhost


def list_shovels(call: Call) -> Answer:
    """List the status of shovels."""
    node = call.broker.node_name
    rows = call.administration.shovels.statuses(call.actor, call.names.get("vhost"))
    return Listing([{"node": node, **row} for row in rows], sort=("vhost", "name"), is_paged=False)


def get_shovel(call: Call) -> Answer:
    """Return the definition of a shovel."""
    names = call.names
    return Item(call.administration.shovels.definition(call.actor, names["vhost"], names["name"]))


def delete_shovel(call: Call) -> Answer:
    """Delete a shovel; as in RabbitMQ 3.13 it need not exist."""
    vhost = found_vhost(call)
    with contextlib.suppress(NotFoundError):
        call.administration.shovels.delete(call.actor, vhost, call.names["name"])
    return Done()


def restart_shovel(call: Call) -> Answer:
    """Restart a shovel."""
    call.administration.shovels.restart(call.actor, call.names["vhost"], call.names["name"])
    return Done()


_GROUP = "shovels"
_LIST = "The status of shovels: `starting`, `running`, `flow`, `blocked` or `terminated` with a reason."
ROUTES = (
    Route("shovels", _GROUP, {"GET": Operation(list_shovels, _LIST, Right.MONITORING, kind="array")}),
    Route(
        "shovels/{vhost}",
        _GROUP,
        {"GET": Operation(list_shovels, _LIST, Right.MONITORING, Scope.VISIBLE, kind="array")},
    ),
    Route(
        "shovels/vhost/{vhost}/{name}",
        _GROUP,
        {
            "GET": Operation(
                get_shovel,
                "The definition of a shovel; only administrators see the logins of its URIs.",
                Right.MONITORING,
                Scope.VISIBLE,
            ),
            "DELETE": Operation(
                delete_shovel, "Stop and delete a shovel.", Right.POLICYMAKER, Scope.VHOST, statuses=(204,)
            ),
        },
    ),
    Route(
        "shovels/vhost/{vhost}/{name}/restart",
        _GROUP,
        {
            "DELETE": Operation(
                restart_shovel,
                "Stop a shovel and start it again.",
                Right.POLICYMAKER,
                Scope.VHOST,
                statuses=(204,),
            )
        },
    ),
)
