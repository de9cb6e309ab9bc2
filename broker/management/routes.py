"""The table of all routes of the API."""

from leveret.broker.http.route import Route, Router
from leveret.broker.management import (
    bindings,
    exchanges,
    limits,
    messages,
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
)
ROUTER = Router(ROUTES)
