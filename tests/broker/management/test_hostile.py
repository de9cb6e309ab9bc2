"""Requests with names, bodies and parameters that nobody expects."""

import random
import re
from urllib.parse import quote

import pytest
from doubles.fakes import Node
from services.api import Api

from leveret.broker.management.routes import ROUTES

NAMES = ("/", "own", "guest", "", "..", "%", "\0", "a" * 300, "<script>", "\udcff", "q", "amq.topic", "limits",
         "vhost-limits", "max-queues", "stream_queue", "1", "9" * 50, "days")  # fmt: skip
VALUES = (
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    "x",
    "",
    "\u0661",
    [],
    {},
    [1],
    [{}],
    {"a": 1},
    "own",
    "q",
    {"a": {"b": [None]}},
)
BODIES = (
    b"",
    b"null",
    b"[",
    b"5",
    b'"x"',
    b"[]",
    b"\xff",
    b'{"a":"\xff"}',
    b'{"tags":"\\ud800","password":"\\ud800"}',
)
PARAMETERS = (
    "page",
    "page_size",
    "sort",
    "columns",
    "name",
    "use_regex",
    "sort_reverse",
    "lengths_age",
    "lengths_incr",
)
GIVEN = ("1", "0", "x", "", "-1", "true", "9" * 20, "%ff", "a,b", "a.b", "(")
TRIES = 12


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_no_request_is_an_error_of_the_broker(route):
    """Each is answered, and with an error of the client if it is one."""
    chance = random.Random(route.path)
    for method, operation in route.operations.items():
        keys = [*(key.name for key in operation.body), "value", "name", "vhost"]
        parameters = [*PARAMETERS, *(key.name for key in operation.query)]
        for _ in range(TRIES):
            node = Node()
            node.administration.vhosts.put(None, "own")
            node.administration.users.set_permissions(
                None, "own", "guest", configure=".*", write=".*", read=".*"
            )
            node.administration.topology.declare_queue(None, "own", "q")
            path = re.sub(
                r"{\w+}",
                lambda _name: quote(chance.choice(NAMES).encode("utf-8", "surrogateescape"), safe=""),
                route.path,
            )
            query = "&".join(f"{each}={chance.choice(GIVEN)}" for each in chance.sample(parameters, 3))
            body: object = {key: chance.choice(VALUES) for key in keys if chance.random() < 0.8}
            if chance.random() < 0.2:
                body = chance.choice(BODIES)
            answer = Api(node).request(method, f"{path}?{query}", body)
            assert answer.status < 500 or answer.status == 503, (method, path, query, body, answer)
