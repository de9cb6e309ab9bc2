"""The table of all routes of the API."""

from leveret.broker.http.route import Route, Router
from leveret.broker.management import limits, parameters, permissions, policies, users, vhosts

ROUTES: tuple[Route, ...] = (
    *users.ROUTES,
    *vhosts.ROUTES,
    *permissions.ROUTES,
    *policies.ROUTES,
    *parameters.ROUTES,
    *limits.ROUTES,
)
ROUTER = Router(ROUTES)
