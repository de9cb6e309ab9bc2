"""Limits of vhosts and users in the API."""


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
