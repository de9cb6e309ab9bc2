"""The description of the API as OpenAPI."""

import re

from api import Api
from fakes import Node

from leveret import __version__
from leveret.broker.management.routes import ROUTES


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
    assert {"type": "string", "description": "instead of the password; empty for none"} == schema[
        "properties"
    ]["password_hash"]
    assert {"201", "204", "400", "401", "404", "default"} == put["responses"].keys()
    assert "Needs `administrator`." == put["description"]
    assert [] == paths["/auth"]["get"]["security"]
    assert "download" in {parameter["name"] for parameter in paths["/definitions"]["get"]["parameters"]}
    assert "page_size" in {parameter["name"] for parameter in paths["/vhosts"]["get"]["parameters"]}
