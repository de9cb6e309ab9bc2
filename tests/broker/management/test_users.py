"""Users in the API."""

import pytest
from api import Api


def test_a_user_is_created_changed_and_deleted(api):
    """PUT answers 201 for a new user and 204 for an old one; without a password it disables the one that is there."""
    assert 201 == api.put("users/ann", {"password": "secret", "tags": "other, monitoring, other"})
    assert ["other", "monitoring"] == api.get("users/ann")["tags"]
    assert 204 == api.put("users/ann", {"tags": ["management"], "password": "next"})
    assert {"name": "ann", "tags": ["management"], "is_internal_user": True} == Api(api.node, "ann:next").get(
        "whoami"
    )
    assert 204 == api.put("users/ann", {"tags": ["management"]})
    assert "" == api.get("users/ann")["password_hash"]
    assert 401 == Api(api.node, "ann:next").request("GET", "whoami").status
    assert 204 == api.delete("users/ann")
    assert 404 == api.request("GET", "users/ann").status


def test_users_are_sorted_by_name(api):
    """The list is in the order of names."""
    for name in ("c", "a", "b"):
        api.put(f"users/{name}", {"tags": ""})

    assert ["a", "b", "c", "guest"] == [user["name"] for user in api.get("users")]
    assert ["guest", "c"] == [user["name"] for user in api.get("users?sort=name&sort_reverse=true")][:2]


def test_users_without_permissions_are_found_and_deleted_together(api):
    """A new user has none; a bulk deletion of a name that does not exist deletes nobody."""
    for name in ("a", "b"):
        api.put(f"users/{name}", {"tags": "", "password": "x"})

    assert ["a", "b"] == [user["name"] for user in api.get("users/without-permissions")]
    refused = api.post("users/bulk-delete", {"users": ["a", "nobody"]})
    assert (400, ["no_such_user", "nobody"]) == (refused.status, refused.body["reason"])
    assert 204 == api.post("users/bulk-delete", {"users": ["a", "b"]}).status
    assert ["guest"] == [user["name"] for user in api.get("users")]


def test_only_administrators_see_users(api):
    """A monitoring user gets 401 with RabbitMQ's reason."""
    api.put("users/m", {"password": "x", "tags": "monitoring"})
    answer = Api(api.node, "m:x").request("GET", "users")

    assert 401 == answer.status
    assert {"error": "not_authorised", "reason": "Not administrator user"} == answer.body


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "tags_not_present"),
        ({"tags": "", "password": "x", "password_hash": ""}, "both_password_and_password_hash_are_provided"),
        ({"tags": "", "password_hash": "no base 64"}, ["not_base64", "no base 64"]),
        ({"tags": "", "password_hash": None}, ["not_base64", None]),
        ({"tags": "", "password": None}, "'password' must be a text"),
    ],
)
def test_an_invalid_user_is_refused(api, body, reason):
    """The reasons are RabbitMQ's."""
    answer = api.request("PUT", "users/ann", body)

    assert (400, {"error": "bad_request", "reason": reason}) == (answer.status, answer.body)
