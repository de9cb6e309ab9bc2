"""Routes: how they are found, and their description as an OpenAPI document."""

import re
from urllib.parse import quote

import pytest
from doubles.fakes import Client, Node
from services.api import Api

from leveret import __version__
from leveret.broker.http.call import Item
from leveret.broker.http.errors import ApiError
from leveret.broker.http.route import Key, Operation, Route, Router, Routes, Scope, required
from leveret.broker.management.routes import ROUTES

ANY = {"GET": Operation(lambda _call: Item({}), "Nothing.")}
ROUTER = Router(
    [
        Route("queues", "x", ANY),
        Route("queues/detailed", "x", ANY),
        Route("queues/{vhost}", "x", ANY),
        Route("queues/{vhost}/{queue}", "x", ANY),
        Route("queues/quorum/{vhost}/{queue}/status", "x", ANY),
    ]
)


@pytest.mark.parametrize(
    ("path", "route", "names"),
    [
        ("queues", "queues", {}),
        ("queues/", "queues", {}),
        ("queues/detailed", "queues/detailed", {}),
        ("queues/%2F", "queues/{vhost}", {"vhost": "/"}),
        ("queues/%2f/", "queues/{vhost}", {"vhost": "/"}),
        ("queues/%2F/a%2Fb", "queues/{vhost}/{queue}", {"vhost": "/", "queue": "a/b"}),
        ("queues/v/a+b%20c%25d", "queues/{vhost}/{queue}", {"vhost": "v", "queue": "a+b c%d"}),
        ("queues/v/%252F", "queues/{vhost}/{queue}", {"vhost": "v", "queue": "%2F"}),
        ("queues/v/%2E%2E", "queues/{vhost}/{queue}", {"vhost": "v", "queue": ".."}),
        ("queues/v/%3F%23%3B", "queues/{vhost}/{queue}", {"vhost": "v", "queue": "?#;"}),
        ("queues/v/%C3%A9", "queues/{vhost}/{queue}", {"vhost": "v", "queue": "\xe9"}),
        ("queues/v/%FF", "queues/{vhost}/{queue}", {"vhost": "v", "queue": "\udcff"}),
        ("queues/quorum/q", "queues/{vhost}/{queue}", {"vhost": "quorum", "queue": "q"}),
        ("queues/quorum/v/q/status", "queues/quorum/{vhost}/{queue}/status", {"vhost": "v", "queue": "q"}),
        ("queues//q", "queues/{vhost}/{queue}", {"vhost": "", "queue": "q"}),
    ],
)
def test_a_path_is_divided_first_and_then_decoded_once(path, route, names):
    """A fixed segment goes before a name; a plus is a plus; one slash at the end does not matter."""
    found = ROUTER.find(path)

    assert found is not None
    assert (route, names) == (found[0].path, found[1])


@pytest.mark.parametrize("path", ["", "/", "que", "queues/v/q/more", "queues/v/q//", "/queues"])
def test_other_paths_are_not_found(path):
    """Nor is one with two slashes at its end."""
    assert ROUTER.find(path) is None


@pytest.mark.parametrize(
    "path", ["queues/v/%", "queues/v/%2", "queues/%zz/q", "queues/v/%2%35", "nothing/50%"]
)
def test_a_path_that_is_not_encoded_is_refused(path):
    """A percent sign without two hexadecimal digits is an error, not part of a name."""
    with pytest.raises(ApiError) as refused:
        ROUTER.find(path)
    assert 400 == refused.value.status


def test_methods_of_a_route():
    """A path with GET has HEAD, and every path has OPTIONS."""
    assert ("HEAD", "GET", "OPTIONS") == Route("x", "x", ANY).methods
    assert ("PUT", "OPTIONS") == Route("x", "x", {"PUT": ANY["GET"]}).methods


def test_a_handler_is_a_route_by_its_decorator():
    """Its docstring is the summary, handlers of one path are one route, and most fields have defaults."""
    routes = Routes("queues", scope=Scope.VHOST)

    @routes.list("queues", "queues/{vhost}", doc="All queues.")
    @routes.get("queues/{vhost}/{queue}")
    def get(_call):
        """One queue.

        There is one.
        """
        return Item({})

    @routes.put("queues/{vhost}/{queue}", body=(required("durable", "boolean"),), group="ignored")
    @routes.post("queues/{vhost}/{queue}/pause", arguments={"paused": True}, needs=None, group="pauses")
    def put(_call, *, paused=False):
        """Do it."""
        return paused

    @routes.put("queues/{vhost}/{queue}/resume")
    def resume(_call) -> None:
        """Resume it."""

    found = {route.path: route for route in routes}
    one = found["queues/{vhost}/{queue}"]
    pause = found["queues/{vhost}/{queue}/pause"]

    assert ["GET", "PUT"] == list(one.operations)
    assert ("queues", "pauses") == (one.group, pause.group)
    assert ("One queue. There is one.", "Do it.") == tuple(each.doc for each in one.operations.values())
    assert ("object", "array") == (one.operations["GET"].kind, found["queues"].operations["GET"].kind)
    assert [(200,), (201, 204)] == [each.statuses for each in one.operations.values()]
    assert (Key("durable", "boolean", is_required=True),) == one.operations["PUT"].body
    assert [Scope.NONE, Scope.VHOST, Scope.VHOST] == [
        found[path].operations["GET"].scope for path in ("queues", "queues/{vhost}", one.path)
    ]
    assert pause.operations["POST"].handler(None) is True
    assert get(None) == one.operations["GET"].handler(None)
    assert ((204,), None) == (found["queues/{vhost}/{queue}/resume"].operations["PUT"].statuses, resume(None))


NAMES = {
    "vhost": "/", "user": "guest", "queue": "q", "source": "amq.topic", "component": "vhost-limits", "policy": "p",
    "filter": "x", "within": "1", "unit": "days", "port": "5672", "protocol": "amqp", "pattern": ".*", "password": "x",
    "props": "~",
}  # fmt: skip
NO_SUCH = (
    "users/{user}/queues",
    "queues/quorum/",
    "connections/{connection}/sessions",
    "leveret/",
    "health/checks/",
    "shovels/vhost/",
)
"""Beginnings of paths that may need what the broker of the tests does not have."""


@pytest.fixture
def answered() -> dict[str, object]:
    """The answers with status 200 to all GETs of a broker that has an object of each kind, by the path of the route."""
    node = Node()
    api = Api(node)
    Client(node).declare("q")
    policy = {"pattern": ".*", "definition": {"max-length": 1}}
    api.put("policies/%2F/p", policy)
    api.put("operator-policies/%2F/p", policy)
    api.put("vhost-limits/%2F/max-queues", {"value": 9})
    api.put("global-parameters/g", {"value": 9})
    api.put("topic-permissions/%2F/guest", {"exchange": "amq.topic", "write": "", "read": ""})
    for destination in ("q/q", "e/amq.fanout"):
        api.post(f"bindings/%2F/e/amq.topic/{destination}")
    (connection,), (channel,) = api.get("connections"), api.get("channels")
    named = {"connection": connection["name"], "channel": channel["name"], "node": node.node_name}
    found = {}
    for route in ROUTES:
        first = route.path.partition("/")[0]
        names = {**NAMES, **named, "name": {"parameters": "limits", "global-parameters": "g"}.get(first, "1")}
        names["exchange"] = "amq.fanout" if first == "bindings" else "amq.topic"
        if "GET" in route.operations:
            path = re.sub(
                r"{(\w+)}", lambda match, names=names: quote(names.get(match[1], "1"), safe=""), route.path
            )
            answer = api.request("GET", path)
            if answer.status == 200:
                found[route.path] = answer.body
    return found


def test_answers_are_as_described(answered):
    """Lists are described as lists, objects as objects, and text as text."""
    document = Api(Node(), "").get("openapi.json")
    gets = {route.path for route in ROUTES if "GET" in route.operations}
    assert [] == [path for path in gets - answered.keys() if not path.startswith(NO_SUCH)]
    for path, answer in answered.items():
        content = document["paths"][f"/{path}"]["get"]["responses"]["200"]["content"]
        ((content_type, described),) = content.items()
        if isinstance(answer, bytes):
            assert "text/plain" == content_type, path
            continue
        assert "application/json" == content_type, path
        is_list = described["schema"] == {"$ref": "#/components/schemas/List"}
        assert is_list == isinstance(answer, list), f"{path}: see `Operation.kind`"
        if is_list:
            assert all(isinstance(each, dict) for each in answer), path
        else:
            assert {"object": dict, "string": str}[described["schema"]["type"]] is type(answer), path


def test_a_page_is_as_described():
    """Its keys are those of the description."""
    api = Api(Node())
    page = api.get("exchanges?page=1")

    assert api.get("openapi.json")["components"]["schemas"]["List"]["anyOf"][1]["required"] == [*page]


def test_every_operation_is_described():
    """Each path has its methods, and each name in a path is a parameter."""
    document = Api(Node(), "").get("openapi.json")

    assert ("3.1.0", __version__) == (document["openapi"], document["info"]["version"])
    assert {f"/{route.path}" for route in ROUTES} == document["paths"].keys()
    for route in ROUTES:
        described = document["paths"][f"/{route.path}"]
        assert {method.lower() for method in route.operations} == described.keys() - {"parameters"}
        names = {parameter["name"] for parameter in described.get("parameters", ())}
        assert names == set(re.findall(r"{(\w+)}", route.path))


def test_operations_have_names_of_their_own():
    """No two share one."""
    paths = Api(Node()).get("openapi.json")["paths"].values()
    names = [
        operation["operationId"]
        for path in paths
        for method, operation in path.items()
        if method != "parameters"
    ]

    assert len(names) == len(set(names))


def test_an_operation_says_what_it_takes_and_answers():
    """Keys of the body, parameters of the query, statuses, rights."""
    paths = Api(Node()).get("openapi.json")["paths"]
    put = paths["/users/{user}"]["put"]
    schema = put["requestBody"]["content"]["application/json"]["schema"]

    assert ["tags"] == schema["required"]
    described = "instead of the password; empty for none, as without both"
    assert {"type": "string", "description": described} == schema["properties"]["password_hash"]
    assert {"201", "204", "400", "401", "404", "default"} == put["responses"].keys()
    assert "Needs `administrator`." == put["description"]
    assert [] == paths["/auth"]["get"]["security"]
    assert "download" in {parameter["name"] for parameter in paths["/definitions"]["get"]["parameters"]}
    assert "page_size" in {parameter["name"] for parameter in paths["/vhosts"]["get"]["parameters"]}
