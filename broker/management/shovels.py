"""Shovels: `/api/shovels`, as of RabbitMQ's plugin."""

import contextlib

from leveret.broker.administration.access import NotFoundError, Right
from leveret.broker.http.call import Answer, Call, Item, Listing
from leveret.broker.http.route import Routes, Scope
from leveret.broker.management.client_errors import found_vhost

ROUTES = Routes("shovels")


@ROUTES.list("shovels", needs=Right.MONITORING)
@ROUTES.list("shovels/{vhost}", needs=Right.MONITORING, scope=Scope.VISIBLE)
def list_shovels(call: Call) -> Answer:
    """The status of shovels: `starting`, `running`, `flow`, `blocked` or `terminated` with a reason."""
    node = call.broker.node_name
    rows = call.administration.shovels.statuses(call.actor, call.names.get("vhost"))
    return Listing([{"node": node, **row} for row in rows], sort=("vhost", "name"), is_paged=False)


@ROUTES.get("shovels/vhost/{vhost}/{name}", needs=Right.MONITORING, scope=Scope.VISIBLE)
def get_shovel(call: Call) -> Answer:
    """The definition of a shovel; only administrators see the logins of its URIs."""
    names = call.names
    return Item(call.administration.shovels.definition(call.actor, names["vhost"], names["name"]))


@ROUTES.delete("shovels/vhost/{vhost}/{name}", needs=Right.POLICYMAKER, scope=Scope.VHOST)
def delete_shovel(call: Call) -> None:
    """Stop and delete a shovel."""
    vhost = found_vhost(call)
    with contextlib.suppress(NotFoundError):
        call.administration.shovels.delete(call.actor, vhost, call.names["name"])


@ROUTES.delete("shovels/vhost/{vhost}/{name}/restart", needs=Right.POLICYMAKER, scope=Scope.VHOST)
def restart_shovel(call: Call) -> None:
    """Stop a shovel and start it again."""
    call.administration.shovels.restart(call.actor, call.names["vhost"], call.names["name"])
