"""Commands that list queues, exchanges, bindings, connections, channels and consumers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.command import CHECKS, Session, command, flag
from leveret.broker.cli.ctl.output import Arguments, CtlError, refused, writable
from leveret.broker.errors import did_you_mean

QUEUES = "Queues"
Value = str | Callable[[Mapping[str, Any]], Any]  # a key of the API's item, or a function of the item


def _arguments(key: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: Arguments(row.get(key) or {})


def _nested(outer: str, inner: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: (row.get(outer) or {}).get(inner)


def _same(*names: str) -> dict[str, Value]:
    return {name: name for name in names}


QUEUE: Mapping[str, Value] = {
    **_same(
        "name", "durable", "auto_delete", "policy", "operator_policy", "effective_policy_definition",
        "exclusive", "messages_ready", "messages_unacknowledged", "messages", "messages_ready_ram",
        "messages_unacknowledged_ram", "messages_ram", "messages_persistent", "message_bytes",
        "message_bytes_ready", "message_bytes_unacknowledged", "message_bytes_ram", "message_bytes_persistent",
        "head_message_timestamp", "consumers", "consumer_utilisation", "consumer_capacity", "memory", "state",
        "type", "leader", "members", "online", "confirm_mode", "messages_paged_out", "idle_since",
        "messages_delayed", "next_due", "backing_queue_status",
    ),
    "arguments": _arguments("arguments"),
    "pid": "node",
    "owner_pid": _nested("owner_pid_details", "name"),
    "exclusive_consumer_pid": lambda _row: "",
    "exclusive_consumer_tag": "exclusive_consumer_tag",
    "single_active_consumer_tag": "single_active_consumer_tag",
    "disk_reads": _nested("message_stats", "disk_reads"),
    "disk_writes": _nested("message_stats", "disk_writes"),
    "slave_pids": lambda _row: "",
    "synchronised_slave_pids": lambda _row: "",
    "mirror_pids": lambda _row: "",
    "synchronised_mirror_pids": lambda _row: "",
}  # fmt: skip
EXCHANGE: Mapping[str, Value] = {
    **_same("name", "type", "durable", "auto_delete", "internal", "policy"),
    "arguments": _arguments("arguments"),
}
BINDING: Mapping[str, Value] = {
    "source_name": "source",
    "source_kind": lambda _row: "exchange",
    "destination_name": "destination",
    "destination_kind": "destination_type",
    "routing_key": "routing_key",
    "arguments": _arguments("arguments"),
    "vhost": "vhost",
}
CONNECTION: Mapping[str, Value] = {
    **_same(
        "name", "port", "host", "peer_port", "peer_host", "ssl", "ssl_protocol", "ssl_key_exchange", "ssl_cipher",
        "ssl_hash", "peer_cert_subject", "peer_cert_issuer", "peer_cert_validity", "state", "channels", "protocol",
        "auth_mechanism", "user", "vhost", "timeout", "frame_max", "channel_max", "recv_oct", "recv_cnt", "send_oct",
        "send_cnt", "send_pend", "connected_at",
    ),
    "pid": "name",
    "client_properties": _arguments("client_properties"),
}  # fmt: skip
CHANNEL: Mapping[str, Value] = {
    **_same(
        "name", "number", "user", "vhost", "transactional", "confirm", "consumer_count", "messages_unacknowledged",
        "messages_uncommitted", "acks_uncommitted", "messages_unconfirmed", "prefetch_count", "global_prefetch_count",
        "state",
    ),
    "pid": "name",
    "connection": _nested("connection_details", "name"),
}  # fmt: skip
CONSUMER: Mapping[str, Value] = {
    "queue_name": _nested("queue", "name"),
    "channel_pid": _nested("channel_details", "name"),
    "consumer_tag": "consumer_tag",
    "ack_required": "ack_required",
    "prefetch_count": "prefetch_count",
    "active": "active",
    "activity_status": "activity_status",
    "arguments": _arguments("arguments"),
}


def _show(
    session: Session, rows: Sequence[Mapping[str, Any]], known: Mapping[str, Value], columns: Sequence[str]
) -> None:
    values = {name: known[name] for name in columns}
    shown = [
        {name: row.get(value) if isinstance(value, str) else value(row) for name, value in values.items()}
        for row in rows
    ]
    session.show_rows(shown, columns)


def _of_vhost(session: Session, kind: str) -> Any:
    """Return the objects of a vhost; none, as RabbitMQ does, if it does not exist, with a message beside the output."""
    found = session.api.find(kind, session.vhost)
    if found is None:
        names = [each["name"] for each in session.api.get("vhosts", columns="name")]
        advice = did_you_mean(session.vhost, names)
        click.echo(writable(f"Warning: virtual host '{session.vhost}' does not exist{advice}"), err=True)
    return found or []


@command(
    CHECKS,
    "name messages_ready messages_unacknowledged consumers",
    flag("--online", text="Ignored: all queues are online."),
    flag("--offline", text="List nothing: no queue is offline."),
    flag("--local", text="Ignored: there is one node."),
    columns=QUEUE,
    says="Timeout: {session.seconds:.1f} seconds ...\nListing queues for vhost {session.vhost} ...",
)
def list_queues(
    session: Session, columns: tuple[str, ...], *, offline: bool = False, **_ignored: Any
) -> None:
    """List the queues of a virtual host, with the columns that are named (default: name messages)."""
    rows = [] if offline else _of_vhost(session, "queues")
    _show(session, rows, QUEUE, columns or ("name", "messages"))


@command(CHECKS, columns=QUEUE, says="Listing unresponsive queues for vhost {session.vhost} ...")
def list_unresponsive_queues(session: Session, columns: tuple[str, ...]) -> None:
    """List queues that do not respond: there are none as long as the broker does."""
    _show(session, (), QUEUE, columns or ("name",))


@command(CHECKS, "name type", columns=EXCHANGE, says="Listing exchanges for vhost {session.vhost} ...")
def list_exchanges(session: Session, columns: tuple[str, ...]) -> None:
    """List the exchanges of a virtual host (default: name type)."""
    _show(session, _of_vhost(session, "exchanges"), EXCHANGE, columns or ("name", "type"))


@command(CHECKS, "source_name destination_name routing_key", columns=BINDING)
def list_bindings(session: Session, columns: tuple[str, ...]) -> None:
    """List the bindings of a virtual host."""
    session.announce(f"Listing bindings for vhost {session.vhost}...")
    names = columns or [name for name in BINDING if name != "vhost"]
    _show(session, _of_vhost(session, "bindings"), BINDING, names)


@command(CHECKS, "name user state", columns=CONNECTION, says="Listing connections ...")
def list_connections(session: Session, columns: tuple[str, ...]) -> None:
    """List all connections (default: user peer_host peer_port state); `pid` is the name."""
    names = columns or ("user", "peer_host", "peer_port", "state")
    _show(session, session.api.get("connections"), CONNECTION, names)


@command(CHECKS, "pid messages_unacknowledged", columns=CHANNEL, says="Listing channels ...")
def list_channels(session: Session, columns: tuple[str, ...]) -> None:
    """List all channels (default: pid user consumer_count messages_unacknowledged); `pid` is the name."""
    names = columns or ("pid", "user", "consumer_count", "messages_unacknowledged")
    _show(session, session.api.get("channels"), CHANNEL, names)


@command(CHECKS, "queue_name consumer_tag prefetch_count", columns=CONSUMER)
def list_consumers(session: Session, columns: tuple[str, ...]) -> None:
    """List the consumers of a virtual host."""
    session.announce(f"Listing consumers in vhost {session.vhost} ...")
    names = columns or [name for name in CONSUMER if name != "activity_status"]
    _show(session, _of_vhost(session, "consumers"), CONSUMER, names)


@command(QUEUES, "orders", says="Purging queue '{queue}' in vhost '{session.vhost}' ...")
def purge_queue(session: Session, queue: str) -> None:
    """Remove all ready messages of a queue."""
    session.api.delete("queues", session.vhost, queue, "contents", missing=refused("not_found"))


@command(
    QUEUES,
    "orders --if-unused",
    flag("--if-empty", text="Only if it has no messages."),
    flag("--if-unused", text="Only if it has no consumers."),
)
def delete_queue(session: Session, queue_name: str, *, if_empty: bool, if_unused: bool) -> None:
    """Delete a queue with its messages."""
    conditions = " and ".join(
        f"if queue is {name}" for name, given in (("empty", if_empty), ("unused", if_unused)) if given
    )
    session.announce(
        f"Deleting queue '{queue_name}' on vhost '{session.vhost}' {f'{conditions} ' if conditions else ''}..."
    )
    query = {"if-empty": str(if_empty).lower(), "if-unused": str(if_unused).lower()}
    missing = CtlError("Error:\nQueue not found", exit_codes.USAGE)
    session.api.delete("queues", session.vhost, queue_name, missing=missing, query=query)
