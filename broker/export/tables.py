"""The export's tables: the source of the written rows, docs/export.md and the readers' schemas.

A column says how its value is computed, beside its name and type. Its kind says how to use it: a *key* identifies an
object; a *gauge* is a current value; a *counter* counts from the object's creation, so the difference of two rows is
what happened in between, and a lost row costs resolution only; an *area* is a counter of message-microseconds, which
gives exact averages over time (docs/export.md); a *sum* covers only this row's interval.
"""

from collections.abc import Callable, Mapping
from math import isinf
from operator import attrgetter, itemgetter
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec

from leveret.broker.process.resource_alarms import raised

Kind = Literal["key", "info", "gauge", "counter", "area", "sum"]
AREAS: Final = ("ready", "unacked", "alpha", "beta", "gamma", "delta")
AREA_MODULUS: Final = 2**62
"""Areas are counted modulo this, so that they fit into 64 bits everywhere: differences must be taken modulo it, too."""
TELEMETRY: Final = "leveret.telemetry"
"""Name of the stream to which the rows are appended, too (`export.stream_vhost`)."""


class ColumnInfo(NamedTuple):
    """A column of a table; `type` is a Spark type."""

    name: str
    type: str
    kind: Kind
    unit: str
    doc: str


class Column(NamedTuple):
    """A column: its type in Python, and what returns its value, given what the row is about."""

    name: str
    kind: Kind
    doc: str
    read: str | Callable[[Any], Any]
    unit: str
    type: Any


class Declare(NamedTuple):
    """Declares columns of a kind, by its usual type and unit."""

    kind: Kind
    type: Any = int
    unit: str = ""

    def __call__(
        self,
        name: str,
        doc: str,
        read: str | Callable[[Any], Any] = "",
        *,
        unit: str | None = None,
        of: Any = None,
    ) -> Column:
        """Return a column; `read` may be a path of attributes, by default the name."""
        return Column(
            name,
            self.kind,
            doc,
            read or name,
            self.unit if unit is None else unit,
            of or self.type,
        )


key, info, gauge = Declare("key", str), Declare("info", str), Declare("gauge")
counter, area, interval = (
    Declare("counter", unit="messages"),
    Declare("area", unit="message-µs"),
    Declare("sum"),
)


class Table:
    """A table: its columns in the order they are written, and the class of its rows.

    Columns are given but for those that all tables have, or all that the broker writes itself (`is_ours`).
    """

    def __init__(self, name: str, doc: str, *columns: Column, is_ours: bool = True) -> None:
        self.name, self.doc = name, doc
        self.columns = (VERSION, *(COMMON if is_ours else ()), *columns)
        paths = {each.name: each.read for each in columns if isinstance(each.read, str)}
        functions = {each.name: each.read for each in columns if not isinstance(each.read, str)}
        self._paths = attrgetter(*paths.values())
        self._functions = list(functions.values())
        # In the order of the columns: one call reads all paths, which takes a third of the time.
        self._in_order = itemgetter(*map([*paths, *functions].index, [each.name for each in columns]))
        fields = [(column.name, column.type) for column in self.columns]
        self.struct: Any = (
            msgspec.defstruct(name, fields)
            if is_ours
            else msgspec.defstruct(name, [(*fields[0], 1), *fields[1:]], frozen=True, kw_only=True)
        )

    def row(self, common: tuple[Any, ...], about: Any) -> Any:
        """Return a row: the values of the common columns, and those that are read of what it is about."""
        values = *self._paths(about), *[read(about) for read in self._functions]
        return self.struct(*common, *self._in_order(values))


VERSION: Final = info("v", "Version of the table, 1", of=int)
COMMON: Final = (
    info("ts", "Time of the sample, wall clock", unit="ms since 1970, UTC", of=int),
    info("mono_us", "Time of the sample, monotonic clock: use it for differences", unit="µs", of=int),
    key("node", "Node name"),
    key("boot_id", "Id of this run of the broker; counters start at 0 in each run"),
)


def _moved(transition: str) -> Callable[[Any], int]:
    return lambda each: each.paging.transitions.get(transition, 0)


def _target_ram(each: Any) -> float:
    target = each.paging.target_ram_count
    return -1.0 if isinf(target) else float(target)


QUEUE: Final = Table(
    "queue_interval",
    "One sample of a queue. alpha, beta, gamma and delta count ready messages by state and add up to `ready`.",
    key("vhost", "Virtual host", "queue.vhost"),
    key("queue", "Name", "queue.name"),
    key("since_ms", "Creation time in this run (epoch ms); distinguishes a queue from an earlier one of the same name",
        "since", of=int),
    info("type", "Queue type: `classic`, `quorum` or `stream`", "queue.type"),
    info("durable", "True if the queue is durable", "queue.durable", of=bool),
    info("mode", "Confirm mode: `standard`, `consumer-ack` or `consumer-ack-light` (docs/confirms.md)",
         "queue.settings.confirm_mode"),
    gauge("ready", "Ready messages", "levels.ready", unit="messages"),
    gauge("unacked", "Unacknowledged messages", "levels.unacked", unit="messages"),
    gauge("held", "Messages held until their time, or waiting for a retry", "queue.held_count", unit="messages"),
    gauge("consumers", "Consumers", "levels.consumers"),
    gauge("capacity",
          "Consumer capacity: fraction of the last seconds in which a message could be delivered immediately",
          lambda each: round(each.queue.consumer_capacity, 4), of=float),
    gauge("promised", "Messages whose publish is unconfirmed until a consumer settles them",
          "levels.promises", unit="messages"),
    gauge("alpha", "Ready messages fully in memory", "levels.alpha", unit="messages"),
    gauge("beta", "Ready transient messages with the position in memory and the body paged out",
          "levels.beta", unit="messages"),
    gauge("gamma", "Ready persistent messages with the position in memory and the body on disk",
          "levels.gamma", unit="messages"),
    gauge("delta", "Ready messages on disk only", "levels.delta", unit="messages"),
    gauge("unacked_ram", "Unacknowledged messages with the body in memory",
          lambda each: min(each.levels.unacked, each.paging.ram_ack_count), unit="messages"),
    gauge("bytes_ram", "Approximate size of the ready messages in memory", "paging.ram_octets", unit="bytes"),
    gauge("bytes_disk", "Size of the bodies of messages in delta", "paging.delta_octets", unit="bytes"),
    gauge("target_ram", "Messages that paging allows in memory; -1: no limit", _target_ram, unit="messages", of=float),
    gauge("ingress_ewma", "Moving average of arrivals, as used by paging",
          lambda each: round(each.paging.ingress_rate, 3), unit="messages/s", of=float),
    gauge("egress_ewma", "Moving average of departures, as used by paging",
          lambda each: round(each.paging.egress_rate, 3), unit="messages/s", of=float),
    counter("pub", "Messages enqueued", "counts.published"),
    counter("delivered", "Deliveries to consumers and by `basic.get`, redeliveries included", "counts.delivered"),
    counter("redelivered", "Redeliveries to consumers", "counts.redelivered"),
    counter("got", "Deliveries by `basic.get`", "counts.got"),
    counter("get_empty", "`basic.get` requests that found the queue empty", "counts.get_empty", unit=""),
    counter("acked", "Acknowledged by consumers", "counts.settled"),
    counter("requeued", "Requeued", "queue.tally.requeued"),
    counter("rejected", "Rejected without requeue", "queue.tally.rejected"),
    counter("expired", "Discarded because their TTL expired", "queue.tally.expired"),
    counter("dropped", "Discarded because of the queue's length limit, or a stream's", "queue.tally.dropped"),
    counter("dead_lettered", "Dead-lettered, whatever the reason", "queue.tally.dead_lettered"),
    counter("purged", "Removed by `queue.purge`", "queue.tally.purged"),
    counter("accepted", "Publishes whose copy in this queue was acknowledged by a consumer, in a consumer-ack mode",
            lambda each: 0 if each.queue.awaiting is None else each.queue.awaiting.accepted),
    counter("refused", "Publishes nacked because their copy in this queue was discarded, in a consumer-ack mode",
            lambda each: 0 if each.queue.awaiting is None else each.queue.awaiting.refused),
    counter("damaged", "Messages or blocks that could not be read from disk", "queue.backing.damaged", unit=""),
    *(area(f"area_{name}", f"Time integral of `{name}`") for name in AREAS),
    counter("t_ab", "Transitions from alpha to beta", _moved("alpha_to_beta")),
    counter("t_ag", "Transitions from alpha to gamma", _moved("alpha_to_gamma")),
    counter("t_to_delta", "Transitions from beta or gamma to delta", _moved("to_delta")),
    counter("t_from_delta", "Positions read back from delta (they become beta or gamma)", _moved("from_delta")),
    counter("t_unacked_out", "Unacknowledged messages whose bodies were evicted from memory",
            _moved("limit_ram_acks")),
)  # fmt: skip
EXCHANGE: Final = Table(
    "exchange_interval",
    "One sample of an exchange. `pub_in` = `routed` + `unroutable_returned` + `unroutable_dropped`.",
    key("vhost", "Virtual host"),
    key("exchange", "Name; empty for the default exchange", "exchange.name"),
    key("since_ms", "Time of the first sample in this run (epoch ms)", "since", of=int),
    info("type", "Exchange type", "exchange.type"),
    gauge("bindings", "Bindings with this exchange as the source", "exchange.binding_count"),
    counter("pub_in", "Messages published to the exchange by clients or by dead-lettering", "exchange.published_in"),
    counter("routed", "Messages routed to at least one queue",
            lambda each: each.exchange.published_in - each.exchange.unroutable),
    counter("unroutable_returned", "Unroutable messages returned to the publisher (`mandatory`)", "exchange.returned"),
    counter("unroutable_dropped", "Unroutable messages dropped",
            lambda each: each.exchange.unroutable - each.exchange.returned),
    counter("fanout_sum", "Copies created: the number of queues, summed over all messages", "exchange.published_out"),
    counter("route_lookups", "Messages whose route was not cached by the connection", "exchange.lookups", unit=""),
)  # fmt: skip
TOPIC_PATTERN: Final = Table(
    "topic_pattern",
    "A binding key of a topic exchange, one of the 64 that matched most messages since the exchange was first seen.",
    key("vhost", "Virtual host of the exchange"),
    key("exchange", "Exchange name", "exchange.name"),
    key("pattern", "Binding key"),
    key("since_ms", "Time of the exchange's first sample in this run (epoch ms)", "since", of=int),
    counter("matches", "Messages whose routing key it matched, among those counted per routing key"),
    counter("error", "Messages of the exchange not counted per routing key: the most that `matches` can be too low by",
            "missed"),
)  # fmt: skip
CONNECTION: Final = Table(
    "conn_interval", "One sample of a connection.",
    key("conn_id", "Connection name, `client:port -> broker:port`", "connection.name"),
    key("since_ms", "Time of the first sample (epoch ms); distinguishes connections that reuse a port",
        "since", of=int),
    info("user", "User name", "connection.user.name"),
    info("vhost", "Virtual host", "connection.vhost.name"),
    info("peer", "Address of the client", lambda each: each.connection.peer[0]),
    info("client", "Product and version that the client reports"),
    info("state", "State: `running`, `flow`, `blocking`, `blocked` or `closing`"),
    gauge("channels", "Open channels"),
    gauge("consumers", "Consumers", "levels.consumers"),
    gauge("unacked", "Unacknowledged messages", "levels.unacked", unit="messages"),
    gauge("unconfirmed", "Publishes not yet confirmed or nacked", "levels.unconfirmed", unit="messages"),
    gauge("prefetch", "Sum of the consumers' prefetch counts; consumers without a limit count as 0", unit="messages"),
    gauge("write_buffer_bytes", "Outgoing data not yet accepted by the socket",
          "connection.driver.unsent", unit="bytes"),
    counter("recv_bytes", "Bytes received", "connection.octets_in", unit="bytes"),
    counter("sent_bytes", "Bytes sent", "connection.octets_out", unit="bytes"),
    counter("published", "Messages published", "counts.published"),
    counter("returned", "Messages returned as unroutable", "counts.returned"),
    counter("confirmed", "Publishes confirmed", "counts.confirmed"),
    counter("nacked", "Publishes nacked", "counts.nacked"),
    counter("delivered", "Messages delivered", "counts.delivered"),
    counter("acked", "Deliveries acknowledged", "counts.acked"),
)  # fmt: skip


def _microseconds(name: str) -> Callable[[Any], int]:
    read = attrgetter(name)
    return lambda node: int(read(node.process) * 1e6)


def _read(what: str) -> Callable[[Any], int]:
    """Return a function for a number of reads from disk, whatever the state of the messages was."""
    read = attrgetter(what)
    return lambda node: read(node.disk.pager.read_delta) + read(node.disk.pager.read_entries)


NODE: Final = Table(
    "node_interval", "One sample of the broker as a whole.",
    gauge("connections", "Open connections", lambda node: len(node.clients.connections)),
    gauge("channels", "Open channels", "clients.channel_count"),
    gauge("queues", "Queues", lambda node: sum([len(vhost.queues) for vhost in node.broker.vhosts.values()])),
    gauge("consumers", "Consumers"),
    gauge("paused", "Connections that the broker does not read from, because of a queue's backlog, a pending commit "
          "or an alarm"),
    gauge("ready", "Ready messages in all queues", unit="messages"),
    gauge("unacked", "Unacknowledged messages in all queues", unit="messages"),
    gauge("rss", "Resident memory of the process, including mapped files", "process.rss", unit="bytes"),
    gauge("mem_used", "Memory use as measured for the memory alarm", "resources.memory.used", unit="bytes"),
    gauge("mem_limit", "Memory use above which publishers are blocked", "resources.memory.limit", unit="bytes"),
    gauge("disk_free", "Free disk space; -1 for a broker without a data directory",
          lambda node: -1 if node.resources.disk.free is None else node.resources.disk.free, unit="bytes"),
    gauge("disk_limit", "Free disk space below which publishers are blocked", "resources.disk.limit", unit="bytes"),
    gauge("fds", "Open file descriptors", "process.open_files"),
    info("alarms", "Alarms in effect: `memory`, `disk`",
         lambda node: raised(node.resources.memory, node.resources.disk), of=list[str]),
    counter("published", "Messages published by clients", "counts.published"),
    counter("returned", "Messages returned as unroutable", "counts.returned"),
    counter("confirmed", "Publishes confirmed", "counts.confirmed"),
    counter("nacked", "Publishes nacked", "counts.nacked"),
    counter("delivered", "Messages delivered to clients", "counts.delivered"),
    counter("acked", "Deliveries acknowledged by clients", "counts.acked"),
    counter("cpu_user_us", "CPU time in user mode", _microseconds("user_seconds"), unit="µs"),
    counter("cpu_sys_us", "CPU time in kernel mode", _microseconds("system_seconds"), unit="µs"),
    counter("commits", "Commits", "disk.journal.commits", unit=""),
    counter("commit_bytes", "Bytes written by commits", "disk.journal.octets_written", unit="bytes"),
    counter("commit_messages", "Copies of persistent messages written", "disk.journal.written"),
    counter("paged_out", "Copies of transient messages written (paged out)", "disk.journal.paged_out"),
    counter("read_messages", "Messages whose bodies were read from disk", _read("messages")),
    counter("read_blocks", "Blocks read for them", _read("blocks"), unit=""),
    counter("read_bodies", "Separately stored bodies read for them", _read("bodies"), unit=""),
    counter("connections_opened", "Connections opened", "clients.connections_opened", unit=""),
    counter("connections_closed", "Connections closed", "clients.connections_closed", unit=""),
    counter("channels_opened", "Channels opened", "clients.channels_opened", unit=""),
    counter("channels_closed", "Channels closed", "clients.channels_closed", unit=""),
    counter("queues_created", "Queues created", "totals.queues_created", unit=""),
    counter("queues_deleted", "Queues deleted", "totals.queues_deleted", unit=""),
    interval("loop_lag_max_us", "Greatest delay of the event loop", "lag.greatest", unit="µs"),
    interval("loop_lag_p99_us", "99th percentile of the delay of the event loop",
             lambda node: node.lag.percentile(0.99), unit="µs"),
    counter("export_lost", "Rows of the export that could not be written", "lost", unit=""),
)  # fmt: skip


class Bucket(msgspec.Struct):
    """One bucket of a histogram: its number and count."""

    i: int
    c: int


LATENCY: Final = Table(
    "latency_hist", "Durations measured in this interval, as a mergeable histogram (scheme `ll5`).",
    key("scope", "Scope of the measurement, `node` or `queue`"),
    key("vhost", "Virtual host of the queue; empty for the node"),
    key("name", "Name of the queue; empty for the node"),
    key("metric", "For the node `confirm`, `commit`, `loop_lag`; for queues `deliver`, `ack`, `residence`"),
    key("mode", "Confirm mode: of the publishes (`confirm`), otherwise of the queue, or empty"),
    info("scheme", "Bucket scheme, `ll5`", lambda _: "ll5"),
    interval("count",
             "Number of values; messages are sampled, and each sampled one is weighted by those it stands for",
             "durations.count"),
    interval("sum_us", "Sum of the values", "durations.total", unit="µs"),
    interval("min_us", "Smallest value", "durations.least", unit="µs"),
    interval("max_us", "Greatest value", "durations.greatest", unit="µs"),
    interval("b", "Bucket numbers `i` with their counts `c`, ascending, without empty buckets",
             lambda each: [Bucket(bucket, count) for bucket, count in each.durations.buckets()], of=list[Bucket]),
)  # fmt: skip
EVENT: Final = Table(
    "event", "An event of the broker.",
    key("kind", "Kind of event (see below)"),
    key("vhost", "Virtual host; empty for the node"),
    key("name", "Name of the object or user"),
    info("detail", "Further details", of=dict[str, str]),
)  # fmt: skip
BENCH_RUN: Final = Table(
    "bench_run", "One run of a benchmark with one configuration of the load.",
    key("run_id", "Id of the run"),
    info("git", "Measured revision"),
    info("host", "Host name"),
    info("cpu", "Processor model"),
    info("kernel", "Kernel version"),
    info("broker", "Broker"),
    info("version", "Version of the broker"),
    info("mode", "Confirm mode"),
    info("sync", "Durability that a commit waits for"),
    info("queues", "Number of queues", of=int),
    info("producers_q", "Producers per queue", of=int),
    info("consumers_q", "Consumers per queue", of=int),
    info("ch_prod", "Channels per producer", of=int),
    info("ch_cons", "Channels per consumer", of=int),
    info("size", "Size of a message body", unit="bytes", of=int),
    info("persistent", "True if messages are persistent", of=bool),
    info("block", "Block number; runs of one block are compared with each other", of=int),
    info("rep", "Number of the repetition", of=int),
    info("order_in_block", "Position in the block", of=int),
    info("start_ts", "Start time, wall clock", unit="ms since 1970, UTC", of=int),
    info("dur_s", "Planned duration of the load", unit="s", of=float),
    is_ours=False,
)  # fmt: skip
BENCH_SAMPLE: Final = Table(
    "bench_sample", "One interval of a run.",
    key("run_id", "Id of the run"),
    key("t_s", "End of the interval, from the start of the run", unit="s", of=float),
    interval("published", "Messages published", unit="messages/s", of=float),
    interval("confirmed", "Publishes confirmed", unit="messages/s", of=float),
    interval("returned", "Messages returned", unit="messages/s", of=float),
    interval("nacked", "Publishes nacked", unit="messages/s", of=float),
    interval("received", "Messages received by consumers", unit="messages/s", of=float),
    *(
        interval(f"{letter}_p{share}", f"Latency from publish to {end}, {name}", unit="µs")
        for letter, end in (("c", "confirm"), ("l", "consumer"))
        for share, name in ((50, "median"), *((each, f"{each}th percentile") for each in (75, 95, 99)))
    ),
    is_ours=False,
)  # fmt: skip
BENCH_COST: Final = Table(
    "bench_cost", "Costs of a run, including warm-up and end, and values that `bench_run` has no column for.",
    key("run_id", "Id of the run"),
    info("line", "Line of the figure that the run belongs to"),
    info("window", "Publisher window: unconfirmed publishes allowed per channel", unit="messages", of=int),
    info("prefetch", "Prefetch count of the consumers", unit="messages", of=int),
    info("generators", "Number of load generators", of=int),
    info("settings", "Settings of the broker"),
    interval("messages", "Number of messages published or received, whichever is greater", unit="messages"),
    interval("cpu_s", "CPU time of the broker", unit="s", of=float),
    interval("client_cpu_s", "CPU time of the load generators", unit="s", of=float),
    interval("other", "Fraction of the machine's CPU time used by neither", of=float),
    interval("write_bytes", "Bytes that the broker had written to disk", unit="bytes"),
    interval("wchar", "Bytes that the broker wrote to files and sockets", unit="bytes"),
    interval("flushes", "Disk flushes by any process; null if not counted", of=int | None),
    info("counters", "Leveret's own counters, logged when it stopped", of=dict[str, int]),
    is_ours=False,
)  # fmt: skip
TABLES: Final[Mapping[str, Table]] = {
    table.name: table
    for table in (
        *(QUEUE, EXCHANGE, TOPIC_PATTERN, CONNECTION, NODE, LATENCY, EVENT),
        *(BENCH_RUN, BENCH_SAMPLE, BENCH_COST),
    )
}

_SCALARS: Final[Mapping[Any, str]] = {int: "long", float: "double", str: "string", bool: "boolean"}


def _spark_type(hint: Any) -> Any:
    if (scalar := _SCALARS.get(hint)) is not None:
        return scalar
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        (some,) = [each for each in arguments if each is not NoneType]
        return _spark_type(some)
    if origin is list:
        return {"type": "array", "elementType": _spark_type(arguments[0]), "containsNull": True}
    if origin is dict:
        of_key, of_value = map(_spark_type, arguments)
        return {"type": "map", "keyType": of_key, "valueType": of_value, "valueContainsNull": True}
    if hint is Bucket:
        return _spark_struct([("i", "integer"), ("c", "long")])
    raise TypeError(f"no column type for {hint}")


def _spark_struct(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields],
    }


def spark_schema(table: str) -> dict[str, Any]:
    """Return the schema of a table in Spark's JSON form, for `StructType.fromJson`."""
    return _spark_struct([(column.name, _column_type(column)) for column in TABLES[table].columns])


def _column_type(column: Column) -> Any:
    return "integer" if column is VERSION else _spark_type(column.type)


def _simple(kind: Any) -> str:
    """Return Spark's `simpleString` of a type."""
    if isinstance(kind, str):
        return {"long": "bigint", "integer": "int"}.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{_simple(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_simple(kind['keyType'])},{_simple(kind['valueType'])}>"
    inner = ",".join(f"{field['name']}:{_simple(field['type'])}" for field in kind["fields"])
    return f"struct<{inner}>"


def columns(table: str) -> tuple[ColumnInfo, ...]:
    """Return the columns of a table, in the order they are written."""
    return tuple(
        ColumnInfo(column.name, _simple(_column_type(column)), column.kind, column.unit, column.doc)
        for column in TABLES[table].columns
    )
