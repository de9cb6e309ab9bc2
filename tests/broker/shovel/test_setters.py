"""Shovels of users who are no administrators: their rights within the broker, for as long as they have them."""

import contextlib
from collections.abc import Iterator

import pytest
from services.shovelling import Http, await_true

import leveret

RIGHTS = {"configure": ".*", "write": ".*", "read": ".*"}


@contextlib.contextmanager
def started(tmp_path, **config: str) -> Iterator[leveret.Broker]:
    """Start a broker with two vhosts, ten messages in a queue of the other one, and a policymaker."""
    keys = {key.replace("__", "."): value for key, value in config.items()}
    with leveret.Broker(data_dir=tmp_path / "data", management=True, config=keys) as broker:
        http = Http(broker.management_url)
        http.request("PUT", "vhosts/other", {})
        http.request("PUT", "permissions/other/guest", RIGHTS)
        http.request("PUT", "queues/other/a", {"durable": True})
        for number in range(10):
            message = {
                "routing_key": "a",
                "payload": str(number),
                "payload_encoding": "string",
                "properties": {},
            }
            http.request("POST", "exchanges/other/amq.default/publish", message)
        http.request("PUT", "users/ann", {"password": "p", "tags": "policymaker"})
        for vhost in ("%2F", "other"):
            http.request("PUT", f"permissions/{vhost}/ann", RIGHTS)
        yield broker


@pytest.fixture
def broker(tmp_path) -> Iterator[leveret.Broker]:
    with started(tmp_path) as broker:
        yield broker


@pytest.fixture
def http(broker) -> Http:
    """The management API, for an administrator."""
    return Http(broker.management_url)


def ann(broker: leveret.Broker) -> Http:
    return Http(f"http://ann:p@{broker.management_url.partition('@')[2]}")


def depth(broker: leveret.Broker, queue: str = "b") -> int:
    """Return the length of a queue; 0 if there is none."""
    return broker.queue(queue).depth if queue in broker.queues() else 0


def set_by_ann(broker: leveret.Broker) -> None:
    """Set a shovel from the other vhost, and wait until it has moved all."""
    ann(broker).shovel("s", src_uri="amqp:///other", src_queue="a", dest_queue="b", reconnect_delay=0.01)
    await_true(lambda: depth(broker) == 10)


def publish(http: Http) -> None:
    """Publish one more message in the other vhost."""
    message = {
        "routing_key": "a",
        "payload": "AFTER",
        "payload_encoding": "string",
        "properties": {"delivery_mode": 2},
    }
    http.request("POST", "exchanges/other/amq.default/publish", message)


@pytest.mark.parametrize(
    ("method", "path", "body", "reason"),
    [
        ("DELETE", "permissions/other/ann", None, "access to vhost 'other' refused for user 'ann'"),
        ("DELETE", "users/ann", None, "user 'ann' does not exist"),
        (
            "PUT",
            "permissions/other/ann",
            {**RIGHTS, "read": "^$"},
            "access to queue 'a' in vhost 'other' refused",
        ),
    ],
    ids=["access", "user", "read"],
)
def test_a_shovel_ends_with_the_rights_of_its_setter(broker, http, method, path, body, reason):
    """At once, and after a restart: nothing is moved any more."""
    set_by_ann(broker)
    http.request(method, path, body)
    await_true(lambda: reason in http.status("s").get("reason", ""), lambda: http.status("s"))
    publish(http)
    assert 10 == depth(broker)
    broker.restart()
    again = Http(broker.management_url)

    await_true(lambda: reason in again.status("s").get("reason", ""), lambda: again.status("s"))


def test_it_goes_on_when_the_rights_are_there_again(broker, http):
    """Messages that came meanwhile are moved."""
    set_by_ann(broker)
    http.request("DELETE", "permissions/other/ann")
    http.await_state("s", "terminated")
    publish(http)
    http.request("PUT", "permissions/other/ann", RIGHTS)

    await_true(lambda: depth(broker) == 11)


def test_a_setter_needs_the_rights_from_the_beginning(broker, http):
    """Access to the vhost alone reads nothing."""
    http.request("PUT", "permissions/other/ann", {"configure": "^$", "write": "^$", "read": "^$"})
    ann(broker).shovel("s", src_uri="amqp:///other", src_queue="a", dest_queue="b", reconnect_delay=0)

    assert "access to queue 'a' in vhost 'other' refused" in http.await_state("s", "terminated")["reason"]
    assert 0 == depth(broker)


def test_a_shovel_of_an_administrator_stays(broker, http):
    """It belongs to the broker, whatever becomes of its setter; so does one that is imported."""
    http.request("PUT", "users/root", {"password": "p", "tags": "administrator"})
    for vhost in ("%2F", "other"):
        http.request("PUT", f"permissions/{vhost}/root", RIGHTS)
    root = Http(f"http://root:p@{broker.management_url.partition('@')[2]}")
    root.shovel("s", src_uri="amqp:///other", src_queue="a", dest_queue="b")
    await_true(lambda: depth(broker) == 10)
    http.request("DELETE", "users/root")
    publish(http)

    await_true(lambda: depth(broker) == 11)


def test_the_login_of_another_user_needs_its_password(broker, http):
    """Of a user who is no administrator."""
    value = {"src-uri": "amqp://guest@/other", "dest-uri": "amqp://", "src-queue": "a", "dest-queue": "b"}
    status, body = ann(broker).request("PUT", "parameters/shovel/%2F/s", {"value": value})

    assert 400 == status
    assert 'user "ann" needs the password of user "guest"' in body["reason"]
    ann(broker).shovel("s", src_uri="amqp://guest:guest@/other", src_queue="a", dest_queue="b")
    await_true(lambda: depth(broker) == 10)
    assert 204 == http.shovel("s", src_uri="amqp://guest@/other", src_queue="a", dest_queue="b")


def test_rights_can_be_those_of_rabbitmq(tmp_path):
    """With `shovel.local_rights = all` a shovel may do everything, whoever has set it."""
    with started(tmp_path, shovel__local_rights="all") as broker:
        set_by_ann(broker)
        http = Http(broker.management_url)
        http.request("DELETE", "users/ann")
        publish(http)

        await_true(lambda: depth(broker) == 11)


def test_no_shovel_runs_if_they_are_switched_off(tmp_path):
    """Neither at the start nor when one is set; all can be deleted."""
    with started(tmp_path, shovel__enabled="false") as broker:
        http = Http(broker.management_url)
        http.shovel("s", src_uri="amqp:///other", src_queue="a", dest_queue="b")
        broker.restart()
        http = Http(broker.management_url)
        assert (200, []) == http.request("GET", "shovels")
        assert 0 == depth(broker)
        assert 204 == http.delete("s")


@pytest.mark.parametrize("key", ["cacertfile", "certfile", "keyfile"])
def test_certificate_files_are_for_administrators(broker, http, key):
    """Others may name none, unless there is a directory of them."""
    value = {
        "src-uri": f"amqps://x?{key}=/etc/passwd",
        "dest-uri": "amqp://",
        "src-queue": "a",
        "dest-queue": "b",
    }
    status, body = ann(broker).request("PUT", "parameters/shovel/%2F/s", {"value": value})

    assert 400 == status
    assert "may not name certificate files: shovel.certificate_dir is not set" in body["reason"]
    assert 201 == http.request("PUT", "parameters/shovel/%2F/s", {"value": value})[0]


@pytest.mark.parametrize(
    ("place", "status"), [("{}/ca.pem", 201), ("{}/../ca.pem", 400), ("/etc/passwd", 400)]
)
def test_certificate_files_of_others_are_in_a_directory(tmp_path, place, status):
    """That of the configuration."""
    with started(tmp_path, shovel__certificate_dir=str(tmp_path)) as broker:
        uri = f"amqps://127.0.0.1:1?cacertfile={place.format(tmp_path)}"
        value = {"src-uri": uri, "dest-uri": "amqp://", "src-queue": "a", "dest-queue": "b"}

        assert status == ann(broker).request("PUT", "parameters/shovel/%2F/s", {"value": value})[0]


@pytest.mark.parametrize("key", ["dead-letter-exchange", "dead-letter-routing-key", "alternate-exchange"])
def test_policies_that_send_messages_elsewhere_can_be_for_administrators(tmp_path, key):
    """With `policies.rerouting = administrator`; others still set policies without these keys."""
    with started(tmp_path, policies__rerouting="administrator") as broker:
        http = Http(broker.management_url)
        policy = {"pattern": ".*", "definition": {key: "x"}}
        status, body = ann(broker).request("PUT", "policies/%2F/p", policy)
        assert 401 <= status <= 403
        assert f"only administrators may set {key}" in str(body)
        assert 201 == http.request("PUT", "policies/%2F/p", policy)[0]
        assert (
            201
            == ann(broker).request(
                "PUT", "policies/%2F/o", {"pattern": ".*", "definition": {"max-length": 5}}
            )[0]
        )
