"""Queues, exchanges and bindings in the API."""

from urllib.parse import quote

import pytest
from doubles.fakes import Client, configure


def names(rows: list[dict[str, object]]) -> list[object]:
    return [row["name"] for row in rows]


# -- queues -----------------------------------------------------------------------------------------------------------


def test_a_queue_is_declared_once_and_deleted(api):
    """PUT answers 201, then 204; booleans may be texts; the queue is listed at once, and gone after DELETE."""
    assert 201 == api.put("queues/%2F/q", {"durable": "true", "arguments": {"x-max-length": 5}})
    assert 204 == api.put("queues/%2F/q", {"durable": True, "arguments": {"x-max-length": 5}})
    assert ["q"] == names(api.get("queues"))
    assert ["q"] == names(api.get("queues/%2F"))
    assert ["q"] == names(api.get("queues/detailed"))
    found = api.get("queues/%2F/q")
    assert (True, False, "classic", {"x-max-length": 5}) == tuple(
        found[key] for key in ("durable", "auto_delete", "type", "arguments")
    )
    assert (0, 0, 0) == tuple(found[key] for key in ("messages", "messages_ready", "messages_unacknowledged"))
    assert 204 == api.delete("queues/%2F/q")
    assert 404 == api.delete("queues/%2F/q")
    assert [] == api.get("queues")


def test_transient_queues_may_be_denied(api):
    """An administrator is refused what clients are, and told what would permit it."""
    configure(api.node, "compatibility", transient_nonexcl_queues="denied")
    answer = api.request("PUT", "queues/%2F/q", {"durable": False})
    assert 400 == answer.status
    assert answer.body["reason"].endswith('"deprecated_features.permit.transient_nonexcl_queues = true"')
    assert 201 == api.put("queues/%2F/q", {"durable": True})


def test_the_errors_of_declarations_are_those_of_rabbitmq(api):
    """Inequivalent arguments, unknown vhosts and nodes, reserved names, and values that are no booleans are refused."""
    api.put("queues/%2F/q", {})

    def refusal(path: str, body: object) -> tuple[int, object, object]:
        answer = api.request("PUT", path, body)
        return answer.status, answer.body["error"], answer.body["reason"]

    assert refusal("queues/%2F/q", {"durable": True}) == (
        400,
        "bad_request",
        "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'",
    )
    assert refusal("queues/nope/q", {}) == (404, "not_found", "vhost_not_found")
    assert refusal("queues/%2F/amq.x", {}) == (401, "not_authorised", "Access refused.")
    assert refusal("queues/%2F/x", {"durable": "maybe"}) == (400, "bad_request", ["not_boolean", "maybe"])
    assert 400 == refusal("queues/%2F/x", {"arguments": 7})[0]
    assert "could not be contacted" in str(refusal("queues/%2F/x", {"node": "nope"})[2])
    assert 201 == api.put("queues/%2F/x", {"arguments": [], "node": api.node.node_name})


@pytest.mark.parametrize("letter", ["x", "\xe9"])
def test_names_that_no_client_could_send_are_refused(api, letter):
    """Names of queues and exchanges, and binding keys, have at most 255 octets."""
    most = 255 // len(letter.encode())
    short, long = (quote(letter * count) for count in (most, most + 1))
    size = len(letter.encode()) * (most + 1)

    for kind, body in (("queue", {}), ("exchange", {"type": "direct"})):
        assert 201 == api.put(f"{kind}s/%2F/{short}", body)
        answer = api.request("PUT", f"{kind}s/%2F/{long}", body)
        text = f"{kind} should be less than 255 bytes, actually was {size}\n"
        assert (400, text) == (answer.status, answer.body["reason"])
        assert 404 == api.request("GET", f"{kind}s/%2F/{long}").status
    path = f"bindings/%2F/e/{short}/q/{short}"
    assert 201 == api.request("POST", path, {"routing_key": letter * most}).status
    assert 400 == api.request("POST", path, {"routing_key": letter * (most + 1)}).status


def test_a_queue_is_deleted_only_if_it_is_empty_or_unused(api):
    """`if-empty` and `if-unused` are checked; PUT, purge and DELETE of somebody's exclusive queue are refused."""
    client = Client(api.node)
    client.declare("q")
    client.declare("mine", exclusive=True)
    client.publish("q", b"1")

    assert 400 == api.delete("queues/%2F/q?if-empty=true")
    assert 204 == api.delete("queues/%2F/q/contents")
    assert 0 == api.get("queues/%2F/q")["messages"]
    for method, path in (("PUT", "mine"), ("DELETE", "mine"), ("DELETE", "mine/contents")):
        assert 400 == api.request(method, f"queues/%2F/{path}").status
    assert 204 == api.delete("queues/%2F/q?if-empty=true")


def test_actions_of_mirrors_do_nothing(api):
    """The two actions of RabbitMQ are accepted, others refused, and so is everything for a missing queue."""
    api.put("queues/%2F/q", {})

    assert 204 == api.post("queues/%2F/q/actions", {"action": "sync"}).status
    assert ["unknown", "dance"] == api.post("queues/%2F/q/actions", {"action": "dance"}).body["reason"]
    assert 404 == api.post("queues/%2F/nope/actions", {"action": "sync"}).status


def test_lists_without_statistics_have_only_what_was_declared(api):
    """`disable_stats` leaves out the numbers, `enable_queue_totals` adds those of messages."""
    api.put("queues/%2F/q", {})
    declared = {"arguments", "auto_delete", "durable", "exclusive", "name", "node", "state", "type", "vhost"}

    assert declared == set(api.get("queues?disable_stats=true")[0])
    both = api.get("queues?disable_stats=true&enable_queue_totals=true")[0]
    assert {"messages", "messages_ready", "messages_unacknowledged"} == set(both) - declared


# -- exchanges --------------------------------------------------------------------------------------------------------


def test_an_exchange_is_declared_and_deleted(api):
    """The type is direct by default; the default exchange has a name in paths."""
    assert 201 == api.put("exchanges/%2F/x", {})
    assert 204 == api.put("exchanges/%2F/x", {"type": "direct"})
    assert 400 == api.put("exchanges/%2F/x", {"type": "fanout"})
    assert (
        "unknown exchange type 'odd'" == api.request("PUT", "exchanges/%2F/y", {"type": "odd"}).body["reason"]
    )
    assert "direct" == api.get("exchanges/%2F/x")["type"]
    assert "" == api.get("exchanges/%2F/amq.default")["name"]
    assert "x" in names(api.get("exchanges"))
    assert 8 == len(api.get("exchanges/%2F"))
    assert 204 == api.delete("exchanges/%2F/x")
    assert 404 == api.delete("exchanges/%2F/x")
    assert 401 == api.delete("exchanges/%2F/amq.direct")
    assert 401 == api.delete("exchanges/%2F/amq.default")


def test_every_type_of_exchange_is_there(api):
    """Each that the overview names can be declared, and refuses what RabbitMQ refuses with its text."""
    types = {each["name"]: each["description"] for each in api.get("overview")["exchange_types"]}
    assert sorted(types) == list(types)
    assert "Consistent Hashing Exchange" == types["x-consistent-hash"]
    assert "Randomly picks a binding (queue) to route via (to)." == types["x-random"]
    for kind in types:
        assert 201 == api.put(
            f"exchanges/%2F/of-{kind}", {"type": kind, "arguments": {"x-delayed-type": "x-random"}}
        )
        assert kind == api.get(f"exchanges/%2F/of-{kind}")["type"]
    api.put("queues/%2F/q", {})
    refused = api.request("POST", "bindings/%2F/e/of-x-consistent-hash/q/q", {"routing_key": "much"})
    assert (400, 'The binding key must be an integer: <<"much">>') == (refused.status, refused.body["reason"])


def test_a_recent_history_shows_how_much_it_keeps(api):
    """Exchanges of this type have the number and the size of the messages that they keep, no others have."""
    api.put("exchanges/%2F/x", {"type": "x-recent-history", "arguments": {"x-recent-history-length": 2}})
    for _ in range(3):
        message = {"routing_key": "k", "payload": "12345", "payload_encoding": "string", "properties": {}}
        api.post("exchanges/%2F/x/publish", message)
    found = api.get("exchanges/%2F/x")
    assert 2 == found["messages_kept"]
    assert 10 < found["message_bytes_kept"] < 200
    assert "messages_kept" not in api.get("exchanges/%2F/amq.fanout")
    api.put("queues/%2F/q", {})
    api.post("bindings/%2F/e/x/q/q")
    assert 2 == api.get("queues/%2F/q")["messages"]


def test_an_exchange_with_bindings_is_in_use(api):
    """`if-unused` protects the source of a binding."""
    api.put("exchanges/%2F/x", {})
    api.put("queues/%2F/q", {})
    api.post("bindings/%2F/e/x/q/q")

    refused = api.request("DELETE", "exchanges/%2F/x?if-unused=true")
    assert (400, "exchange 'x' in vhost '/' in use") == (refused.status, refused.body["reason"])
    assert 204 == api.delete("exchanges/%2F/x")


# -- bindings ---------------------------------------------------------------------------------------------------------


def test_a_binding_is_found_under_the_path_that_it_got(api):
    """POST answers with its path; the list, GET and DELETE of it agree."""
    api.put("exchanges/%2F/x", {"type": "topic"})
    api.put("queues/%2F/q", {})
    bodies: list[tuple[object, str]] = [
        ({}, "q/~"),
        ({"routing_key": "a b~c/d"}, "q/a%2Bb%257Ec%252Fd"),
        ({"routing_key": "k", "arguments": {"a": "x"}}, "q/k~rIoqGg"),
        ({"routing_key": None}, "q/null"),
    ]
    for body, path in bodies:
        answer = api.post("bindings/%2F/e/x/q/q", body)
        assert (201, path) == (answer.status, answer.headers["location"])
        assert api.get(f"bindings/%2F/e/x/q/{path}")["source"] == "x"

    assert 4 == len(api.get("bindings/%2F/e/x/q/q"))
    assert 5 == len(api.get("queues/%2F/q/bindings"))
    assert 4 == len(api.get("exchanges/%2F/x/bindings/source"))
    assert 5 == len(api.get("bindings")) == len(api.get("bindings/%2F"))
    assert "a b~c/d" == api.get("bindings/%2F/e/x/q/q/a%2520b%257ec%252Fd")["routing_key"]
    assert [] == api.get("exchanges/nope/x/bindings/destination")
    for _, path in bodies:
        assert 204 == api.delete(f"bindings/%2F/e/x/q/{path}")
        assert 404 == api.delete(f"bindings/%2F/e/x/q/{path}")
    assert [] == api.get("bindings/%2F/e/x/q/q")


def test_exchanges_are_bound_to_exchanges(api):
    """The fifth level of paths is the same for exchanges as destinations."""
    assert 201 == api.post("bindings/%2F/e/amq.topic/e/amq.fanout", {"routing_key": "x"}).status
    row = {
        "source": "amq.topic",
        "vhost": "/",
        "destination": "amq.fanout",
        "destination_type": "exchange",
        "routing_key": "x",
        "arguments": {},
        "properties_key": "x",
    }
    assert [row] == api.get("bindings/%2F/e/amq.topic/e/amq.fanout")
    assert [row] == api.get("exchanges/%2F/amq.fanout/bindings/destination")
    assert row == api.get("bindings/%2F/e/amq.topic/e/amq.fanout/x")
    assert 204 == api.delete("bindings/%2F/e/amq.topic/e/amq.fanout/x")


@pytest.mark.parametrize(
    ("routing_key", "paths", "others"),
    [
        ("a.*.#", ("a.*.%23", "a.%2A.%23", "a.%252A.%2523"), ("a.*.",)),
        ("a b", ("a%20b", "a+b", "a%2Bb"), ()),
        ("a+b", ("a%252Bb",), ("a+b", "a%2Bb")),
        ("a~b", ("a%257Eb",), ("a~b", "a%7Eb")),
        ("100%", ("100%25", "100%2525"), ()),
        ("é", ("%C3%A9", "%25C3%25A9"), ()),
        ("", ("~",), ("x",)),
    ],
)
def test_a_binding_key_in_a_path_is_decoded_twice(api, routing_key, paths, others):
    """Clients send a properties key as it is, or encoded once more; all of this is what RabbitMQ 3.10.8 does."""
    api.put("queues/%2F/q")
    for path in paths:
        assert 201 == api.post("bindings/%2F/e/amq.topic/q/q", {"routing_key": routing_key}).status

        assert all(404 == api.delete(f"bindings/%2F/e/amq.topic/q/q/{other}") for other in others)
        assert routing_key == api.get(f"bindings/%2F/e/amq.topic/q/q/{path}")["routing_key"]
        assert 204 == api.delete(f"bindings/%2F/e/amq.topic/q/q/{path}")


def test_bindings_of_the_default_exchange_are_listed_but_not_changed(api):
    """Every queue has one; binding to that exchange or unbinding is refused."""
    api.put("queues/%2F/q", {})

    assert ["q"] == [row["routing_key"] for row in api.get("bindings/%2F/e/amq.default/q/q")]
    assert "" == api.get("bindings/%2F/e/amq.default/q/q/q")["source"]
    assert 401 == api.delete("bindings/%2F/e/amq.default/q/q/q")
    assert 401 == api.post("bindings/%2F/e/amq.default/q/q").status
    missing = api.post("bindings/%2F/e/amq.topic/q/nope")
    assert (404, "no queue 'nope' in vhost '/'") == (missing.status, missing.body["reason"])


def test_keys_that_an_object_does_not_have_are_left_out(api):
    """An exchange without a policy has no key `policy`; a filter for columns does not bring it back."""
    api.put("exchanges/%2F/x", {})
    api.put("policies/%2F/p", {"pattern": "^x$", "definition": {"alternate-exchange": "y"}})

    shown = {each["name"]: each for each in api.get("exchanges/%2F")}
    assert "p" == shown["x"]["policy"] == api.get("exchanges/%2F/x")["policy"]
    assert "policy" not in shown["amq.direct"]
    columns = api.get(
        "exchanges/%2F?columns=name,policy,message_stats.publish_in&sort=policy&sort_reverse=true"
    )
    assert {"name": "x", "policy": "p", "message_stats": {"publish_in": 0}} == columns[0]
    assert {"name", "message_stats"} == set(columns[1])


def test_hostile_names_come_back_as_they_were(api):
    """Slashes, percent signs, quotes, other alphabets and line breaks survive paths, bodies and lists."""
    for name in ("a/b", "100%", "<script>", "é ü 兎", "a\nb", "..", "~", "a?b#c", '"'):
        path = quote(name, safe="")
        if "\n" not in name:
            assert 201 == api.put(f"queues/%2F/{path}", {}), name
            assert name == api.get(f"queues/%2F/{path}")["name"]
            posted = api.post(f"bindings/%2F/e/amq.topic/q/{path}", {"routing_key": name})
            assert 201 == posted.status
            found = api.get(f"bindings/%2F/e/amq.topic/q/{posted.headers['location']}")
            assert name == found["routing_key"] == found["destination"]
            assert 204 == api.delete(f"bindings/%2F/e/amq.topic/q/{posted.headers['location']}")
            assert 204 == api.delete(f"queues/%2F/{path}")
