"""The description of the API as OpenAPI."""

import re
from urllib.parse import quote

import pytest
from api import Api
from fakes import Client, Node

from leveret import __version__
from leveret.broker.management.routes import ROUTES

NAMES = {
    "vhost": "/", "user": "guest", "queue": "q", "source": "amq.topic", "component": "vhost-limits", "policy": "p",
    "filter": "x", "within": "1", "unit": "days", "port": "5672", "protocol": "amqp", "pattern": ".*", "password": "x",
    "props": "~",
}  # fmt: skip
NO_SUCH = ("queues/quorum/", "leveret/", "health/checks/", "shovels/vhost/")
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
