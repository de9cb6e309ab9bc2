"""Users, their permissions, and limits of users and vhosts in the API."""

import pytest
from services.api import Api

from leveret.broker.auth.passwords import SHA256, SHA512, Password, hash_password


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


@pytest.mark.parametrize("algorithm", [SHA256, SHA512])
def test_the_size_of_a_hash_tells_its_algorithm(api, algorithm):
    """A client may leave the algorithm out, as `rabbitmqadmin` does; the user can log in all the same."""
    hashed = hash_password(Password("secret"), algorithm)
    assert 201 == api.put("users/ann", {"password_hash": hashed, "tags": "management"})

    assert algorithm == api.get("users/ann")["hashing_algorithm"]
    assert "ann" == Api(api.node, "ann:secret").get("whoami")["name"]


def test_users_are_sorted_by_name(api):
    """The list is in the order of names."""
    for name in ("c", "a", "b"):
        api.put(f"users/{name}", {"tags": ""})

    assert ["a", "b", "c", "guest"] == [user["name"] for user in api.get("users")]
    assert ["guest", "c"] == [user["name"] for user in api.get("users?sort=name&sort_reverse=true")][:2]


def test_users_come_in_pages(api):
    """Both lists of users have pages, as in RabbitMQ; `rabbitmqadmin` asks for them."""
    for name in ("a", "b"):
        api.put(f"users/{name}", {"tags": ""})

    for path, number, names in (("users", 2, ["guest"]), ("users/without-permissions", 1, ["a", "b"])):
        page = api.get(f"{path}?page={number}&page_size=2")
        assert (number, names) == (page["page"], [user["name"] for user in page["items"]])


def test_users_without_permissions_are_found_and_deleted_together(api):
    """A new user has none; a bulk deletion of a name that does not exist deletes nobody."""
    for name in ("a", "b"):
        api.put(f"users/{name}", {"tags": "", "password": "x"})

    assert ["a", "b"] == [user["name"] for user in api.get("users/without-permissions")]
    refused = api.post("users/bulk-delete", {"users": ["a", "nobody"]})
    assert (400, ["no_such_user", "nobody"]) == (refused.status, refused.body["reason"])
    assert 204 == api.post("users/bulk-delete", {"users": ["a", "b"]}).status
    assert ["guest"] == [user["name"] for user in api.get("users")]


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


def test_limits_of_a_vhost_are_set_and_removed(api):
    """Each alone; what is not there is removed without an error, and the empty rest until it is cleared as a whole."""
    assert [] == api.get("vhost-limits/%2F")
    assert 204 == api.put("vhost-limits/%2F/max-queues", {"value": 5})
    assert 204 == api.put("vhost-limits/%2F/max-connections", {"value": 6})
    shown = [{"vhost": "/", "value": {"max-queues": 5, "max-connections": 6}}]
    assert shown == api.get("vhost-limits") == api.get("vhost-limits/%2F")
    assert 204 == api.put("vhost-limits/%2F/max-connections", {"value": -1})
    assert [{"vhost": "/", "value": {"max-queues": 5, "max-connections": -1}}] == api.get("vhost-limits")
    assert [204, 204, 204, 204, 404] == [
        api.delete(f"vhost-limits/{path}")
        for path in (
            "%2F/max-queues",
            "%2F/max-queues",
            "%2F/max-connections",
            "%2F/unknown",
            "none/max-queues",
        )
    ]
    assert [{"vhost": "/", "value": []}] == api.get("vhost-limits")
    assert [] == api.get("vhost-limits/%2F")
    assert 204 == api.delete("parameters/vhost-limits/%2F/limits")
    assert [] == api.get("vhost-limits")


def test_limits_answer_no_head(api):
    """As in RabbitMQ: OPTIONS names the methods."""
    for kind in ("vhost-limits", "user-limits"):
        assert 405 == api.request("HEAD", kind).status
        assert "GET, OPTIONS" == api.request("OPTIONS", kind).headers["allow"]


def test_limits_of_a_user_are_set_and_removed(api):
    """Each alone, in the same way."""
    assert [] == api.get("user-limits/guest")
    assert 204 == api.put("user-limits/guest/max-channels", {"value": 5})
    shown = [{"user": "guest", "value": {"max-channels": 5}}]
    assert shown == api.get("user-limits") == api.get("user-limits/guest")
    assert [204, 204, 204, 404] == [
        api.delete(f"user-limits/{path}")
        for path in ("guest/max-channels", "guest/max-channels", "guest/unknown", "none/max-channels")
    ]
    assert [] == api.get("user-limits")
    assert 404 == api.request("GET", "user-limits/none").status


def test_invalid_limits_are_refused(api):
    """The reasons are RabbitMQ's."""
    for path, value, status, reason in (
        ("vhost-limits/%2F/max-queues", {}, 400, "[{key_missing,value}]"),
        (
            "vhost-limits/%2F/max-queues",
            {"value": "5"},
            400,
            'Validation failed\n\nmax-queues should be a number, actually was <<"5">>\n',
        ),
        (
            "vhost-limits/%2F/unknown",
            {"value": 5},
            400,
            'Validation failed\n\nUnrecognised terms [{<<"unknown">>,5}] in limits\n',
        ),
        ("vhost-limits/none/max-queues", {"value": 5}, 404, "vhost_not_found"),
        (
            "user-limits/guest/max-channels",
            {"value": "5"},
            400,
            'max-channels should be a number, actually was <<"5">>',
        ),
        (
            "user-limits/guest/unknown",
            {"value": 5},
            400,
            'Unrecognised terms [{<<"unknown">>,5}] in user-limits',
        ),
        ("user-limits/none/max-channels", {"value": 5}, 400, ["no_such_user", "none"]),
    ):
        answer = api.request("PUT", path, value)
        assert (status, reason) == (answer.status, answer.body["reason"]), path


def test_who_sees_limits(api, users):
    """A management user those of its vhosts, monitoring users all; those of users are for all to see."""
    for vhost in ("own", "%2F"):
        api.put(f"vhost-limits/{vhost}/max-queues", {"value": 5})
    api.put("user-limits/guest/max-channels", {"value": 5})

    assert ["own"] == [row["vhost"] for row in users["management"].get("vhost-limits")]
    assert ["/", "own"] == [row["vhost"] for row in users["monitoring"].get("vhost-limits")]
    assert 200 == users["monitoring"].request("GET", "vhost-limits/%2F").status
    refused = users["management"].request("GET", "vhost-limits/%2F")
    assert "User not authorised to access virtual host" == refused.body["reason"]
    assert ["guest"] == [row["user"] for row in users["management"].get("user-limits")]
    for name in ("monitoring", "policymaker"):
        answer = users[name].request("PUT", "vhost-limits/own/max-queues", {"value": 5})
        assert "Not administrator user" == answer.body["reason"]
