"""Audit entries of the management API and of clients."""

import json
import re
from typing import Any

import pytest
from doubles.fakes import Client, Node, configure
from services.api import OPERATOR, Api

from leveret.broker.amqp.commands import Basic, Channel, Connection as Wire, Exchange, Queue, make
from leveret.broker.connection.handshake import PROTOCOL_HEADER
from leveret.broker.http.auditing import LARGEST
from leveret.broker.http.call import SAFE
from leveret.broker.http.route import Route
from leveret.broker.management.routes import ROUTES

CANARY = "canary-password"


@pytest.fixture
def node() -> Node:
    """A broker whose audit log is on."""
    made = Node()
    made.audit.is_on = True
    return made


@pytest.fixture
def api(node) -> Api:
    """The API of that broker, used by its administrator."""
    return Api(node, peer="127.0.0.9")


def entries(node: Node) -> list[dict[str, Any]]:
    """Take the entries, decoded, without their times."""
    found = [json.loads(line) for line in node.audit.take()]
    return [{key: value for key, value in entry.items() if key != "time"} for entry in found]


def changes(node: Node) -> list[dict[str, Any]]:
    """Take the entries except those of logins."""
    return [entry for entry in entries(node) if entry["event"] != "login"]


def test_a_change_has_an_entry(node, api):
    """It names the user, the address, the object and the values that are no secrets."""
    api.request("PUT", "users/ann", {"password": CANARY, "tags": "monitoring"})
    api.request("PUT", "permissions/%2f/ann", {"configure": "", "write": "w", "read": ".*"})

    by = {"outcome": "ok", "actor": "guest", "peer": "127.0.0.9"}
    assert [
        {
            "event": "users.put",
            **by,
            "object": "ann",
            "detail": {"status": 201, "body": {"tags": "monitoring", "password": "***"}},
            "after": {"tags": ["monitoring"], "may_log_in": True},
        },
        {
            "event": "permissions.put",
            **by,
            "vhost": "/",
            "object": "ann",
            "detail": {"status": 201, "body": {"configure": "", "write": "w", "read": ".*"}},
            "after": {"configure": "", "write": "w", "read": ".*"},
        },
    ] == changes(node)


def test_the_operator_has_no_name(node):
    """`leveret ctl` on the host acts without a user."""
    Api(node, OPERATOR).request("DELETE", "users/guest")

    (entry,) = changes(node)
    assert ("users.delete", "", "", "guest") == tuple(
        entry[key] for key in ("event", "actor", "peer", "object")
    )


def test_a_refused_change_has_an_entry_with_its_reason(node):
    """Also if the user may not do it, and if the body is wrong."""
    Api(node, OPERATOR).request("PUT", "users/bob", {"password": "bob", "tags": "management"})
    entries(node)
    Api(node, "bob:bob").request("DELETE", "users/guest")
    Api(node).request("PUT", "users/x", {})

    assert [
        ("users.delete", "refused", "bob", "Not administrator user"),
        ("users.put", "refused", "guest", "tags_not_present"),
    ] == [(entry["event"], entry["outcome"], entry["actor"], entry["reason"]) for entry in changes(node)]


def test_every_login_of_a_minute_is_one_entry(node, api):
    """Requests of the API have a login each: equal ones are counted; a refused one has an entry each."""
    for _ in range(3):
        api.request("GET", "whoami")
    for _ in range(2):
        Api(node, f"guest:{CANARY}").request("GET", "whoami")
    found = entries(node)

    assert [("guest", "ok"), ("guest", "refused"), ("guest", "refused")] == [
        (entry["actor"], entry["outcome"]) for entry in found
    ]
    assert {"protocol": "http", "mechanism": "basic"} == found[0]["detail"]
    assert CANARY not in json.dumps(found)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "parameters/shovel/%2f/s", {"value": {"src-uri": f"amqp://u:{CANARY}/x@h", "src-queue": "a"}}),
        ("PUT", "parameters/shovel/%2f/s", {"value": {"src-uri": [f"amqp://u:{CANARY}/x@h"], "src-queue": "a"}}),
        ("PUT", "parameters/shovel/%2f/s", {"value": {"src-uri": {"a": CANARY}, "src-queue": "a"}}),
        ("PUT", "users/ann", {"password_hash": f"{CANARY}!", "tags": ""}),
        ("POST", "definitions", {"parameters": [{"vhost": "/", "component": "shovel", "name": "s",
                                                 "value": {"src-uri": f"amqp://u:{CANARY}/x@h", "src-queue": "a"}}]}),
        ("POST", "definitions", {"users": [{"name": "ann", "password_hash": f"{CANARY}!"}], "x": "y" * LARGEST}),
        ("POST", "definitions", f'{{"users": "{CANARY}'.encode()),
        ("PUT", "parameters/shovel/%2f/my-secret", {"value": CANARY}),
    ],
)  # fmt: skip
def test_reasons_of_refusals_quote_no_secrets(node, api, method, path, body):
    """Answers quote to the client what is wrong; the entry has the reason without what may be a password."""
    answer = api.request(method, path, body)
    (entry,) = changes(node)

    assert 400 == answer.status
    assert "refused" == entry["outcome"]
    assert entry["reason"]
    assert CANARY not in json.dumps(entry)


def test_reasons_of_refusals_tell_what_is_wrong(node, api):
    """Whatever is no secret is quoted in the entry, too."""
    api.request(
        "PUT", "policies/%2f/p", {"pattern": "^a", "definition": {"max-length": "many"}, "apply-to": "queues"}
    )
    (entry,) = changes(node)

    assert "many" in entry["reason"]


def test_looking_at_messages_has_an_entry(node, api):
    """Peeking at a queue changes nothing, and is recorded because it shows messages."""
    api.request("PUT", "queues/%2f/q", {"durable": True})
    entries(node)
    api.request("GET", "leveret/queues/%2f/q/messages")
    api.request("GET", "queues/%2f/q")

    assert ["leveret.queues.messages.get"] == [entry["event"] for entry in changes(node)]


def filled(route: Route) -> str:
    return re.sub(r"{\w+}", "nothing", route.path.replace("{vhost}", "%2f"))


@pytest.mark.parametrize(
    ("route", "method"),
    [
        pytest.param(route, method, id=f"{method} {route.path}")
        for route in ROUTES
        for method, operation in route.operations.items()
        if method not in SAFE and operation.needs is not None
    ],
)
def test_each_operation_leaves_exactly_one_entry(node, api, route, method):
    """Whatever comes of it; no entry has anything of a password."""
    api.request(method, filled(route), {"password": CANARY, "value": CANARY[:3], "tags": ""})
    found = changes(node)

    assert 1 == len(found)
    assert "guest" == found[0]["actor"]
    assert CANARY not in json.dumps(found)


def test_nothing_is_changed_without_a_required_audit_log(node, api):
    """503 while it cannot be written; what changes nothing is answered."""
    node.audit.is_required = node.audit.is_failing = True

    assert 503 == api.request("PUT", "vhosts/v", {}).status
    assert "v" not in node.vhosts
    assert 200 == api.request("GET", "vhosts").status
    node.audit.is_failing = False
    assert 201 == api.request("PUT", "vhosts/v", {}).status


CHANGES: list[tuple[str, Any, Any, Any]] = [
    ("users/ann", {"tags": "monitoring", "password": CANARY},
     {"tags": [], "may_log_in": True}, {"tags": ["monitoring"], "may_log_in": True}),
    ("permissions/%2f/ann", {"configure": "", "write": "", "read": "r"},
     {"configure": ".*", "write": ".*", "read": ".*"}, {"configure": "", "write": "", "read": "r"}),
    ("topic-permissions/%2f/ann", {"exchange": "amq.topic", "write": "w", "read": "r"},
     {"amq.topic": {"write": "", "read": ""}}, {"amq.topic": {"write": "w", "read": "r"}}),
    ("policies/%2f/p", {"pattern": "^q", "definition": {"max-length": 2}},
     {"pattern": "", "definition": {"max-length": 1}, "priority": 0, "apply-to": "all"},
     {"pattern": "^q", "definition": {"max-length": 2}, "priority": 0, "apply-to": "all"}),
    ("operator-policies/%2f/o", {"pattern": "", "definition": {"max-length": 2}, "apply-to": "queues"},
     {"pattern": "", "definition": {"max-length": 1}, "priority": 0, "apply-to": "queues"},
     {"pattern": "", "definition": {"max-length": 2}, "priority": 0, "apply-to": "queues"}),
    ("parameters/operator_policy/%2f/o", {"value": {"pattern": "x", "definition": {"max-length": 3}, "priority": 7,
                                                    "apply-to": "queues"}},
     {"pattern": "", "definition": {"max-length": 1}, "priority": 0, "apply-to": "queues"},
     {"pattern": "x", "definition": {"max-length": 3}, "priority": 7, "apply-to": "queues"}),
    ("parameters/vhost-limits/%2f/limits", {"value": {"max-queues": 8}}, {"max-queues": 5}, {"max-queues": 8}),
    ("global-parameters/shown", {"value": {"a": 2}}, {"shown": {"a": 1}}, {"shown": {"a": 2}}),
    ("global-parameters/my-token", {"value": f"{CANARY}2"}, {"my-token": "***"}, {"my-token": "***"}),
    ("vhost-limits/%2f/max-queues", {"value": 7}, {"max-queues": 5}, {"max-queues": 7}),
    ("user-limits/ann/max-channels", {"value": 7}, {"max-channels": 5}, {"max-channels": 7}),
    ("vhosts/v", {"description": "of tests", "tags": "a"},
     {"description": "", "tags": [], "default_queue_type": "", "protected_from_deletion": False, "tracing": False},
     {"description": "of tests", "tags": ["a"], "default_queue_type": "", "protected_from_deletion": False,
      "tracing": False}),
]  # fmt: skip
"""Path, body, and the states before and after the request."""


def prepared(api: Api) -> None:
    """Create the objects that are changed."""
    for path, body in (
        ("users/ann", {"tags": "", "password": "x"}),
        ("permissions/%2f/ann", {"configure": ".*", "write": ".*", "read": ".*"}),
        ("topic-permissions/%2f/ann", {"exchange": "amq.topic", "write": "", "read": ""}),
        ("policies/%2f/p", {"pattern": "", "definition": {"max-length": 1}}),
        (
            "operator-policies/%2f/o",
            {"pattern": "", "definition": {"max-length": 1}, "apply-to": "queues"},
        ),
        ("global-parameters/shown", {"value": {"a": 1}}),
        ("global-parameters/my-token", {"value": CANARY}),
        ("vhost-limits/%2f/max-queues", {"value": 5}),
        ("user-limits/ann/max-channels", {"value": 5}),
        ("vhosts/v", {}),
    ):
        assert api.request("PUT", path, body).status < 300, path


@pytest.mark.parametrize(
    ("path", "body", "before", "after"), [pytest.param(*each, id=each[0]) for each in CHANGES]
)
def test_a_change_is_recorded_with_the_states_before_and_after_it(node, api, path, body, before, after):
    """The state after it is missing if the object is deleted, the one before it if it is created; none has secrets."""
    prepared(api)
    entries(node)

    assert 204 == api.request("PUT", path, body).status
    (entry,) = changes(node)
    assert (before, after) == (entry["before"], entry["after"])
    deleted = path if not path.startswith("topic-permissions") else f"{path}/amq.topic"
    api.request("DELETE", deleted)
    (last,) = changes(node)
    assert (after, None) == (last["before"], last.get("after"))
    assert CANARY not in json.dumps([entry, last])


def test_a_refused_change_has_no_states(node, api):
    """Nothing has changed then."""
    prepared(api)
    entries(node)
    api.request("PUT", "policies/%2f/p", {"pattern": "(", "definition": {"max-length": 1}})

    (entry,) = changes(node)
    assert ("refused", False, False) == (entry["outcome"], "before" in entry, "after" in entry)


def test_the_uris_of_a_shovel_are_not_recorded(node, api):
    """They may have passwords in them, also those that a change replaces."""
    value = {"src-protocol": "amqp091", "dest-protocol": "amqp091", "src-queue": "a", "dest-queue": "b"}
    uris = {"src-uri": f"amqp://u:{CANARY}@localhost", "dest-uri": [f"amqp://u:{CANARY}@localhost"]}
    for name in ("a", "c"):
        path = "parameters/shovel/%2f/s"
        api.request("PUT", path, {"value": {**value, **uris, "src-queue": name}})
    found = changes(node)

    assert [("a", "c")] == [
        (each["before"]["value"]["src-queue"], each["after"]["value"]["src-queue"])
        for each in found
        if "before" in each
    ]
    assert CANARY not in json.dumps(found)


def test_all_deleted_users_are_recorded(node, api):
    """A request that deletes several users names those that were there."""
    prepared(api)
    entries(node)
    api.request("POST", "users/bulk-delete", {"users": ["ann"]})

    (entry,) = changes(node)
    assert [{"name": "ann", "tags": [], "may_log_in": True}] == entry["before"]
    assert "after" not in entry


def test_large_states_are_left_out(node, api):
    """An entry has a bounded size, whatever it is about."""
    large = {f"key{number}": "x" * 1000 for number in range(2000)}
    api.request("PUT", "global-parameters/large", {"value": large})
    api.request("PUT", "global-parameters/large", {"value": {"a": ["x" * 3000] * 10}})

    first, second = node.audit.take()[-2:]
    assert {"left_out": "too large"} == json.loads(first)["after"]
    assert {"left_out": "too large"} == json.loads(second)["before"]
    assert {"left_out": "too large"} == json.loads(second)["after"]
    assert len(first) + len(second) < 2000


# -- clients ----------------------------------------------------------------------------------------------------------


def test_logins_of_clients_have_entries(node):
    """Accepted and refused ones, with the mechanism and the address."""
    Client(node)
    stranger = Client(node, connect=False)
    stranger.receive(PROTOCOL_HEADER)
    stranger.send(make(Wire.StartOk, {}, "PLAIN", f"\0ann\0{CANARY}", "en_US"), 0)
    found = entries(node)

    assert [("guest", "ok"), ("ann", "refused")] == [(entry["actor"], entry["outcome"]) for entry in found]
    assert "user 'ann' - invalid credentials" == found[1]["reason"]
    assert {"protocol": "amqp", "mechanism": "PLAIN"} == found[1]["detail"]
    assert CANARY not in json.dumps(found)


def test_declarations_of_clients_have_entries(node):
    """For durable objects, once for each that has changed anything."""
    client = Client(node)
    entries(node)
    for _ in range(2):
        client.declare("q", durable=True)
        client.declare("t")
        client.send(make(Exchange.Declare, 0, "x", "topic", False, True, False, False, False, {}))
        client.send(make(Queue.Bind, 0, "q", "x", "k", False, {}))
    client.send(make(Queue.Purge, 0, "q", False))
    client.send(make(Queue.Delete, 0, "q", False, False, False))

    assert [
        ("queue.declare", "q", {"durable": True}),
        ("exchange.declare", "x", {"exchange_type": "topic", "durable": True}),
        ("queue.bind", "q", {"routing_key": "k", "source": "x"}),
        ("queue.purge", "q", None),
        ("queue.delete", "q", None),
    ] == [(entry["event"], entry["object"], entry.get("detail")) for entry in entries(node)]


@pytest.mark.parametrize(("objects", "count"), [("durable", 0), ("all", 1), ("none", 0)])
def test_transient_objects_have_entries_if_they_are_wanted(node, objects, count):
    """Most of them are there for one connection only."""
    configure(node, "audit", objects=objects)
    client = Client(node)
    entries(node)
    client.declare("", exclusive=True)

    assert count == len(entries(node))


def test_refused_access_has_one_entry_a_minute(node):
    """A client that tries again and again does not fill the log."""
    node.users.set_permissions("guest", "/", "", "", "")
    client = Client(node)
    entries(node)
    for number in range(1, 4):
        if number > 1:
            client.send(Channel.Open(), number)
        client.send(make(Basic.Get, 0, "q", False), number)

    (entry,) = entries(node)
    assert ("access", "refused", "guest", "/") == tuple(
        entry[key] for key in ("event", "outcome", "actor", "vhost")
    )
    assert "read access to queue 'q' in vhost '/' refused for user 'guest'" == entry["reason"]
