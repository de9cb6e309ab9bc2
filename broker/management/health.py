"""Health checks: `/api/health/checks`, `/api/aliveness-test`, `/api/healthchecks`."""

from functools import partial
from typing import Any

from leveret.broker.administration.access import found_vhost
from leveret.broker.http.call import DIGITS, Answer, Call, Item, Steps
from leveret.broker.http.errors import bad_request
from leveret.broker.http.route import Routes, Scope
from leveret.broker.management.messages import outcome_of
from leveret.broker.process.resource_alarms import raised

ROUTES = Routes("health", statuses=(200, 503))
UNITS = {"days": 1, "weeks": 7, "months": 30, "years": 365}
_DAY_SECONDS = 86400
SERVICE_UNAVAILABLE = 503
_ONE_NODE = {"reason": "single node cluster"}
TEST_QUEUE = "aliveness-test"
TEST_BODY = b"test_message"


def passed(**details: Any) -> Item:
    """Return the answer of a check that is passed."""
    return Item({"status": "ok", **details})


def failed(reason: str, **details: Any) -> Item:
    """Return the answer of a check that is not passed."""
    return Item({"status": "failed", "reason": reason, **details}, status=SERVICE_UNAVAILABLE)


@ROUTES.get("health/checks/alarms", arguments={"where": "in the cluster"})
@ROUTES.get("health/checks/local-alarms", arguments={"where": "on the node"})
def check_alarms(call: Call, *, where: str) -> Answer:
    """No alarm is in effect."""
    monitor = call.broker.resource_monitor
    if names := raised(monitor.memory, monitor.disk):
        alarms = [{"node": call.broker.node_name, "resource": resource} for resource in names]
        return failed(f"There are alarms in effect {where}", alarms=alarms)
    return passed()


@ROUTES.get("health/checks/certificate-expiration/{within}/{unit}")
def check_certificates(call: Call, within: str, unit: str) -> Answer:
    """No certificate expires within a time."""
    if unit not in UNITS:
        raise bad_request(f"Time unit not recognised. Supported units: {', '.join(UNITS)}.")
    if not (within.isascii() and within.isdecimal()) or len(within) > DIGITS:
        raise bad_request("Invalid expiration value.")
    seconds = int(within) * UNITS[unit] * _DAY_SECONDS
    limit = call.broker.context.clock() / 1000 + seconds
    expired = [
        {"node": call.broker.node_name, "key": key, "subject": each.subject,
         "certfile_expires_on": f"{each.ends:%Y-%m-%d %H:%M:%S}"}
        for key, each in call.broker.gate.certificates.facts.items()
        if each.ends.timestamp() <= limit
    ]  # fmt: skip
    return failed("Certificates expiring", expired=expired) if expired else passed()


@ROUTES.get("health/checks/port-listener/{port}")
def check_port(call: Call, port: str) -> Answer:
    """There is a listener on a port."""
    if not port.isdecimal() or len(port) > DIGITS:
        raise bad_request("Invalid port")
    return _listens("port", int(port), [listener.port for listener in call.broker.listeners])


@ROUTES.get("health/checks/protocol-listener/{protocol}")
def check_protocol(call: Call, protocol: str) -> Answer:
    """There is a listener for a protocol."""
    protocol = protocol.lower()
    protocol = _PROTOCOLS.get(protocol, protocol)
    known = dict.fromkeys(listener.protocol for listener in call.broker.listeners)
    return _listens("protocol", protocol, list(known))


def _listens(what: str, wanted: Any, known: list[Any]) -> Answer:
    if wanted in known:
        return passed(**{what: wanted})
    return failed("No active listener", missing=wanted, **{f"{what}s": known})


_PROTOCOLS = {
    "amqp091": "amqp", "amqp0.9.1": "amqp", "amqp0-9-1": "amqp", "amqps": "amqp/ssl", "amqp+tls": "amqp/ssl",
    "prometheus": "http/prometheus",
}  # fmt: skip


@ROUTES.get("health/checks/below-node-connection-limit")
def check_connections(call: Call) -> Answer:
    """More clients may connect."""
    clients = call.broker.clients
    count, limit = len(clients.connections), clients.connection_max
    shown = "infinity" if limit is None else limit
    if limit is None or count < limit:
        return passed(limit=shown, connections=count)
    return failed("node connection limit is reached", limit=shown, connections=count)


@ROUTES.get("health/checks/ready-to-serve-clients")
def check_readiness(call: Call) -> Answer:
    """Clients may connect."""
    if all(listener.protocol not in {"amqp", "amqp/ssl"} for listener in call.broker.listeners):
        return failed("no active listeners for AMQP/AMQPS")
    answer = check_connections(call)
    return answer if isinstance(answer, Item) and answer.status == SERVICE_UNAVAILABLE else passed()


@ROUTES.get("health/checks/is-in-service")
def check_service(call: Call) -> Answer:
    """The node serves clients."""
    cluster = call.broker.cluster
    return passed() if cluster is None or cluster.figures().role else failed(call.broker.obstacle)


@ROUTES.get("health/checks/replication")
def check_replication(call: Call) -> Answer:
    """Nothing is wrong with the replicated log, or those of `vhosts.directory`, or with users that logs share."""
    cluster = call.broker.cluster or call.broker.logs
    problems = [] if cluster is None else cluster.described()["problems"]
    return failed("; ".join(problems), problems=problems) if problems else passed()


@ROUTES.get("health/checks/virtual-hosts", doc="All vhosts run.")
@ROUTES.get(
    "health/checks/metadata-store/initialized",
    "health/checks/metadata-store/initialized/with-data",
    doc="The metadata are loaded.",
)
@ROUTES.get(
    "health/checks/quorum-queues-without-elected-leaders/all-vhosts",
    "health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}",
    doc="Quorum queues have leaders.",
)
@ROUTES.get("health/checks/reached-target-cluster-size", doc="The nodes that are needed are there.")
@ROUTES.get(
    "health/checks/node-is-mirror-sync-critical",
    doc="The node is not needed by mirrors.",
    arguments=_ONE_NODE,
)
@ROUTES.get(
    "health/checks/node-is-quorum-critical",
    doc="The node is not needed by quorum queues.",
    arguments=_ONE_NODE,
)
def check_nothing(_call: Call, **details: str) -> Answer:
    """Answer that all is well: what is checked cannot fail alone on a single node."""
    return passed(**details)


@ROUTES.get(
    "health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}",
    "health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}/pattern/{pattern}",
    scope=Scope.VISIBLE,
)
def check_vhost_leaders(call: Call, vhost: str) -> Answer:
    """Quorum queues of a vhost have leaders."""
    found_vhost(call.broker, vhost)
    return passed()


@ROUTES.get("healthchecks/node", "healthchecks/node/{node}")
def check_node(call: Call) -> Answer:
    """No alarm is in effect."""
    call.check_node_name()
    monitor = call.broker.resource_monitor
    if names := raised(monitor.memory, monitor.disk):
        limits = ",".join(f"{{resource_limit,{resource},{call.broker.node_name}}}" for resource in names)
        return failed(f"resource alarm(s) in effect:[{limits}]")
    return passed()


@ROUTES.get("aliveness-test/{vhost}", scope=Scope.CLIENT)
def check_aliveness(call: Call, vhost: str) -> Steps:
    """A message can be published and taken out."""
    existing = found_vhost(call.broker, vhost).queues.get(TEST_QUEUE)
    administration = call.administration
    is_denied = call.broker.config.compatibility.transient_nonexcl_queues == "denied"
    durable = is_denied if existing is None else existing.durable
    administration.topology.declare_queue(call.actor, vhost, TEST_QUEUE, durable=durable)
    publish = partial(administration.publishing.publish, call.actor, vhost, "", TEST_QUEUE, TEST_BODY)
    outcome = yield from outcome_of(publish)
    if outcome != "confirmed" or not administration.topology.purge_queue(call.actor, vhost, TEST_QUEUE):
        return failed("a test message did not arrive")
    return passed()
