"""The table of all routes of the API."""

from leveret.broker.http.route import Route, Router
from leveret.broker.management import users

ROUTES: tuple[Route, ...] = (*users.ROUTES,)
ROUTER = Router(ROUTES)
