"""The table of all routes of the API."""

from leveret.broker.http.route import Route, Router
from leveret.broker.management import (
    backup,
    bindings,
    clients,
    definitions,
    description,
    exchanges,
    health,
    limits,
    messages,
    node_operations,
    node_settings,
    nodes,
    overview,
    parameters,
    permissions,
    policies,
    queues,
    replicas,
    users,
    vhosts,
)

_OF_RESOURCES: tuple[Route, ...] = (
    *backup.ROUTES,
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
    *definitions.ROUTES,
    *health.ROUTES,
    *node_settings.ROUTES,
    *replicas.ROUTES,
)
ROUTES = description.with_description(_OF_RESOURCES)
ROUTER = Router(ROUTES)
