"""The description of the API: `/api/openapi.json`, and its routes, which describe themselves, too."""

from collections.abc import Iterable

from leveret import __version__
from leveret.broker.http.call import Answer, Call, Item
from leveret.broker.http.openapi import described
from leveret.broker.http.route import Operation, Route


def with_description(routes: Iterable[Route]) -> tuple[Route, ...]:
    """Return the routes of an API and one more that describes all of them."""

    def describe(_call: Call) -> Answer:
        """Return the description."""
        return Item(described(all_routes, title="Leveret management API", version=__version__))

    doc = "This API as an OpenAPI 3.1 document."
    all_routes = (*routes, Route("openapi.json", "node", {"GET": Operation(describe, doc, None)}))
    return all_routes
