"""The table of all routes of the API."""

from leveret.broker.http.route import Route, Router
from leveret.broker.management import (
    bindings,
    clients,
    exchanges,
    limits,
    messages,
    node_operations,
    nodes,
    overview,
    parameters,
    permissions,
    policies,
    queues,
    users,
    vhosts,
)

ROUTES: tuple[Route, ...] = (
    *users.ROUTES,
    *vhosts.ROUTES,
    *permissions.ROUTES,
    *policies.ROUTES,
    *parameters.ROUTES,
    *limits.ROUTES,
    *queues.ROUTES,
    *exchanges.ROUTES,
    *bindings.ROUTES,
    *messages.ROUTES,
    *clients.ROUTES,
    *overview.ROUTES,
    *nodes.ROUTES,
    *node_operations.ROUTES,
)
ROUTER = Router(ROUTES)
