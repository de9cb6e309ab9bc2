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
    limits,
    login,
    logs,
    messages,
    node_operations,
    node_settings,
    nodes,
    overview,
    parameters,
    pausing,
    peeking,
    permissions,
    policies,
    provider_login,
    queues,
    replicas,
    reports,
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
    limits,
    shovels,
    queues,
    exchanges,
    bindings,
    messages,
    peeking,
    pausing,
    explaining,
    transfers,
    tailing,
    clients,
    overview,
    nodes,
    node_operations,
    logs,
    reports,
    definitions,
    health,
    node_settings,
    cluster,
    login,
    provider_login,
    events,
    replicas,
)
ROUTES: tuple[Route, ...] = (*[route for module in _MODULES for route in module.ROUTES], *_OWN)
ROUTER = Router(ROUTES)
