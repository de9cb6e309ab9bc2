"""Vhosts in the API."""

import pytest


def test_a_vhost_is_created_changed_and_deleted(api):
    """PUT answers 201 for a new vhost, whose creator gets all permissions in it, and 204 for an old one."""
    assert 201 == api.put("vhosts/a%2Fb", {"description": "one", "tags": "x, y"})
    declared = {
        "name": "a/b",
        "description": "one",
        "tags": ["x", "y"],
        "default_queue_type": "classic",
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
