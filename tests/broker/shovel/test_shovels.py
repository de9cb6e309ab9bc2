"""Shovels within one broker: set, moved, shown, stopped, restored."""

import contextlib
import time
from collections.abc import Iterator

import pika
import pytest
from conformance.wire import Client
from services.shovelling import Http, await_true

import leveret
from leveret.broker.amqp.fastpath import HEARTBEAT
from leveret.broker.shovel import pace
from leveret.broker.shovel.pace import Pace
from leveret.broker.shovel.session import Session


@pytest.fixture(params=["memory", "disk"])
def broker(request, tmp_path) -> Iterator[leveret.Broker]:
    """A running broker with ten messages in a queue."""
    data_dir = tmp_path if request.param == "disk" else None
    with leveret.Broker(data_dir=data_dir, management=True) as broker:
        broker.declare("a")
        for number in range(10):
            broker.publish(
                "", "a", str(number), properties={"message_id": f"m{number}"}, headers={"n": number}
            )
        yield broker


@pytest.fixture
def http(broker) -> Http:
    return Http(broker.management_url)


@pytest.fixture
def rests(monkeypatch) -> list[int]:
    """The rests of shovels, in nanoseconds, as they are decided on."""
    noted: list[int] = []
    rest = Pace.rest

    def note(one: Pace, *arguments: int) -> int:
        noted.append(rest(one, *arguments))
        return noted[-1]

    monkeypatch.setattr(Pace, "rest", note)
    return noted


def bodies(broker: leveret.Broker, queue: str) -> list[bytes]:
    return [message.body for message in broker.queue(queue).messages]


def await_depth(broker: leveret.Broker, queue: str, depth: int) -> None:
    """Wait until a queue has so many messages, none of them unacked."""
    await_true(
        lambda: (
            queue in broker.queues()
            and (broker.queue(queue).depth, broker.queue(queue).unacked) == (depth, 0)
        ),
        lambda: (broker.queues(), broker.queue(queue).depth),
    )


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish", "no-ack"])
def test_messages_are_moved_in_their_order(broker, http, mode):
    """The queue at the other end is declared; properties stay."""
    assert 201 == http.shovel("s", src_queue="a", dest_queue="b", ack_mode=mode)
    await_depth(broker, "b", 10)
    await_depth(broker, "a", 0)
    messages = broker.queue("b").messages

    assert [(str(n).encode(), {"n": n}, f"m{n}") for n in range(10)] == [
        (each.body, each.headers, each.properties["message_id"]) for each in messages
    ]
    assert broker.queue("b").details["durable"]


def test_the_status_is_rabbitmqs(broker, http):
    """With what RabbitMQ 4 adds: how much was forwarded and is pending."""
    http.shovel("s", src_queue="a", dest_queue="b")
    await_depth(broker, "b", 10)
    status = http.await_state("s", "running")
    node, at, since = status.pop("node"), status.pop("timestamp"), status.pop("state_since")

    assert {
        "name": "s",
        "vhost": "/",
        "type": "dynamic",
        "state": "running",
        "src_uri": "amqp://",
        "src_protocol": "amqp091",
        "dest_protocol": "amqp091",
        "dest_uri": "amqp://",
        "src_queue": "a",
        "dest_queue": "b",
        "blocked_status": "running",
        "pending": 0,
        "forwarded": 10,
    } == status
    assert node.startswith("rabbit@")
    assert time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since / 1000)) == at
    assert [status["name"]] == [each["name"] for each in http.request("GET", "shovels/%2F")[1]]
    assert 404 == http.request("GET", "shovels/none")[0]


def test_an_exchange_is_a_source(broker, http):
    """By a queue of the shovel's own, which is gone when it is deleted."""
    http.shovel("s", src_exchange="amq.topic", src_exchange_key="k.#", dest_queue="b")
    http.await_state("s", "running")
    broker.publish("amq.topic", "k.1", "yes")
    broker.publish("amq.topic", "j", "no")
    await_depth(broker, "b", 1)
    assert 204 == http.delete("s")
    await_true(lambda: ["a", "b"] == sorted(broker.queues()))

    assert [b"yes"] == bodies(broker, "b")
    assert {} == http.status("s")


def test_an_exchange_is_a_destination(broker, http):
    """With the key of each message, or one for all."""
    for key in ("a", "all"):
        broker.declare("b", exchange="amq.direct", routing_key=key)
    http.shovel("s", src_queue="a", dest_exchange="amq.direct")
    await_depth(broker, "b", 10)
    http.shovel("s", src_queue="a", dest_exchange="amq.direct", dest_exchange_key="all")
    broker.publish("", "a", "last")
    await_depth(broker, "b", 11)

    assert ["a"] * 10 + ["all"] == [each.routing_key for each in broker.queue("b").messages]


def test_headers_say_where_a_message_comes_from(broker, http):
    """The newest move first; other headers stay."""
    properties = {"content_type": "text/x", "priority": 3}
    http.shovel(
        "s", src_queue="a", dest_queue="b", dest_add_forward_headers=True, dest_publish_properties=properties
    )
    http.shovel(
        "t", src_queue="b", dest_queue="c", dest_add_forward_headers=True, dest_add_timestamp_header=True
    )
    await_depth(broker, "c", 10)
    message = broker.queue("c").messages[3]

    assert 3 == message.headers["n"]
    assert ["t", "s"] == [each["shovel-name"] for each in message.headers["x-shovelled"]]
    assert {
        "shovel-type": "dynamic",
        "shovel-name": "s",
        "shovel-vhost": "/",
        "src-uri": "amqp://",
        "dest-uri": "amqp://",
        "src-queue": "a",
        "dest-queue": "b",
    }.items() <= message.headers["x-shovelled"][1].items()
    assert message.headers["x-shovelled-timestamp"] > 1_700_000_000
    assert ("text/x", 3) == (message.properties["content_type"], message.properties["priority"])


@pytest.mark.parametrize(("after", "moved"), [("queue-length", 10), (4, 4), (0, 0)])
def test_a_shovel_deletes_itself(broker, http, after, moved):
    """After as many messages as the queue has, or as it should move."""
    http.shovel("s", src_queue="a", dest_queue="b", src_delete_after=after)
    await_true(lambda: not http.request("GET", "parameters/shovel")[1])
    http.await_state("s", "")
    await_depth(broker, "b", moved)
    await_depth(broker, "a", 10 - moved)

    assert [str(n).encode() for n in range(10)] == bodies(broker, "b") + bodies(broker, "a")


def test_a_header_that_fills_its_frame_goes_on_as_it_is(broker, http):
    """A message without room for the headers of the shovel is moved without them, and does not stop the others."""
    broker.declare("full")
    for size in (131_000, 10):
        broker.publish("", "full", "", headers={"h": "x" * size})
    http.shovel("s", src_queue="full", dest_queue="b", dest_add_forward_headers=True)
    await_depth(broker, "b", 2)

    assert [False, True] == ["x-shovelled" in each.headers for each in broker.queue("b").messages]


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish", "no-ack"])
def test_what_comes_after_the_last_message_stays(broker, http, mode, monkeypatch):
    """A shovel with a limit loses nothing of what the source has beyond it, in any mode."""
    counted = Session._source_queue

    async def less(session: Session) -> str:
        queue = await counted(session)
        session.left = 4  # as if the others had come since
        return queue

    monkeypatch.setattr(Session, "_source_queue", less)
    http.shovel("s", src_queue="a", dest_queue="b", src_delete_after="queue-length", ack_mode=mode)
    http.await_state("s", "")

    await_depth(broker, "b", 4)
    await_depth(broker, "a", 6)


def test_a_shovel_that_completes_while_it_is_replaced_leaves_its_successor(broker, http):
    """The last confirms of a shovel with a limit may come when another one has its name already."""
    broker.declare("late", arguments={"x-confirm-mode": "consumer-ack"})
    http.shovel("s", src_queue="a", dest_queue="late", src_delete_after=10)
    await_true(lambda: http.status("s").get("pending") == 10)
    http.shovel("s", src_queue="c", dest_queue="d")
    body = {"count": 10, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert 10 == len(http.request("POST", "queues/%2F/late/get", body)[1])

    await_depth(broker, "a", 0)
    assert "d" == http.await_state("s", "running")["dest_queue"]
    assert 1 == len(http.request("GET", "parameters/shovel")[1])


def test_a_shovel_that_is_replaced_twice_keeps_the_order(broker, http):
    """The last one begins when the first has ended, which waits for its confirms: what returns comes before the rest."""
    broker.declare("late", arguments={"x-confirm-mode": "consumer-ack"})
    http.shovel("s", src_queue="a", dest_queue="late")
    await_true(lambda: http.status("s").get("pending") == 10)
    for name in ("c", "d"):
        http.shovel("s", src_queue="a", dest_queue=name)
    await_true(lambda: broker.queue("a").consumers == [])
    broker.publish("", "a", "10")
    await_depth(broker, "d", 11)

    assert [b"%d" % number for number in range(11)] == bodies(broker, "d")


def test_a_large_message_is_moved(broker, http):
    """It is passed on as it arrives."""
    body = bytes(range(256)) * 20_000
    broker.publish("", "a", body)
    http.shovel("s", src_queue="a", dest_queue="b")
    await_depth(broker, "b", 11)

    assert body == broker.queue("b").messages[-1].body


def test_what_the_destination_refuses_stays_and_is_tried_again(broker, http):
    """In its order, and not at full speed."""
    broker.declare("b", arguments={"x-max-length": 4, "x-overflow": "reject-publish"})
    http.shovel("s", src_queue="a", dest_queue="b")
    http.await_state("s", "flow")
    await_true(lambda: broker.queue("b").depth == 4)
    broker.queue("b").discard()
    await_true(lambda: broker.queue("b").depth == 4)
    http.delete("s")
    await_true(lambda: not broker.queue("a").consumers and not broker.queue("a").unacked)

    assert 2 == broker.queue("a").depth


def test_a_failure_is_logged_once_a_minute(broker, http, caplog):
    """One that fails again and again for one reason logs that once; the line says what happens next."""
    with caplog.at_level("INFO", "leveret.shovel"):
        http.shovel("s", src_queue="a", dest_uri="amqp://127.0.0.1:1", dest_queue="b", reconnect_delay=0.01)
        seen: set[str] = set()
        await_true(lambda: len(seen.add(http.status("s").get("timestamp", "")) or seen) > 1)
        http.shovel("t", src_queue="a", dest_exchange="none", reconnect_delay=0)
        http.await_state("t", "terminated")
    ours = [record for record in caplog.records if record.name == "leveret.shovel"]
    lines = [record.getMessage() for record in ours if record.levelname != "INFO"]

    refused = "cannot connect to 127.0.0.1:1: Connection refused"
    again = "it tries again every 0.01 s, which is logged once a minute"
    assert [
        f"shovel 's' in vhost '/' failed to connect (URI: amqp://127.0.0.1:1): {refused}",
        f"shovel 's' in vhost '/' has stopped: {refused}; {again}",
    ] == lines[:2]
    assert 3 == len(lines)
    assert lines[2].endswith("; `leveret ctl restart_shovel` starts it again")


@pytest.mark.parametrize("uri", ["amqp://", "amqp://guest@"])
def test_a_failure_within_the_broker_is_logged_once_a_minute(broker, http, caplog, uri):
    """Neither the connections of a shovel to the broker itself nor their errors fill the log, however often it fails."""
    with caplog.at_level("INFO", "leveret"):
        http.shovel(
            "s", src_uri=uri, dest_uri=uri, src_queue="a", dest_exchange="none", reconnect_delay=0.001
        )
        # each attempt opens two connections
        await_true(lambda: http.request("GET", "overview")[1]["churn_rates"]["connection_created"] > 20)
        lines = [record.getMessage() for record in caplog.records if "shovel 's'" in record.getMessage()]

    assert 2 == len(lines), lines
    assert " moves messages from " in lines[0]
    assert " has stopped: destination: the broker replied 404 " in lines[1]


def test_a_failure_is_shown_and_the_shovel_tries_again(broker, http):
    """The status has the reason and both ends, and no password."""
    http.shovel("s", src_queue="a", dest_exchange="none", reconnect_delay=0.01)
    status = http.await_state("s", "terminated")
    assert "NOT_FOUND - no exchange 'none' in vhost '/'" in status["reason"]
    http.shovel("t", src_queue="a", dest_uri="amqp://u:secret@127.0.0.1:1", dest_queue="b", reconnect_delay=0)
    status = http.await_state("t", "terminated")

    assert "cannot connect to 127.0.0.1:1" in status["reason"]
    assert ("amqp://", "a") == (status["src_uri"], status["src_queue"])
    assert ("amqp://127.0.0.1:1", "b") == (status["dest_uri"], status["dest_queue"])
    assert "secret" not in str(status)
    broker.declare("b")
    http.shovel("s", src_queue="a", dest_queue="b")
    await_depth(broker, "b", 10)


def test_a_shovel_is_restarted(broker, http):
    """It counts from 0 then."""
    http.shovel("s", src_queue="a", dest_queue="b")
    await_depth(broker, "b", 10)
    await_true(lambda: http.status("s").get("forwarded") == 10)

    assert 204 == http.request("DELETE", "shovels/vhost/%2F/s/restart")[0]
    await_true(lambda: http.status("s").get("forwarded") == 0)
    assert 404 == http.request("DELETE", "shovels/vhost/%2F/none/restart")[0]
    http.await_state("s", "running")
    assert [204, 204] == [http.request("DELETE", "shovels/vhost/%2F/s")[0] for _ in range(2)]
    assert 404 == http.request("DELETE", "shovels/vhost/none/s")[0]


def test_its_connections_are_shown(broker, http):
    """Under names that say which end they are."""
    http.shovel("s", src_queue="a", dest_queue="b")
    http.await_state("s", "running")

    assert [
        ("shovel 's' of vhost '/' (destination)", "none", "Shovel s"),
        ("shovel 's' of vhost '/' (source)", "none", "Shovel s"),
    ] == sorted(
        (each["name"], each["user"], each["client_properties"]["connection_name"])
        for each in http.request("GET", "connections")[1]
    )


@pytest.mark.parametrize(("uri", "state"), [("amqp://u:p@", "running"), ("amqp://u@", "running")])
def test_a_local_end_can_be_a_users(broker, http, uri, state):
    """Its permissions apply; a password must be right."""
    broker.import_definitions(
        {
            "users": [{"name": "u", "password": "p", "tags": []}],
            "permissions": [{"user": "u", "vhost": "/", "configure": "^$", "write": "^$", "read": "^a$"}],
        }
    )
    http.shovel("s", src_uri=uri, src_queue="a", dest_queue="b")
    http.await_state("s", state)
    await_depth(broker, "b", 10)
    http.shovel("t", src_uri=uri, src_queue="b", dest_queue="c")
    assert "access to queue 'b' in vhost '/' refused" in http.await_state("t", "terminated")["reason"]
    http.shovel("v", src_uri="amqp://u:wrong@", src_queue="a", dest_queue="c")
    assert "wrong" not in http.await_state("v", "terminated")["reason"]


def test_a_vhost_is_deleted_with_its_shovels(broker, http):
    """They end; one of another vhost that uses it cannot connect any more."""
    http.request("PUT", "vhosts/v", {})
    http.request("PUT", "permissions/v/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    http.shovel("s", vhost="v", src_uri="amqp:///v", src_queue="q", dest_queue="b")
    http.shovel("t", dest_uri="amqp:///v", src_queue="b", dest_queue="c", reconnect_delay=0.01)
    http.await_state("s", "running")
    http.await_state("t", "running")
    assert 204 == http.request("DELETE", "vhosts/v")[0]
    http.await_state("s", "")

    await_true(lambda: "vhost v not found" in http.status("t").get("reason", ""))
    assert ["t"] == [each["name"] for each in http.request("GET", "parameters/shovel")[1]]


def test_it_goes_on_after_a_kill(tmp_path):
    """It is restored, and what was under way is moved once more."""
    with leveret.Broker(data_dir=tmp_path, management=True) as broker:
        http = Http(broker.management_url)
        broker.declare("a")
        http.shovel("s", src_queue="a", dest_queue="b")
        http.await_state("s", "running")
        broker.restart()
        http = Http(broker.management_url)
        http.await_state("s", "running")
        broker.publish("", "a", "after")
        await_depth(broker, "b", 1)


def test_definitions_have_it(broker, http):
    """It is exported, and an import that changes nothing does not restart it."""
    http.shovel("s", src_queue="a", dest_queue="b")
    since = http.await_state("s", "running")["timestamp"]
    definitions = http.request("GET", "definitions")[1]
    await_true(lambda: http.status("s").get("forwarded") == 10)
    http.request("POST", "definitions", definitions)

    assert [("shovel", "s")] == [(each["component"], each["name"]) for each in definitions["parameters"]]
    assert (since, 10) == (http.status("s")["timestamp"], http.status("s")["forwarded"])
    http.delete("s")
    http.await_state("s", "")
    http.request("POST", "definitions", definitions)
    http.await_state("s", "running")


def test_passwords_are_for_administrators(broker, http):
    """Nobody else sees them, in no place."""
    secret = "amqp://ann:secret@127.0.0.1:1/v?heartbeat=1"
    http.shovel("s", src_queue="a", dest_uri=secret, dest_queue="b")
    for tag in ("policymaker", "monitoring"):
        http.request("PUT", f"users/{tag}", {"password": "p", "tags": tag})
        http.request("PUT", f"permissions/%2F/{tag}", {"configure": ".*", "write": ".*", "read": ".*"})
    paths = (
        "parameters",
        "parameters/shovel",
        "parameters/shovel/%2F/s",
        "shovels",
        "shovels/vhost/%2F/s",
        "connections",
    )
    base = broker.management_url.partition("@")[2]
    for tag in ("policymaker", "monitoring"):
        user = Http(f"http://{tag}:p@{base}")
        answers = {path: user.request("GET", path) for path in paths}
        assert "secret" not in str(answers)
        assert any("amqp://127.0.0.1:1/v" in str(body) for _, body in answers.values())
    assert secret == http.request("GET", "parameters/shovel/%2F/s")[1]["value"]["dest-uri"]
    refused = Http(f"http://policymaker:p@{base}").request(
        "PUT",
        "parameters/shovel/%2F/t",
        {"value": {"src-uri": "amqp:///none", "dest-uri": "amqp://", "src-queue": "q"}},
    )
    assert 400 == refused[0]
    assert 'user "policymaker" may not connect to vhost "none"' in refused[1]["reason"]


def test_a_shovel_that_is_replaced_at_any_moment_leaves_nothing_behind(broker, http):
    """While it connects, fails, closes or waits: no connection stays, with messages that nobody gets."""
    for number in range(40):
        http.shovel("s", src_queue="a", dest_exchange="none", reconnect_delay=0.001)
        if number % 3:
            await_true(lambda: http.status("s").get("state") != "starting")
    http.shovel("s", src_queue="a", dest_queue="b")
    await_depth(broker, "b", 10)
    await_depth(broker, "a", 0)

    assert 2 == len(broker.connections)


def test_the_states_of_a_shovel_are_events():
    """A shovel that starts, runs, moves all messages and deletes itself is told of, in this order, as by RabbitMQ."""
    settings = {"event_exchange.enabled": "true"}
    with leveret.Broker(management=True, config=settings) as broker:
        for queue in ("a", "events"):
            broker.declare(queue)
        http = Http(broker.management_url)
        http.request("POST", "bindings/%2F/e/amq.rabbitmq.event/q/events", {"routing_key": "shovel.#"})
        broker.publish("", "a", "only")
        http.shovel("s", src_queue="a", dest_queue="b", src_delete_after="queue-length")
        http.await_state("s", "")
        await_depth(broker, "events", 3)
        found = broker.queue("events").messages

    assert ["shovel.worker.status", "shovel.worker.status", "shovel.worker.removed"] == [
        each.routing_key for each in found
    ]
    assert ["starting", "running", None] == [each.headers.get("status") for each in found]
    running = found[1].headers
    assert ("s", "/", "a", "b") == tuple(running[key] for key in ("name", "vhost", "src_queue", "dest_queue"))
    assert "user_who_performed_action" not in running


def test_a_shovel_whose_messages_are_refused_ends_in_order(broker, http, monkeypatch):
    """It stops consuming at once, however much is refused meanwhile: its pauses after that are over."""
    drained = []
    drain = Session._drain

    async def noted(session: Session) -> None:
        await drain(session)
        drained.append(session)

    monkeypatch.setattr(Session, "_drain", noted)
    broker.declare("b", arguments={"x-max-length": 4, "x-overflow": "reject-publish"})
    for number in range(10, 600):
        broker.publish("", "a", f"{number:1000}")
    http.shovel("s", src_queue="a", dest_queue="b", src_prefetch_count=600)
    await_true(lambda: http.status("s").get("state") == "flow")
    http.delete("s")
    await_depth(broker, "a", 596)

    assert 1 == len(drained)


def test_shovels_do_not_rest_for_each_other(broker, http, rests):
    """Two shovels without other clients move messages as fast as they can: neither is a client of the other."""
    broker.declare("c")
    for number in range(1000):
        broker.publish("", "a" if number < 500 else "c", str(number))
    for name, source, to in (("s", "a", "b"), ("t", "c", "d")):
        http.shovel(name, src_queue=source, dest_queue=to)
    await_depth(broker, "b", 510)
    await_depth(broker, "d", 500)

    assert {0.0} == set(rests)


def test_idle_clients_make_no_shovel_rest(broker, http, rests, monkeypatch):
    """Heartbeats are all that an idle client sends: however many come, messages are moved as fast as without it."""
    monkeypatch.setattr(pace, "BESIDE_NS", 1)
    client = Client(("127.0.0.1", broker.port), timeout=10.0)
    with contextlib.closing(client.socket):
        client.login()
        broker.publish("", "a", "after the login")
        http.shovel("s", src_queue="a", dest_queue="b")
        await_depth(broker, "b", 11)
        rests.clear()
        for number in range(50):
            client.socket.sendall(HEARTBEAT)
            broker.publish("", "a", str(number))
        await_depth(broker, "b", 61)

    assert {0} == set(rests)


def test_messages_are_moved_beside_other_clients(broker, http):
    """The shovel rests while others publish, loses nothing, changes no order, and ends in order."""
    for number in range(10, 2000):
        broker.publish("", "a", str(number))
    broker.declare("other")
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(broker.url))) as other:
        channel = other.channel()
        channel.basic_publish("", "other", b"")
        http.shovel("s", src_queue="a", dest_queue="b", src_delete_after="queue-length")

        def is_gone() -> bool:
            channel.basic_publish("", "other", b"")
            return not http.status("s")

        await_true(is_gone)

    await_depth(broker, "b", 2000)
    assert [str(number).encode() for number in range(2000)] == bodies(broker, "b")
