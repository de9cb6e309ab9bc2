"""Health checks in the API."""

import pytest
from doubles.fakes import Node, configure
from services.api import Api

from leveret.broker.channel.settings import Limits
from leveret.broker.statistics.node_figures import ListenerFacts

OK = {"status": "ok"}
SINGLE = {"status": "ok", "reason": "single node cluster"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("health/checks/alarms", OK),
        ("health/checks/local-alarms", OK),
        ("health/checks/certificate-expiration/1/days", OK),
        ("health/checks/virtual-hosts", OK),
        ("health/checks/node-is-mirror-sync-critical", SINGLE),
        ("health/checks/node-is-quorum-critical", SINGLE),
        ("health/checks/is-in-service", OK),
        ("health/checks/below-node-connection-limit", OK | {"limit": "infinity", "connections": 0}),
        ("health/checks/metadata-store/initialized", OK),
        ("health/checks/reached-target-cluster-size", OK),
        ("health/checks/quorum-queues-without-elected-leaders/all-vhosts", OK),
        ("health/checks/quorum-queues-without-elected-leaders/vhost/%2F", OK),
        ("health/checks/metadata-store/initialized/with-data", OK),
        ("health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/.*", OK),
        ("health/checks/quorum-queues-without-elected-leaders/vhost/%2F/pattern/.*", OK),
        ("healthchecks/node", OK),
        ("aliveness-test/%2F", OK),
    ],
)
def test_a_check_of_a_healthy_broker_is_passed(api, path, expected):
    """Some with details."""
    assert expected == api.get(path)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("alarms", "There are alarms in effect in the cluster"),
        ("local-alarms", "There are alarms in effect on the node"),
    ],
)
def test_alarms_are_reported(api, path, reason):
    """503, with the resources that are short."""
    api.node.resource_monitor.memory.raised = True
    answer = api.request("GET", f"health/checks/{path}")

    node = api.node.node_name
    alarms = [{"node": node, "resource": "memory"}]
    assert (503, {"status": "failed", "reason": reason, "alarms": alarms}) == (answer.status, answer.body)
    whole = api.request("GET", "healthchecks/node")
    expected = f"resource alarm(s) in effect:[{{resource_limit,memory,{node}}}]"
    assert (503, expected) == (whole.status, whole.body["reason"])


@pytest.fixture
def listening(api) -> Api:
    """The API of a broker with two listeners."""
    api.node.listeners.append(ListenerFacts("amqp", "127.0.0.1", 5672))
    api.node.listeners.append(ListenerFacts("http", "127.0.0.1", 15672))
    return api


def test_listeners_are_found_by_port_and_protocol(listening):
    """One that is not there is 503, with those that are."""
    assert OK | {"port": 15672} == listening.get("health/checks/port-listener/15672")
    assert OK | {"protocol": "amqp"} == listening.get("health/checks/protocol-listener/AMQP")
    assert OK == listening.get("health/checks/ready-to-serve-clients")
    port = listening.request("GET", "health/checks/port-listener/1")
    failed = {"status": "failed", "reason": "No active listener"}
    assert (503, failed | {"missing": 1, "ports": [5672, 15672]}) == (port.status, port.body)
    protocol = listening.request("GET", "health/checks/protocol-listener/mqtt")
    expected = failed | {"missing": "mqtt", "protocols": ["amqp", "http"]}
    assert (503, expected) == (protocol.status, protocol.body)


def test_a_broker_without_listeners_is_not_ready(api):
    """503."""
    assert 503 == api.request("GET", "health/checks/ready-to-serve-clients").status


def test_a_full_broker_is_not_ready():
    """As many clients as may connect are connected."""
    api = Api(Node(limits=Limits(connection_max=0)))
    api.node.listeners.append(ListenerFacts("amqp", "127.0.0.1", 5672))
    answer = api.request("GET", "health/checks/below-node-connection-limit")
    reason = "node connection limit is reached"

    expected = {"status": "failed", "reason": reason, "limit": 0, "connections": 0}
    assert (503, expected) == (answer.status, answer.body)
    assert 503 == api.request("GET", "health/checks/ready-to-serve-clients").status


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("certificate-expiration/x/days", 400, "Invalid expiration value."),
        (
            "certificate-expiration/1/eons",
            400,
            "Time unit not recognised. Supported units: days, weeks, months, years.",
        ),
        ("port-listener/x", 400, "Invalid port"),
        (f"port-listener/{'9' * 5000}", 400, "Invalid port"),
        ("unknown", 404, "Not Found"),
        ("quorum-queues-without-elected-leaders/vhost/none/pattern/.*", 404, "Not Found"),
    ],
)
def test_an_invalid_check_is_refused(api, path, status, reason):
    """The reasons are RabbitMQ's."""
    answer = api.request("GET", f"health/checks/{path}")

    assert (status, reason) == (answer.status, answer.body["reason"])


def test_checks_of_other_nodes_and_vhosts_are_not_found(api):
    """404."""
    assert 404 == api.request("GET", "healthchecks/node/other").status
    assert OK == api.get(f"healthchecks/node/{api.node.node_name}")
    assert 404 == api.request("GET", "aliveness-test/none").status


def test_the_aliveness_test_where_transient_queues_are_denied(api):
    """Its queue is durable then, and stays so where they are permitted again."""
    for mode in ("denied", "permitted"):
        configure(api.node, "compatibility", transient_nonexcl_queues=mode)
        assert OK == api.get("aliveness-test/%2F")
        assert api.node.vhosts["/"].queues["aliveness-test"].durable


def test_the_aliveness_test_has_the_permissions_of_its_user(users):
    """Its queue is declared, used and left empty by that user."""
    for _ in range(2):
        assert OK == users["management"].get("aliveness-test/own")
    queue = users["management"].node.vhosts["own"].queues["aliveness-test"]
    assert (False, 0) == (queue.durable, queue.ready_count)
    for name in ("management", "monitoring"):
        refused = users[name].request("GET", "aliveness-test/%2F")
        assert "User not authorised to access virtual host" == refused.body["reason"]


def test_the_aliveness_test_of_a_user_who_may_not_publish_is_refused(users):
    """As a publish of that user is."""
    api = users["management"]
    rights = {"configure": ".*", "write": "^$", "read": ".*"}
    api.node.administration.users.set_permissions(None, "own", "management", **rights)
    refused = api.request("GET", "aliveness-test/own")

    assert 401 == refused.status
    assert "write access to exchange 'amq.default' in vhost 'own' refused" in refused.body["reason"]
