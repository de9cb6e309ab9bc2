"""The table of all routes of the API."""

from leveret import __version__
from leveret.broker.http.call import Answer, Call, Item
from leveret.broker.http.openapi import described
from leveret.broker.http.route import Route, Router, Routes
from leveret.broker.management import (
    backup,
    bindings,
    clients,
    cluster,
    definitions,
    events,
    exchanges,
    explaining,
    health,
    login,
    messages,
    node_operations,
    node_settings,
    nodes,
    overview,
    parameters,
    permissions,
    policies,
    queues,
    shovels,
    tailing,
    transfers,
    users,
    vhosts,
)

_OWN = Routes("node")


@_OWN.get("openapi.json", needs=None)
def describe(_call: Call) -> Answer:
    """This API as an OpenAPI 3.1 document."""
    return Item(described(ROUTES, title="Leveret management API", version=__version__))


_MODULES = (
    backup,
    users,
    vhosts,
    permissions,
    policies,
    parameters,
    shovels,
    queues,
    exchanges,
    bindings,
    messages,
    explaining,
    transfers,
    tailing,
    clients,
    overview,
    nodes,
    node_operations,
    definitions,
    health,
    node_settings,
    cluster,
    login,
    events,
)
ROUTES: tuple[Route, ...] = (*[route for module in _MODULES for route in module.ROUTES], *_OWN)
ROUTER = Router(ROUTES)
