"""Vhosts in the API."""

import pytest
from doubles.fakes import Node, StoringNode, configure
from services.api import Api


def test_a_vhost_is_created_changed_and_deleted(api):
    """PUT answers 201 for a new vhost, whose creator gets all permissions in it, and 204 for an old one."""
    assert 201 == api.put("vhosts/a%2Fb", {"description": "one", "tags": "x, y"})
    declared = {
        "name": "a/b",
        "description": "one",
        "tags": ["x", "y"],
        "default_queue_type": "undefined",
        "metadata": {"description": "one", "tags": ["x", "y"]},
        "tracing": False,
        "cluster_state": {api.node.node_name: "running"},
        "protected_from_deletion": False,
    }
    assert declared.items() <= api.get("vhosts/a%2Fb").items()
    row = {"user": "guest", "vhost": "a/b", "configure": ".*", "write": ".*", "read": ".*"}
    assert [row] == api.get("vhosts/a%2Fb/permissions")
    assert 204 == api.put("vhosts/a%2Fb", {"default_queue_type": "quorum"})
    changed = api.get("vhosts/a%2Fb")
    assert ("", "quorum", "quorum") == (
        changed["description"],
        changed["default_queue_type"],
        changed["metadata"]["default_queue_type"],
    )
    assert 204 == api.delete("vhosts/a%2Fb")
    assert 404 == api.delete("vhosts/a%2Fb")


def test_users_see_their_vhosts_only(api, users):
    """A management user sees those with permissions, a monitoring user all; neither sees one alone."""
    assert ["/", "own"] == [vhost["name"] for vhost in api.get("vhosts")]
    assert ["own"] == [vhost["name"] for vhost in users["management"].get("vhosts")]
    assert ["/", "own"] == [vhost["name"] for vhost in users["monitoring"].get("vhosts")]
    assert "Not administrator user" == users["monitoring"].request("GET", "vhosts/own").body["reason"]
    assert "Not management user" == users["none"].request("GET", "vhosts").body["reason"]


def test_a_vhost_is_started_on_this_node_only(api):
    """Another node does not exist."""
    assert 204 == api.post(f"vhosts/%2F/start/{api.node.node_name}").status
    assert 404 == api.post(f"vhosts/none/start/{api.node.node_name}").status
    refused = api.post("vhosts/%2F/start/other")
    assert (400, "Request to node other failed with nodedown") == (refused.status, refused.body["reason"])


def test_null_is_no_value(api):
    """A key with null is as if it were not there; only `tracing` must be a boolean, as in RabbitMQ."""
    nothing = dict.fromkeys(("description", "tags", "default_queue_type"))

    assert 201 == api.put("vhosts/v", nothing)
    assert ("", [], "undefined") == tuple(api.get("vhosts/v")[key] for key in nothing)
    configure(api.node, "compatibility", profile="4.3")
    assert ("", [], "classic") == tuple(api.get("vhosts/v")[key] for key in nothing)
    assert 400 == api.put("vhosts/v", {"tracing": None})


@pytest.mark.parametrize("body", [{"tags": 5}, {"tags": [5]}, {"description": 5}, {"default_queue_type": []}])
def test_metadata_have_their_types(api, body):
    """Anything else is refused, and no vhost is created."""
    assert 400 == api.put("vhosts/v", body)
    assert 404 == api.request("GET", "vhosts/v").status


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "not_json"),
        (b"5", "not_json"),
        (b"[]", "not_json"),
        (
            b'"{}"',
            "invalid payload: the request body JSON-decoded to a string. Is the input doubly-JSON-encoded?",
        ),
    ],
)
def test_a_body_is_an_object(api, body, reason):
    """The reasons are RabbitMQ's; nothing, `null` and `undefined` are an empty object."""
    answer = api.request("PUT", "vhosts/v", body)

    assert (400, {"error": "bad_request", "reason": reason}) == (answer.status, answer.body)
    assert [201, 204, 204] == [
        api.request("PUT", "vhosts/v", empty).status for empty in (b"", b"null", b"undefined")
    ]


def test_a_protected_vhost_is_not_deleted():
    """Deleting is refused with 412 until the protection is removed, after a change or a restart of the vhost, too."""
    api = Api(StoringNode())
    api.put("vhosts/v", {"description": "mine"})
    path = "vhosts/v/deletion/protection"
    assert [204, 204] == [api.post(path).status for _ in range(2)]
    refused = api.request("DELETE", "vhosts/v")
    api.put("vhosts/v", {"description": "changed"})
    found = api.get("vhosts/v")
    api.node.commit()
    again = Api(api.node.restarted())

    assert 412 == refused.status
    reason = "Refusing to delete virtual host 'v' because it is protected from deletion"
    assert {"error": "precondition_failed", "reason": reason} == refused.body
    assert (True, True, "changed") == (
        found["protected_from_deletion"],
        found["metadata"]["protected_from_deletion"],
        found["description"],
    )
    assert [412, 204, 204] == [again.delete(each) for each in ("vhosts/v", path, "vhosts/v")]
    assert [404, 404] == [again.request(each, path).status for each in ("POST", "DELETE")]


def test_protection_is_exported_and_imported():
    """An import sets and removes it if the file says so; a file that does not keeps it."""
    api, other = Api(Node()), Api(Node())
    api.put("vhosts/v")
    without = api.get("definitions")
    api.post("vhosts/v/deletion/protection")
    exported = api.get("definitions")
    found = []
    for definitions in (
        exported,
        without,
        {"vhosts": [{"name": "v", "metadata": {"protected_from_deletion": False}}]},
    ):
        (row,) = [
            each
            for each in other.post("leveret/definitions", definitions).body["changes"]
            if each["entry"].endswith("(name 'v')")
        ] or [None]
        found.append((row and row["action"], other.get("vhosts/v")["protected_from_deletion"]))

    (metadata,) = [each["metadata"] for each in exported["vhosts"] if each["name"] == "v"]
    assert metadata["protected_from_deletion"] is True
    assert [("added", True), (None, True), ("changed", False)] == found
