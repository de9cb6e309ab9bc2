"""Transfers in the API: started, watched, cancelled, and refused without the rights."""

import pytest
from doubles.fakes import Client, DiskNode, Node
from services.api import OPERATOR, Api

from leveret.broker.administration import transfers as module
from leveret.broker.amqp.commands import Basic, Queue as Wire, make
from leveret.broker.amqp.tables import Table
from leveret.broker.config.config import StorageConfig

QUEUE = "leveret/queues/%2F/q"
REJECTED: Table = {
    "x-dead-letter-exchange": ("longstr", ""),
    "x-dead-letter-routing-key": ("longstr", "dead"),
}


@pytest.fixture
def node() -> Node:
    """A broker with two queues, one of which has ten messages, and a user with few permissions."""
    node = Node()
    client = Client(node)
    for name in ("q", "to"):
        client.declare(name)
    for number in range(10):
        client.publish("q", b"%d" % number, headers={"n": ("signedint", number)})
    api = Api(node, OPERATOR)
    api.put("users/ann", {"password": "ann", "tags": "management"})
    api.put("permissions/%2F/ann", {"configure": "^c", "write": "^to", "read": "^q"})
    return node


def finished(api: Api, body: dict) -> dict:
    api.node.clock.run()
    found = api.get(f"leveret/transfers/{body['id']}")
    assert found["ended"] is not None
    return found


@pytest.mark.parametrize(("action", "left"), [("move", (7, 3)), ("copy", (10, 3)), ("discard", (7, 0))])
def test_a_transfer_is_started_and_watched(node, action, left):
    """POST answers 202 with the transfer, which goes on by itself; GET shows its progress and its result."""
    api = Api(node)
    destination = {} if action == "discard" else {"destination": "to"}
    answer = api.post(f"{QUEUE}/{action}", {**destination, "where": "headers.n >= 7"})
    queues = node.vhosts["/"].queues

    assert (202, "running", action) == (answer.status, answer.body["state"], answer.body["action"])
    found = finished(api, answer.body)
    assert ("done", 10, 10, 3, 3, 0) == tuple(
        found[key] for key in ("state", "messages", "examined", "matched", "done", "refused")
    )
    assert left == (queues["q"].ready_count, queues["to"].ready_count)
    assert [found] == api.get("leveret/transfers")


def test_acked_messages_are_replayed(node):
    """POST replays what was acked between two times, which have offsets; a queue that retains nothing has nothing to replay."""
    client = Client(node)
    client.declare("qr", arguments={"x-retain-for": ("signedint", 60_000)})
    for number in range(2):
        client.publish("qr", b"%d" % number)
        client.send(make(Basic.Get, 0, "qr", True))
        node.pass_time(1000)
    api = Api(node)
    path = "leveret/queues/%2F/qr/replay"
    body = {"destination": "to", "since": "1970-01-01T02:16:41+02:00", "until": "1970-01-01T00:16:42Z"}
    answer = api.post(path, body)

    assert (202, "replay") == (answer.status, answer.body["action"])
    assert (2, 1) == tuple(finished(api, answer.body)[key] for key in ("messages", "done"))
    assert 1 == node.vhosts["/"].queues["to"].ready_count
    for since in ("1970-01-01T00:00:00", "now", "1970-01-01T00:00:60Z"):
        refused = api.post(path, {**body, "since": since})
        assert (400, True) == (refused.status, "'since' must be a time in ISO 8601" in refused.body["reason"])
    refused = api.post(f"{QUEUE}/replay", {"destination": "to"})
    assert (400, True) == (refused.status, "retains no messages" in refused.body["reason"])


def test_the_fields_of_a_queue_have_what_it_retains(node):
    """A queue that retains has numbers and bytes of retained messages, which are part of its memory; others lack them."""
    client = Client(node)
    client.declare("qr", arguments={"x-retain-for": ("signedint", 60_000)})
    api = Api(node)
    before = api.get("queues/%2F/qr")["memory"]
    client.publish("qr", b"12345")
    client.send(make(Basic.Get, 0, "qr", True))
    found = api.get("queues/%2F/qr")

    assert (0, 1, 35) == tuple(
        found[key] for key in ("messages", "messages_retained", "message_bytes_retained")
    )
    assert found["memory"] > before
    assert "messages_retained" not in api.get("queues/%2F/q")


def test_a_transfer_is_cancelled(node):
    """DELETE ends a transfer."""
    api = Api(node)
    started = api.post(f"{QUEUE}/move", {"destination": "to", "rate": 1}).body
    node.clock.run()

    assert "cancelled" == api.request("DELETE", f"leveret/transfers/{started['id']}").body["state"]
    assert 1 == finished(api, started)["done"]


@pytest.mark.parametrize(
    ("action", "body", "status", "reason"),
    [
        ("move", {}, 400, "destination"),
        ("move", {"destination": ""}, 400, "no destination"),
        ("move", {"destination": "none"}, 404, "no queue 'none' in vhost '/'"),
        ("move", {"destination": "q"}, 400, "queue 'q' in vhost '/' is the source itself"),
        ("copy", {"destination": "exchange:none/key"}, 404, "no exchange 'none' in vhost '/'"),
        ("move", {"destination": "to", "where": "headers."}, 400, "where: column"),
        ("move", {"destination": "to", "limit": -1}, 400, "'limit' must not be negative"),
        ("move", {"destination": "to", "rate": -1}, 400, "'rate' must not be negative"),
        ("move", {"destination": "to", "dry_run": 1}, 400, "not_boolean"),
        ("discard", {"limit": "many"}, 400, "not_integer"),
        ("discard", {"dryrun": True}, 400, "unknown key 'dryrun': there are dry_run, limit, rate, where"),
        ("move", {"destination": "to", "first": True}, 400, "unknown key 'first'"),
        ("retry", {"destination": "none"}, 404, "no queue 'none' in vhost '/'"),
    ],
)
def test_a_wrong_request_is_refused(node, action, body, status, reason):
    """A destination that does not exist, or that is the queue itself, and wrong values are refused with the reason."""
    answer = Api(node).post(f"{QUEUE}/{action}", body)

    assert status == answer.status
    assert reason in str(answer.body["reason"])
    assert not Api(node).get("leveret/transfers")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("q/move", {"destination": "to"}, 202),
        ("to/move", {"destination": "q"}, 401),
        ("q/copy", {"destination": "c"}, 401),
        ("q/move", {"destination": "exchange:amq.direct"}, 401),
        ("q/discard", {}, 401),
        ("qc/discard", {}, 401),
        ("q/retry", {}, 202),
        ("to/retry", {}, 401),
        ("to/replay", {"destination": "to"}, 401),
        ("qr/replay", {"destination": "to"}, 202),
        ("qr/replay", {"destination": "c"}, 401),
    ],
)
def test_a_transfer_needs_permissions(node, path, body, status):
    """Read on the queue and write on the destination are needed, and configure to discard."""
    client = Client(node, port=50001)
    client.declare("qc")
    client.declare("qr", arguments={"x-retain-for": ("signedint", 60_000)})
    client.declare("c")

    assert status == Api(node, "ann:ann").post(f"leveret/queues/%2F/{path}", body).status


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("q/move", {"destination": "to", "rate": 10}),
        ("q/copy", {"destination": "to", "rate": 10}),
        ("q/discard", {"rate": 10}),
        ("dead/retry", {"rate": 10}),
        ("qr/replay", {"destination": "to", "rate": 10}),
    ],
)
@pytest.mark.parametrize("change", ["user", "permissions", "tags"])
def test_a_transfer_ends_when_its_user_loses_a_right(node, path, body, change):
    """A running transfer fails with the reason before its next batch, and what it has not moved stays in the queue."""
    api, own = Api(node), Api(node, "ann:ann")
    dead_letters(node, 10)
    acked(node, 10)
    api.put("permissions/%2F/ann", {"configure": ".*", "write": ".*", "read": ".*"})
    number = own.post(f"leveret/queues/%2F/{path}", body).body["id"]
    node.clock.run()
    if change == "user":
        api.delete("users/ann")
    elif change == "permissions":
        api.put("permissions/%2F/ann", {"configure": "", "write": "", "read": ""})
    else:
        api.put("users/ann", {"password": "ann", "tags": ""})
    node.pass_time(1000)
    ended = finished(api, {"id": number})

    assert ("failed", 1) == (ended["state"], ended["done"] + ended["refused"])
    assert "ann" in ended["error"] or "Not management user" == ended["error"]
    name, _, action = path.partition("/")
    if action == "replay":
        assert 10 == api.get("queues/%2F/qr")["messages_retained"]
    else:
        assert 10 == node.vhosts["/"].queues[name].ready_count + (0 if action == "copy" else ended["done"])


@pytest.mark.parametrize(
    ("path", "body", "permissions"),
    [
        ("dead/retry", {}, {"write": "^none$"}),
        ("same/copy", {"destination": "exchange:amq.topic"}, {}),
    ],
)
def test_the_right_to_each_destination_may_be_lost(node, path, body, permissions):
    """A user who may no longer write to an origin, or with a routing key, moves no further message there."""
    api, own = Api(node), Api(node, "ann:ann")
    dead_letters(node, 5)
    client = Client(node, port=50003)
    client.declare("same")
    client.send(make(Wire.Bind, 0, "to", "amq.topic", "#", False, {}))
    for _ in range(5):
        client.publish("same", b"equal")
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    api.put("permissions/%2F/ann", everything)
    number = own.post(f"leveret/queues/%2F/{path}", {**body, "rate": 10}).body["id"]
    node.clock.run()
    if permissions:
        api.put("permissions/%2F/ann", everything | permissions)
    else:
        api.put("topic-permissions/%2F/ann", {"exchange": "amq.topic", "write": "^none$", "read": ""})
    for _ in range(5):
        node.pass_time(1000)
    ended = finished(api, {"id": number})

    assert (1, {"not permitted": 4}) == (ended["done"], ended["causes"])


def dead_letters(node: Node, number: int) -> None:
    """Let messages of a queue `work` die into a queue `dead`."""
    client = Client(node, port=50001)
    client.declare("dead")
    client.declare("work", arguments=REJECTED)
    client.consume("work", "c")
    for tag in range(1, number + 1):
        client.publish("work", b"poison")
        client.send(make(Basic.Reject, tag, False))


def acked(node: Node, number: int) -> None:
    """Ack messages of a queue `qr`, which retains them."""
    client = Client(node, port=50002)
    client.declare("qr", arguments={"x-retain-for": ("signedint", 60_000)})
    for _ in range(number):
        client.publish("qr", b"acked")
        client.send(make(Basic.Get, 0, "qr", True))


def test_transfers_of_others_are_hidden(node):
    """A user without further tags sees and cancels only the own transfers."""
    started = Api(node).post(f"{QUEUE}/move", {"destination": "to", "rate": 1}).body
    own = Api(node, "ann:ann")
    mine = own.post(f"{QUEUE}/move", {"destination": "to", "rate": 1}).body

    assert [mine["id"]] == [each["id"] for each in own.get("leveret/transfers")]
    assert 404 == own.request("GET", f"leveret/transfers/{started['id']}").status
    assert 404 == own.delete(f"leveret/transfers/{started['id']}")
    assert 404 == own.delete("leveret/transfers/nothing")
    assert 200 == own.delete(f"leveret/transfers/{mine['id']}")
    assert 200 == Api(node).delete(f"leveret/transfers/{mine['id']}")


def test_transfers_are_limited(node, monkeypatch):
    """Only so many transfers run at once, and only so many are remembered."""
    monkeypatch.setattr(module, "MOST_RUNNING", 2)
    monkeypatch.setattr(module, "MOST_KEPT", 3)
    api = Api(node)
    body = {"destination": "to", "rate": 1}
    started = [api.post(f"{QUEUE}/move", body).body for _ in range(2)]
    refused = api.post(f"{QUEUE}/move", body)
    assert (429, "too_many_requests") == (refused.status, refused.body["error"])
    assert (
        "2 transfers are running already: wait until one has ended, or cancel one" == refused.body["reason"]
    )
    for each in started:
        api.delete(f"leveret/transfers/{each['id']}")
    assert 429 == api.post(f"{QUEUE}/move", body).status  # they are still under way
    node.clock.run()
    for _ in range(4):
        finished(api, api.post(f"{QUEUE}/move", {"destination": "to", "limit": 0}).body)

    assert [4, 5, 6] == [each["id"] for each in api.get("leveret/transfers")]


def test_a_long_transfer_is_found_when_it_is_over(node, monkeypatch):
    """Of those that are over, the ones that ended first are forgotten, whenever they began."""
    monkeypatch.setattr(module, "MOST_KEPT", 3)
    api = Api(node)
    short = {"destination": "to", "limit": 0}
    long = api.post(f"{QUEUE}/move", {"destination": "to", "rate": 1}).body
    before = [finished(api, api.post(f"{QUEUE}/copy", short).body) for _ in range(2)]
    node.pass_time(100)
    api.delete(f"leveret/transfers/{long['id']}")
    finished(api, long)
    last = finished(api, api.post(f"{QUEUE}/copy", short).body)

    assert [long["id"], before[-1]["id"], last["id"]] == [each["id"] for each in api.get("leveret/transfers")]


def test_a_user_leaves_transfers_to_others(node, monkeypatch):
    """One user has a part of the transfers that users may run; the operator begins some beside all of these."""
    monkeypatch.setattr(module, "MOST_OF_ONE", 1)
    monkeypatch.setattr(module, "MOST_RUNNING", 2)
    monkeypatch.setattr(module, "MOST_OF_OPERATOR", 2)
    own, api = Api(node, "ann:ann"), Api(node)
    body = {"destination": "to", "rate": 1}
    mine = own.post(f"{QUEUE}/move", body)
    refused = own.post(f"{QUEUE}/copy", body)

    assert (202, 429) == (mine.status, refused.status)
    assert "1 transfers of user 'ann' are running already" in refused.body["reason"]
    operator = Api(node, OPERATOR)
    assert [202, 429, 202, 202, 429] == [
        each.post(f"{QUEUE}/move", body).status for each in (api, own, operator, operator, operator)
    ]
    assert "2 transfers of the operator" in operator.post(f"{QUEUE}/move", body).body["reason"]
    own.delete(f"leveret/transfers/{mine.body['id']}")
    node.clock.run()
    assert 202 == own.post(f"{QUEUE}/copy", body).status


def test_dead_letters_are_listed(node):
    """Queues with dead letters are listed with reasons and origins; others are not."""
    client = Client(node, port=50001)
    client.declare("dead")
    client.declare("work", arguments=REJECTED)
    client.publish("work", b"poison")
    client.consume("work", "c")
    client.send(make(Basic.Reject, 1, False))
    (row,) = Api(node).get("leveret/dead-letters/%2F")

    assert ("dead", 1, 1, {"rejected": 1}, {"work": 1}) == tuple(
        row[key] for key in ("queue", "messages", "dead_letters", "reasons", "origins")
    )
    assert row["oldest"] == row["newest"] > 0
    assert [row] == Api(node).get("leveret/dead-letters")
    answer = Api(node).post("leveret/queues/%2F/dead/retry")
    assert 1 == finished(Api(node), answer.body)["done"]
    assert [] == Api(node).get("leveret/dead-letters")


def test_a_dead_letter_that_failed_again_shows_its_last_death(tmp_path):
    """The time at which it came back, which `x-death` does not have, and how often it was retried."""
    node = DiskNode(tmp_path)
    client, api = Client(node, port=50001), Api(node)
    client.declare("dead", durable=True)
    client.declare("work", durable=True, arguments=REJECTED)
    node.commit()
    client.consume("work", "c")
    node.disk.monitor.look(node.now())
    client.publish("work", b"poison")
    client.send(make(Basic.Reject, 1, False))
    node.commit()
    (before,) = api.get("leveret/dead-letters")
    node.clock.now += 100
    node.disk.monitor.look(node.now())
    assert 1 == finished(api, api.post("leveret/queues/%2F/dead/retry").body)["done"]
    client.send(make(Basic.Reject, 2, False))
    node.commit()
    (row,) = api.get("leveret/dead-letters")

    assert (0, 1) == (before["retries"], row["retries"])
    assert before["newest"] == before["oldest"] == row["oldest"]
    assert 100 == row["newest"] - row["oldest"]


@pytest.mark.parametrize("is_deleted_by_client", [False, True])
def test_a_deletion_is_answered_when_what_moves_is_safe(tmp_path, is_deleted_by_client):
    """A large message that moves keeps its deleted queue until its new file is written, and so the name."""
    node = DiskNode(tmp_path, storage=StorageConfig(sync=False, blob_threshold=5000))
    client = Client(node)
    for name in ("q", "to"):
        client.declare(name, durable=True)
        node.commit()
    client.publish("q", b"x" * 5000, delivery_mode=2)
    node.run_turn()
    node.write_files()
    api = Api(node)
    api.post(f"{QUEUE}/move", {"destination": "to"})
    node.clock.run()
    queue = node.vhosts["/"].queues["q"]
    if is_deleted_by_client:
        client.send(make(Wire.Delete, 0, "q", False, False, True))
        assert not queue.finished
        assert 201 == api.put("queues/%2F/q", {"durable": True})
        assert queue is not node.vhosts["/"].queues["q"]
    else:
        assert 204 == api.delete("queues/%2F/q")
    assert (True, 1) == (queue.finished, node.vhosts["/"].queues["to"].ready_count)
    node.disk.close()


@pytest.mark.parametrize("action", ["move", "copy", "retry"])
def test_a_transfer_needs_the_permission_for_routing_keys(node, action):
    """To a topic exchange a user moves messages only with the routing keys with which they may publish there."""
    operator, ann = Api(node, OPERATOR), Api(node, "ann:ann")
    operator.put("permissions/%2F/ann", {"configure": "", "write": "^(to|amq.topic)", "read": "^q"})
    operator.put("topic-permissions/%2F/ann", {"exchange": "amq.topic", "write": "^may", "read": ""})
    Client(node).send(make(Wire.Bind, 0, "to", "amq.topic", "#", False, {}))

    refused = ann.post(f"{QUEUE}/{action}", {"destination": "exchange:amq.topic/not.this"})
    assert (401, "not_authorised") == (refused.status, refused.body["error"])
    body = {"destination": "exchange:amq.topic/may.be", "dry_run": True}
    assert 202 == ann.post(f"{QUEUE}/{action}", body).status

    own = finished(ann, ann.post(f"{QUEUE}/copy", {"destination": "exchange:amq.topic"}).body)
    assert (0, {"not permitted": 10}) == (own["done"], own["causes"])


@pytest.mark.parametrize("destination", ["exchange:/to", "exchange:amq.default/to"])
def test_the_default_exchange_has_a_name(node, destination):
    """The default exchange is an exchange without a name, or `amq.default`, as in paths and other commands."""
    found = finished(Api(node), Api(node).post(f"{QUEUE}/move", {"destination": destination}).body)
    assert ("exchange 'amq.default' in vhost '/'", 10) == (found["destination"], found["done"])
    assert 10 == node.vhosts["/"].queues["to"].ready_count
