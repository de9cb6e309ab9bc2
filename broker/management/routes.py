"""The table of all routes of the API."""

from leveret import __version__
from leveret.broker.http.call import Answer, Call, Item
from leveret.broker.http.route import Route, Router, Routes, described
from leveret.broker.management import (
    clients,
    definitions,
    events,
    exchanges,
    health,
    login,
    messages,
    node_operations,
    node_settings,
    overview,
    policies,
    queues,
    transfers,
    users,
    vhosts,
)

_OWN = Routes("node")


@_OWN.get("openapi.json", needs=None)
def describe(_call: Call) -> Answer:
    """This API as an OpenAPI 3.1 document."""
    return Item(described(ROUTES, title="Leveret management API", version=__version__))


_TABLES = (
    *(node_operations.BACKUP_ROUTES, users.ROUTES, vhosts.ROUTES, users.PERMISSION_ROUTES),
    *(policies.ROUTES, policies.PARAMETER_ROUTES, policies.SHOVEL_ROUTES),
    *(queues.ROUTES, exchanges.ROUTES, exchanges.BINDING_ROUTES),
    *(messages.ROUTES, messages.EXPLANATION_ROUTES, transfers.ROUTES, queues.HELD_ROUTES, queues.ID_ROUTES),
    *(clients.ROUTES, overview.ROUTES, overview.NODE_ROUTES, node_operations.ROUTES),
    *(definitions.ROUTES, health.ROUTES),
    *(node_settings.ROUTES, node_operations.CLUSTER_ROUTES, login.ROUTES, events.ROUTES, _OWN),
)
ROUTES: tuple[Route, ...] = tuple(route for table in _TABLES for route in table)
ROUTER = Router(ROUTES)
