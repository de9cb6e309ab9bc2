"""Permissions and topic permissions in the API."""

import pytest

ALL = {"configure": ".*", "write": ".*", "read": ".*"}


def test_permissions_are_set_and_removed(api):
    """PUT answers 201 if the user had no access to the vhost."""
    api.put("users/ann", {"tags": ""})
    assert 404 == api.request("GET", "permissions/%2F/ann").status
    assert 201 == api.put("permissions/%2F/ann", ALL)
    assert 204 == api.put("permissions/%2F/ann", ALL | {"read": ""})
    row = {"user": "ann", "vhost": "/", "configure": ".*", "write": ".*", "read": ""}
    assert row == api.get("permissions/%2F/ann")
    assert [row] == api.get("users/ann/permissions")
    assert ["ann", "guest"] == [each["user"] for each in api.get("permissions")]
    assert 204 == api.delete("permissions/%2F/ann")
    assert 404 == api.delete("permissions/%2F/ann")


def test_topic_permissions_are_set_and_removed(api):
    """They are a list, of one exchange or all; the first one is created."""
    assert 404 == api.request("GET", "topic-permissions/%2F/guest").status
    path = "topic-permissions/%2F/guest"
    assert 201 == api.put(path, {"exchange": "amq.topic", "write": "a", "read": "b"})
    assert 204 == api.put(path, {"exchange": "other", "write": "a", "read": "b"})
    rows = [
        {"user": "guest", "vhost": "/", "exchange": exchange, "write": "a", "read": "b"}
        for exchange in ("amq.topic", "other")
    ]
    for each in (path, "topic-permissions", "vhosts/%2F/topic-permissions", "users/guest/topic-permissions"):
        assert rows == api.get(each), each
    assert rows[1:] == api.get(f"{path}/other")
    assert 204 == api.delete(f"{path}/other")
    assert 404 == api.delete(f"{path}/other")
    assert rows[:1] == api.get(path)
    assert 204 == api.delete(path)
    assert 404 == api.delete(path)


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("permissions/%2F/guest", {}, "[{key_missing,configure},{key_missing,write},{key_missing,read}]"),
        ("permissions/%2F/guest", {"configure": "", "write": ""}, "[{key_missing,read}]"),
        ("permissions/%2F/none", ALL, "vhost_or_user_not_found"),
        ("permissions/none/guest", ALL, "vhost_or_user_not_found"),
        ("permissions/%2F/guest", ALL | {"read": 5}, "'read' must be a text"),
        (
            "topic-permissions/%2F/none",
            {"exchange": "x", "write": "", "read": ""},
            "vhost_or_user_not_found",
        ),
        ("topic-permissions/%2F/guest", {"exchange": "x", "write": ""}, "[{key_missing,read}]"),
    ],
)
def test_an_invalid_permission_is_refused(api, path, body, reason):
    """The reasons are RabbitMQ's."""
    answer = api.request("PUT", path, body)

    assert (400, {"error": "bad_request", "reason": reason}) == (answer.status, answer.body)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("permissions/%2F/guest", ALL | {"read": "("}),
        ("topic-permissions/%2F/guest", {"exchange": "x", "write": "(", "read": ""}),
    ],
)
def test_an_invalid_pattern_is_refused(api, path, body):
    """The reason is a list, as in RabbitMQ, with the text of our engine for patterns."""
    answer = api.request("PUT", path, body)

    assert (400, "invalid_regexp") == (answer.status, answer.body["reason"][0])
    assert "(" == answer.body["reason"][1]
    assert "missing )" in answer.body["reason"][2]


@pytest.mark.parametrize("path", ["vhosts/none", "users/none"])
@pytest.mark.parametrize("kind", ["permissions", "topic-permissions"])
def test_lists_of_what_does_not_exist_are_not_found(api, path, kind):
    """404 for an unknown vhost or user."""
    assert 404 == api.request("GET", f"{path}/{kind}").status
