"""Commands for the nodes of a replicated log, and those of RabbitMQ's that have little to do for a single node."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.command import CHECKS, NODES, VHOSTS, Session, command, counted, flag
from leveret.broker.cli.ctl.health import STARTUP_SECONDS, found_listeners, listener_line
from leveret.broker.cli.ctl.output import CtlError, refused

CLUSTER = "Cluster"
REPLICAS = "Nodes and replicas"
POLL_SECONDS = 0.1
QUORUM_SECONDS = 120.0
MOVE_SECONDS = 3600.0
BALANCE_SECONDS = 45.0  # more than that for which leaders obey
SHOWN_SECONDS = 10.0  # time until a node that begins again has asked the database
KINDS = ("all", "classic", "quorum")


# -- nodes of a replicated log ----------------------------------------------------------------------------------


def _nodes(state: Mapping[str, Any]) -> Iterator[str]:
    leader = state["leader"]
    yield from ("Basics", "")
    yield f"This node: {state['node']}, {state['role']}"
    yield f"Leader: {leader['name']} at {leader['address']}" if leader else "Leader: none"
    yield f"Epoch: {state['epoch']}"
    name = f"{state['log']}, " if state.get("log") else ""
    yield f"Log: {name}{state['last']} entries, {state['applied']} of them applied here"
    yield f"Lag: {state['lag_seconds']:.1f} s"
    for vhost, log in state.get("moved", {}).items():
        yield f"Virtual host '{vhost}': in log {log}"
    yield from ("", "Nodes", "")
    problems = list(state["problems"])
    for each in state["members"]:
        how = "up" if each["is_up"] else f"not seen for {each['silent_seconds']:.0f} s"
        if not each["is_up"]:
            problems.append(f"node {each['name']} was {how}")
        yield f"{each['name']} at {each['address']}: {how}, {each['lag_batches']} entries behind"
    yield from _problems(problems)


def _problems(problems: Sequence[str]) -> Iterator[str]:
    yield from ("", "Problems", "")
    yield from (f" * {each}" for each in problems) if problems else ("(none)",)


def _logs(state: Mapping[str, Any]) -> Iterator[str]:
    problems = list(state["problems"])
    for log in state["logs"]:
        yield from (f"Log {log['name']}", "")
        yield f"Leader: {log['leader'] or 'none'}"
        yield f"Virtual hosts: {', '.join(log['vhosts']) or 'none'}"
        for name, node in log["nodes"].items():
            yield f"{name} at {node['address']}: {'up' if node['is_up'] else 'down'}"
            if not node["is_up"]:
                problems.append(f"node {name} of log {log['name']} is down")
        yield ""
    yield from _problems(problems)


@command(CLUSTER)
def cluster_status(session: Session) -> None:
    """Show who leads a replicated log, the other nodes, and what is wrong; without replication the only node.

    A broker with `vhosts.directory` shows all logs and their virtual hosts.
    """
    state = session.api.get("leveret", "cluster")
    if state["replicated"]:
        session.announce(f"Cluster status of node {state['node']} ...")
        session.show_object(state, _nodes(state))
        return
    if "logs" in state:
        session.announce(f"Logs of the directory of node {session.node} ...")
        session.show_object(state, _logs(state))
        return
    session.announce(f"Cluster status of node {session.node} ...")
    overview = session.api.get("overview")
    rows = found_listeners(session)
    found = {
        "cluster_name": overview["cluster_name"],
        "disk_nodes": [session.node],
        "ram_nodes": [],
        "running_nodes": [session.node],
        "versions": {
            session.node: {
                "rabbitmq_name": overview["product_name"],
                "rabbitmq_version": overview["rabbitmq_version"],
                "erlang_version": overview["erlang_version"],
            }
        },
        "feature_flags": session.api.get("feature-flags"),
        "maintenance_status": {session.node: "not under maintenance"},
        "alarms": [],
        "partitions": {},
        "listeners": {session.node: rows},
    }
    lines = [
        "Basics", "", f"Cluster name: {overview['cluster_name']}", "",
        "Disk Nodes", "", session.node, "",
        "Running Nodes", "", session.node, "",
        "Versions", "", f"{session.node}: RabbitMQ {overview['rabbitmq_version']}", "",
        "Listeners", "", *map(listener_line, rows),
    ]  # fmt: skip
    session.show_object(found, lines)


@command(NODES, "1")
def await_online_nodes(session: Session, count: str) -> None:
    """Wait until so many nodes of a replicated log are up, this one included; without replication there is one."""
    wanted = counted(count)
    seconds = session.given_seconds or STARTUP_SECONDS
    until = time.monotonic() + seconds
    state = session.api.get("leveret", "cluster")
    is_replicated = state["replicated"]
    session.announce(
        f"Will wait for at least {wanted} nodes to join the cluster of "
        f"{state['node'] if is_replicated else session.node}. Timeout: {seconds:.0f} seconds."
    )
    if not is_replicated and wanted > 1:
        raise CtlError("Error: there is one node, and no cluster to join", exit_codes.TEMPORARY)
    while is_replicated:
        found = sum(each["is_up"] for each in session.api.get("leveret", "cluster")["members"])
        if found >= wanted:
            return
        if time.monotonic() >= until:
            raise CtlError(f"Error: timed out: {found} of {wanted} nodes are up", exit_codes.TEMPORARY)
        time.sleep(POLL_SECONDS)


@command(CLUSTER, "broker2")
def cluster_transfer(session: Session, name: str | None = None) -> None:
    """Have another node lead: NAME, or any that has caught up. This one, which must lead, closes its clients."""
    state = session.api.get("leveret", "cluster")
    session.announce(f"Handing over to {name or 'another node'} ...")
    began = time.monotonic()
    session.api.post("leveret", "cluster", "transfer", body={"name": name or ""})
    leader = _next_leader(session, state["epoch"], began + session.seconds)
    session.say(f"{leader} leads, after {time.monotonic() - began:.1f} s", {"result": "ok", "leader": leader})


@command(CLUSTER)
def cluster_balance(session: Session) -> None:
    """Have each node lead its share of the logs, at a broker with `vhosts.directory`.

    Clients of the logs that another node is to lead are disconnected.
    """
    session.announce("Balancing the leaders of logs ...")
    began = time.monotonic()
    moved = session.api.post("leveret", "cluster", "balance")["handovers"]
    left = {each["log"]: each["to"] for each in moved}
    while left:
        for log in session.api.get("leveret", "cluster")["logs"]:
            if left.get(log["name"]) == log["leader"]:
                del left[log["name"]]
        if left and time.monotonic() >= began + (session.given_seconds or BALANCE_SECONDS):
            names = ", ".join(f"{log} (to {node})" for log, node in left.items())
            raise CtlError(f"Error: timed out, not handed over: {names}", exit_codes.TEMPORARY)
        time.sleep(POLL_SECONDS)
    session.show_rows(moved, ("log", "from", "to"))


@command(CLUSTER, "orders orders_log")
def move_vhost(session: Session, name: str, log: str) -> None:
    """Move virtual host NAME to the new log LOG of the same database, in one transaction, at the node that leads.

    Clients of all virtual hosts are disconnected. Then start nodes with `replication.log = LOG`.
    """
    epoch = session.api.get("leveret", "cluster")["epoch"]
    session.announce(f"Moving virtual host '{name}' to log '{log}' ...")
    began = time.monotonic()
    session.api.post("leveret", "cluster", "move", body={"vhost": name, "log": log})
    _next_leader(session, epoch, began + (session.given_seconds or MOVE_SECONDS))
    until = time.monotonic() + SHOWN_SECONDS
    while session.api.get("leveret", "cluster")["moved"].get(name) != log:
        if time.monotonic() >= until:
            text = f"Error: '{name}' was not moved: the log of {session.node} has the reason"
            raise CtlError(text, exit_codes.TEMPORARY)
        time.sleep(POLL_SECONDS)
    session.say(f"done, after {time.monotonic() - began:.1f} s", {"result": "ok", "log": log})


def _next_leader(session: Session, epoch: int, until: float) -> str:
    """Return the name of the next leader, once this node, which begins again meanwhile, has seen it."""
    while time.monotonic() < until:
        session.api.close()
        try:
            state = session.api.get("leveret", "cluster")
        except CtlError:
            state = {"epoch": epoch}
        if state["epoch"] > epoch and state["leader"]:
            return str(state["leader"]["name"])
        time.sleep(POLL_SECONDS)
    raise CtlError("Error: timed out: no other node leads yet", exit_codes.TEMPORARY)


@command(CLUSTER, "broker3", says="Removing node {name} from the cluster")
def forget_cluster_node(session: Session, name: str) -> None:
    """Forget a node that is down for good; one that was not seen for 24 hours is forgotten anyway."""
    session.api.delete("leveret", "cluster", "members", name)


@command(CLUSTER, says="Accepting the log as it is ...")
def cluster_accept_log(session: Session) -> None:
    """Lead with a database that was restored from a backup: entries that its log lacks are lost, on all nodes."""
    session.api.post("leveret", "cluster", "accept-log")


# -- a single node ----------------------------------------------------------------------------------------------


def _alone(session: Session, announcement: str, subject: str, verb: str) -> None:
    session.announce(announcement)
    session.say(f"{subject} seems to be the only one in a single node cluster, the {verb} does not apply")


@command(CHECKS)
def check_if_node_is_quorum_critical(session: Session) -> None:
    """Check that the node may stop without a quorum queue losing its majority: the check does not apply to one node."""
    text = f"Checking if node {session.node} is critical for quorum of any quorum queues ..."
    _alone(session, text, f"Node {session.node}", "check")


@command(CHECKS)
def check_if_node_is_mirror_sync_critical(session: Session) -> None:
    """Check that the node may stop without a mirror losing messages: the check does not apply to one node."""
    text = f"Checking if node {session.node} is critical for data safety of any classic mirrored queues ..."
    _alone(session, text, f"Node {session.node}", "check")


@command(CHECKS, says="Checking if any deprecated features are used ...")
def check_if_any_deprecated_features_are_used(session: Session) -> None:
    """Check that no queue is transient and not exclusive: the use of other deprecated features is not recorded."""
    if used := session.api.get("deprecated-features", "used"):
        raise CtlError("\n".join(["Error:", *(row["name"] for row in used)]), exit_codes.UNAVAILABLE)
    session.say("Cluster reported no deprecated features in use")


@command(CHECKS, name="check_if_metadata_store_is_initialized_with_data")
@command(CHECKS)
def check_if_metadata_store_is_initialized(session: Session) -> None:
    """Check that the metadata are loaded: they are, when the broker answers."""
    session.announce(f"Checking if metadata store on node {session.node} has finished initializing ...")
    session.api.get("health", "checks", "metadata-store", "initialized")
    session.say(f"Metadata store on node {session.node} has completed its initialization")


@command(CHECKS, says="Checking if target cluster size has been reached on node {session.node} ...")
def has_reached_target_cluster_size(session: Session) -> None:
    """Check that the nodes that are needed are there: one is."""
    session.api.get("health", "checks", "reached-target-cluster-size")
    session.say(f"Target cluster size has been reached on node {session.node}")


@command(CHECKS, "'.*'", flag("--across-all-vhosts", text="In all virtual hosts."))
def check_for_quorum_queues_without_an_elected_leader(
    session: Session, pattern: str, *, across_all_vhosts: bool
) -> None:
    """Check that queues of type quorum have a leader: all have, this broker."""
    where = ("all-vhosts",) if across_all_vhosts else ("vhost", session.vhost)
    place = "all vhosts" if across_all_vhosts else f"vhost {session.vhost}"
    session.announce(f"Checking leader replicas of quorum queues matching '{pattern}' in {place} ...")
    session.api.get("health", "checks", "quorum-queues-without-elected-leaders", *where, "pattern", pattern)
    session.say(f"Node {session.node} reported all quorum queue as having responsive leader replicas")


def _await_alone(session: Session, what: str) -> None:
    seconds = session.given_seconds or QUORUM_SECONDS
    _alone(session, f"Will wait for a {what} queues for {seconds:.0f} seconds...", "Target node", "command")


@command(REPLICAS)
def await_online_quorum_plus_one(session: Session) -> None:
    """Wait until another node could take over the quorum queues: does not apply to one node."""
    _await_alone(session, "quorum + 1 of nodes to be online for all quorum")


@command(REPLICAS)
def await_online_synchronized_mirror(session: Session) -> None:
    """Wait until another node could take over the mirrored queues: does not apply to one node."""
    _await_alone(session, "synchronised mirror be online for all classic mirrored")


@command(REPLICAS, "all")
def rebalance(session: Session, kind: str) -> None:
    """Spread the leaders of queues (all, classic or quorum) over the nodes: nothing to do on one node."""
    if kind not in KINDS:
        raise refused(f"type {kind} is not supported. Try one of {', '.join(KINDS)}.")
    session.announce(f"Re-balancing leaders of {kind} queues...")
    session.api.post("rebalance", "queues")
    session.show_rows([], ())


@command(CHECKS, says="Will ask all processes on node {session.node} to schedule a full sweep GC")
def force_gc(session: Session) -> None:
    """Return memory to the operating system: the broker does so by itself, and this does nothing."""


@command(VHOSTS, "-p /")
def restart_vhost(session: Session) -> None:
    """Start a virtual host that failed; here they run as long as the broker."""
    place = f"'{session.vhost}' on node '{session.node}'"
    session.announce(f"Trying to restart vhost {place} ...")
    if all(row["name"] != session.vhost for row in session.api.get("vhosts", columns="name")):
        reason = f'{{:no_such_vhost, "{session.vhost}"}}'
        raise CtlError(f"Error:\nFailed to start vhost {place}Reason: {reason}", exit_codes.SOFTWARE)
    session.say(f"Vhost {place.replace(' on', ' is already running on', 1)}")
