"""Health checks: `/api/health/checks`, `/api/aliveness-test`, `/api/healthchecks`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from leveret.broker.administration.access import found_vhost
from leveret.broker.http.call import DIGITS, Answer, Call, Callback, Item, Steps
from leveret.broker.http.errors import bad_request, not_found
from leveret.broker.http.route import Operation, Route, Scope

UNITS = {"days": 1, "weeks": 7, "months": 30, "years": 365}
_DAY_SECONDS = 86400
SERVICE_UNAVAILABLE = 503
TEST_QUEUE = "aliveness-test"
TEST_BODY = b"test_message"


def passed(**details: Any) -> Item:
    """Return the answer of a check that is passed."""
    return Item({"status": "ok", **details})


def failed(reason: str, **details: Any) -> Item:
    """Return the answer of a check that is not passed."""
    return Item({"status": "failed", "reason": reason, **details}, status=SERVICE_UNAVAILABLE)


def check_alarms(call: Call, *, where: str) -> Answer:
    """Check that no memory or disk alarm is in effect."""
    if raised := _alarms(call):
        alarms = [{"node": call.broker.node_name, "resource": resource} for resource in raised]
        return failed(f"There are alarms in effect {where}", alarms=alarms)
    return passed()


def _alarms(call: Call) -> list[str]:
    monitor = call.broker.resource_monitor
    pairs = (("memory", monitor.memory.raised), ("disk", monitor.disk.raised))
    return [resource for resource, raised in pairs if raised]


def check_certificates(call: Call) -> Answer:
    """Check that no certificate of a TLS listener expires within a time."""
    if call.names["unit"] not in UNITS:
        raise bad_request(f"Time unit not recognised. Supported units: {', '.join(UNITS)}.")
    within = call.names["within"]
    if not (within.isascii() and within.isdecimal()):
        raise bad_request("Invalid expiration value.")
    if len(within) > DIGITS:
        raise bad_request("Invalid expiration value.")
    seconds = int(within) * UNITS[call.names["unit"]] * _DAY_SECONDS
    limit = call.broker.context.clock() / 1000 + seconds
    expired = [
        {"node": call.broker.node_name, "key": key, "subject": each.subject,
         "certfile_expires_on": f"{each.ends:%Y-%m-%d %H:%M:%S}"}
        for key, each in call.broker.tls_certificates.items()
        if each.ends.timestamp() <= limit
    ]  # fmt: skip
    return failed("Certificates expiring", expired=expired) if expired else passed()


def check_port(call: Call) -> Answer:
    """Check that there is a listener on a port."""
    given = call.names["port"]
    if not given.isdecimal() or len(given) > DIGITS:
        raise bad_request("Invalid port")
    port = int(given)
    ports = [listener.port for listener in call.broker.listeners]
    if port in ports:
        return passed(port=port)
    return failed("No active listener", missing=port, ports=ports)


def check_protocol(call: Call) -> Answer:
    """Check that there is a listener for a protocol."""
    protocol = call.names["protocol"].lower()
    protocol = _PROTOCOLS.get(protocol, protocol)
    protocols = list(dict.fromkeys(listener.protocol for listener in call.broker.listeners))
    if protocol in protocols:
        return passed(protocol=protocol)
    return failed("No active listener", missing=protocol, protocols=protocols)


_PROTOCOLS = {
    "amqp091": "amqp", "amqp0.9.1": "amqp", "amqp0-9-1": "amqp", "amqps": "amqp/ssl", "amqp+tls": "amqp/ssl",
    "prometheus": "http/prometheus",
}  # fmt: skip


def check_connections(call: Call) -> Answer:
    """Check that more clients may connect to the node."""
    clients = call.broker.clients
    count, limit = len(clients.connections), clients.connection_max
    shown = "infinity" if limit is None else limit
    if limit is None or count < limit:
        return passed(limit=shown, connections=count)
    return failed("node connection limit is reached", limit=shown, connections=count)


def check_readiness(call: Call) -> Answer:
    """Check that clients may connect: there is a listener for them, and the limit is not reached."""
    if all(listener.protocol not in {"amqp", "amqp/ssl"} for listener in call.broker.listeners):
        return failed("no active listeners for AMQP/AMQPS")
    answer = check_connections(call)
    return answer if isinstance(answer, Item) and answer.status == SERVICE_UNAVAILABLE else passed()


def check_service(call: Call) -> Answer:
    """Check that the node serves clients: one that waits to lead does not."""
    cluster = call.broker.cluster
    return passed() if cluster is None or cluster.figures().role else failed(call.broker.obstacle)


def check_replication(call: Call) -> Answer:
    """Check that nothing is wrong with the replicated log, as this node sees it."""
    cluster = call.broker.cluster
    problems = [] if cluster is None else cluster.described()["problems"]
    return failed("; ".join(problems), problems=problems) if problems else passed()


def check_nothing(_call: Call, *, details: Mapping[str, str]) -> Answer:
    """Answer that all is well: what is checked cannot fail alone on a single node."""
    return passed(**details)


def check_vhost_leaders(call: Call) -> Answer:
    """Check that quorum queues of a vhost have leaders: on a single node they always have."""
    found_vhost(call.broker, call.names["vhost"])
    return passed()


def check_node(call: Call) -> Answer:
    """Check the node, as RabbitMQ did before there were single checks."""
    node = call.broker.node_name
    if call.names.get("node", node) != node:
        raise not_found()
    if raised := _alarms(call):
        limits = ",".join(f"{{resource_limit,{resource},{node}}}" for resource in raised)
        return failed(f"resource alarm(s) in effect:[{limits}]")
    return passed()


def check_aliveness(call: Call) -> Steps:
    """Declare the queue `aliveness-test` as the user, publish a message to it, and take it out again."""
    vhost = found_vhost(call.broker, call.names["vhost"]).name
    administration = call.administration
    administration.topology.declare_queue(call.actor, vhost, TEST_QUEUE, durable=False)
    publish = partial(administration.publishing.publish, call.actor, vhost, "", TEST_QUEUE, TEST_BODY)
    outcome = yield Callback(publish)
    if outcome != "confirmed" or not administration.topology.purge_queue(call.actor, vhost, TEST_QUEUE):
        return failed("a test message did not arrive")
    return passed()


def _check(
    path: str, doc: str, handler: Callable[[Call], Answer | Steps], scope: Scope = Scope.NONE
) -> Route:
    return Route(path, "health", {"GET": Operation(handler, doc, scope=scope, statuses=(200, 503))})


_ONE_NODE = partial(check_nothing, details={"reason": "single node cluster"})
_NOTHING = partial(check_nothing, details={})
_CHECKS = "health/checks"
ROUTES = (
    _check(f"{_CHECKS}/alarms", "No alarm is in effect.", partial(check_alarms, where="in the cluster")),
    _check(f"{_CHECKS}/local-alarms", "No alarm is in effect.", partial(check_alarms, where="on the node")),
    _check(
        f"{_CHECKS}/certificate-expiration/{{within}}/{{unit}}",
        "No certificate expires within a time.",
        check_certificates,
    ),
    _check(f"{_CHECKS}/port-listener/{{port}}", "There is a listener on a port.", check_port),
    _check(
        f"{_CHECKS}/protocol-listener/{{protocol}}", "There is a listener for a protocol.", check_protocol
    ),
    _check(f"{_CHECKS}/virtual-hosts", "All vhosts run.", _NOTHING),
    _check(f"{_CHECKS}/node-is-mirror-sync-critical", "The node is not needed by mirrors.", _ONE_NODE),
    _check(f"{_CHECKS}/node-is-quorum-critical", "The node is not needed by quorum queues.", _ONE_NODE),
    _check(f"{_CHECKS}/is-in-service", "The node serves clients.", check_service),
    _check(f"{_CHECKS}/replication", "Nothing is wrong with the replicated log.", check_replication),
    _check(f"{_CHECKS}/below-node-connection-limit", "More clients may connect.", check_connections),
    _check(f"{_CHECKS}/ready-to-serve-clients", "Clients may connect.", check_readiness),
    _check(f"{_CHECKS}/metadata-store/initialized", "The metadata are loaded.", _NOTHING),
    _check(f"{_CHECKS}/metadata-store/initialized/with-data", "The metadata are loaded.", _NOTHING),
    _check(
        f"{_CHECKS}/quorum-queues-without-elected-leaders/all-vhosts/pattern/{{pattern}}",
        "Quorum queues have leaders.",
        _NOTHING,
    ),
    _check(
        f"{_CHECKS}/quorum-queues-without-elected-leaders/vhost/{{vhost}}/pattern/{{pattern}}",
        "Quorum queues of a vhost have leaders.",
        check_vhost_leaders,
        Scope.VISIBLE,
    ),
    _check(
        "aliveness-test/{vhost}",
        "A message can be published and taken out.",
        check_aliveness,
        Scope.CLIENT,
    ),
    _check("healthchecks/node", "No alarm is in effect.", check_node),
    _check("healthchecks/node/{node}", "No alarm is in effect.", check_node),
)
