"""Declaration of the export's tables, the source of the written rows, docs/export.md and the readers' schemas.

A struct is a table and an annotation a column. `kind` says how to use a column: a *key* identifies an object; a *gauge*
is a current value; a *counter* counts from the object's creation, so the difference of two rows is what happened in
between, and a lost row costs resolution only; an *area* is a counter of message-microseconds, which gives exact
averages over time (docs/export.md); a *sum* covers only this row's interval.
"""

from typing import Annotated, Final, Literal, NamedTuple

import msgspec

Kind = Literal["key", "info", "gauge", "counter", "area", "sum"]
AREA_MODULUS: Final = 2**62
"""Areas are counted modulo this, so that they fit into 64 bits everywhere: differences must be taken modulo it, too."""


class Column(NamedTuple):
    """The description of a column, beside its name and type."""

    kind: Kind
    doc: str
    unit: str = ""


def _key(doc: str, unit: str = "") -> Column:
    return Column("key", doc, unit)


def _info(doc: str, unit: str = "") -> Column:
    return Column("info", doc, unit)


def _gauge(doc: str, unit: str = "") -> Column:
    return Column("gauge", doc, unit)


def _counter(doc: str, unit: str = "messages") -> Column:
    return Column("counter", doc, unit)


def _area(doc: str) -> Column:
    return Column("area", doc, "message-µs")


def _sum(doc: str, unit: str = "") -> Column:
    return Column("sum", doc, unit)


Version = Annotated[int, Column("info", "Version of the table, 1")]


class Row(msgspec.Struct, kw_only=True):
    """The common columns of the broker's own tables."""

    v: Version = 1
    ts: Annotated[int, _info("Time of the sample, wall clock", "ms since 1970, UTC")]
    mono_us: Annotated[int, _info("Time of the sample, monotonic clock: use it for differences", "µs")]
    node: Annotated[str, _key("Node name")]
    boot_id: Annotated[str, _key("Id of this run of the broker; counters start at 0 in each run")]


class QueueInterval(Row, kw_only=True):
    """One sample of a queue. alpha, beta, gamma and delta count ready messages by state and add up to `ready`."""

    vhost: Annotated[str, _key("Virtual host")]
    queue: Annotated[str, _key("Name")]
    since_ms: Annotated[
        int,
        _key(
            "Creation time in this run (epoch ms); distinguishes a queue from an earlier one of the same name"
        ),
    ]
    type: Annotated[str, _info("Queue type, `classic` or `quorum`")]
    durable: Annotated[bool, _info("True if the queue is durable")]
    mode: Annotated[
        str, _info("Confirm mode: `standard`, `consumer-ack` or `consumer-ack-light` (docs/confirms.md)")
    ]
    ready: Annotated[int, _gauge("Ready messages", "messages")]
    unacked: Annotated[int, _gauge("Unacknowledged messages", "messages")]
    consumers: Annotated[int, _gauge("Consumers")]
    capacity: Annotated[
        float,
        _gauge(
            "Consumer capacity: fraction of the last seconds in which a message could be delivered immediately"
        ),
    ]
    promised: Annotated[
        int, _gauge("Messages whose publish is unconfirmed until a consumer settles them", "messages")
    ]
    alpha: Annotated[int, _gauge("Ready messages fully in memory", "messages")]
    beta: Annotated[
        int, _gauge("Ready transient messages with the position in memory and the body paged out", "messages")
    ]
    gamma: Annotated[
        int, _gauge("Ready persistent messages with the position in memory and the body on disk", "messages")
    ]
    delta: Annotated[int, _gauge("Ready messages on disk only", "messages")]
    unacked_ram: Annotated[int, _gauge("Unacknowledged messages with the body in memory", "messages")]
    bytes_ram: Annotated[int, _gauge("Approximate size of the ready messages in memory", "bytes")]
    bytes_disk: Annotated[int, _gauge("Size of the bodies of messages in delta", "bytes")]
    target_ram: Annotated[float, _gauge("Messages that paging allows in memory; -1: no limit", "messages")]
    ingress_ewma: Annotated[float, _gauge("Moving average of arrivals, as used by paging", "messages/s")]
    egress_ewma: Annotated[float, _gauge("Moving average of departures, as used by paging", "messages/s")]
    pub: Annotated[int, _counter("Messages enqueued")]
    delivered: Annotated[int, _counter("Deliveries to consumers and by `basic.get`, redeliveries included")]
    redelivered: Annotated[int, _counter("Redeliveries to consumers")]
    got: Annotated[int, _counter("Deliveries by `basic.get`")]
    get_empty: Annotated[int, _counter("`basic.get` requests that found the queue empty", "")]
    acked: Annotated[int, _counter("Acknowledged by consumers")]
    requeued: Annotated[int, _counter("Requeued")]
    rejected: Annotated[int, _counter("Rejected without requeue")]
    expired: Annotated[int, _counter("Discarded because their TTL expired")]
    dropped: Annotated[int, _counter("Discarded because of the queue's length limit")]
    dead_lettered: Annotated[int, _counter("Dead-lettered, whatever the reason")]
    purged: Annotated[int, _counter("Removed by `queue.purge`")]
    accepted: Annotated[
        int,
        _counter("Publishes whose copy in this queue was acknowledged by a consumer, in a consumer-ack mode"),
    ]
    refused: Annotated[
        int,
        _counter("Publishes nacked because their copy in this queue was discarded, in a consumer-ack mode"),
    ]
    damaged: Annotated[int, _counter("Messages or blocks that could not be read from disk", "")]
    area_ready: Annotated[int, _area("Time integral of `ready`")]
    area_unacked: Annotated[int, _area("Time integral of `unacked`")]
    area_alpha: Annotated[int, _area("Time integral of `alpha`")]
    area_beta: Annotated[int, _area("Time integral of `beta`")]
    area_gamma: Annotated[int, _area("Time integral of `gamma`")]
    area_delta: Annotated[int, _area("Time integral of `delta`")]
    t_ab: Annotated[int, _counter("Transitions from alpha to beta")]
    t_ag: Annotated[int, _counter("Transitions from alpha to gamma")]
    t_to_delta: Annotated[int, _counter("Transitions from beta or gamma to delta")]
    t_from_delta: Annotated[int, _counter("Positions read back from delta (they become beta or gamma)")]
    t_unacked_out: Annotated[int, _counter("Unacknowledged messages whose bodies were evicted from memory")]


class ExchangeInterval(Row, kw_only=True):
    """One sample of an exchange. `pub_in` = `routed` + `unroutable_returned` + `unroutable_dropped`."""

    vhost: Annotated[str, _key("Virtual host")]
    exchange: Annotated[str, _key("Name; empty for the default exchange")]
    since_ms: Annotated[int, _key("Time of the first sample in this run (epoch ms)")]
    type: Annotated[str, _info("Exchange type")]
    bindings: Annotated[int, _gauge("Bindings with this exchange as the source")]
    pub_in: Annotated[int, _counter("Messages published to the exchange by clients or by dead-lettering")]
    routed: Annotated[int, _counter("Messages routed to at least one queue")]
    unroutable_returned: Annotated[
        int, _counter("Unroutable messages returned to the publisher (`mandatory`)")
    ]
    unroutable_dropped: Annotated[int, _counter("Unroutable messages dropped")]
    fanout_sum: Annotated[int, _counter("Copies created: the number of queues, summed over all messages")]
    route_lookups: Annotated[int, _counter("Messages whose route was not cached by the connection", "")]


class TopicPattern(Row, kw_only=True):
    """A binding key of a topic exchange, one of the 64 that matched most messages since the exchange was first seen."""

    vhost: Annotated[str, _key("Virtual host of the exchange")]
    exchange: Annotated[str, _key("Exchange name")]
    pattern: Annotated[str, _key("Binding key")]
    since_ms: Annotated[int, _key("Time of the exchange's first sample in this run (epoch ms)")]
    matches: Annotated[
        int, _counter("Messages whose routing key it matched, among those counted per routing key")
    ]
    error: Annotated[
        int,
        _counter(
            "Messages of the exchange not counted per routing key: the most that `matches` can be too low by"
        ),
    ]


class ConnInterval(Row, kw_only=True):
    """One sample of a connection."""

    conn_id: Annotated[str, _key("Connection name, `client:port -> broker:port`")]
    since_ms: Annotated[
        int, _key("Time of the first sample (epoch ms); distinguishes connections that reuse a port")
    ]
    user: Annotated[str, _info("User name")]
    vhost: Annotated[str, _info("Virtual host")]
    peer: Annotated[str, _info("Address of the client")]
    client: Annotated[str, _info("Product and version that the client reports")]
    state: Annotated[str, _info("State: `running`, `flow`, `blocking`, `blocked` or `closing`")]
    channels: Annotated[int, _gauge("Open channels")]
    consumers: Annotated[int, _gauge("Consumers")]
    unacked: Annotated[int, _gauge("Unacknowledged messages", "messages")]
    unconfirmed: Annotated[int, _gauge("Publishes not yet confirmed or nacked", "messages")]
    prefetch: Annotated[
        int, _gauge("Sum of the consumers' prefetch counts; consumers without a limit count as 0", "messages")
    ]
    write_buffer_bytes: Annotated[int, _gauge("Outgoing data not yet accepted by the socket", "bytes")]
    recv_bytes: Annotated[int, _counter("Bytes received", "bytes")]
    sent_bytes: Annotated[int, _counter("Bytes sent", "bytes")]
    published: Annotated[int, _counter("Messages published")]
    returned: Annotated[int, _counter("Messages returned as unroutable")]
    confirmed: Annotated[int, _counter("Publishes confirmed")]
    nacked: Annotated[int, _counter("Publishes nacked")]
    delivered: Annotated[int, _counter("Messages delivered")]
    acked: Annotated[int, _counter("Deliveries acknowledged")]


class NodeInterval(Row, kw_only=True):
    """One sample of the broker as a whole."""

    connections: Annotated[int, _gauge("Open connections")]
    channels: Annotated[int, _gauge("Open channels")]
    queues: Annotated[int, _gauge("Queues")]
    consumers: Annotated[int, _gauge("Consumers")]
    paused: Annotated[
        int,
        _gauge(
            "Connections that the broker does not read from, because of a queue's backlog, a pending commit or an alarm"
        ),
    ]
    ready: Annotated[int, _gauge("Ready messages in all queues", "messages")]
    unacked: Annotated[int, _gauge("Unacknowledged messages in all queues", "messages")]
    rss: Annotated[int, _gauge("Resident memory of the process, including mapped files", "bytes")]
    mem_used: Annotated[int, _gauge("Memory use as measured for the memory alarm", "bytes")]
    mem_limit: Annotated[int, _gauge("Memory use above which publishers are blocked", "bytes")]
    disk_free: Annotated[int, _gauge("Free disk space; -1 for a broker without a data directory", "bytes")]
    disk_limit: Annotated[int, _gauge("Free disk space below which publishers are blocked", "bytes")]
    fds: Annotated[int, _gauge("Open file descriptors")]
    alarms: Annotated[list[str], _info("Alarms in effect: `memory`, `disk`")]
    published: Annotated[int, _counter("Messages published by clients")]
    returned: Annotated[int, _counter("Messages returned as unroutable")]
    confirmed: Annotated[int, _counter("Publishes confirmed")]
    nacked: Annotated[int, _counter("Publishes nacked")]
    delivered: Annotated[int, _counter("Messages delivered to clients")]
    acked: Annotated[int, _counter("Deliveries acknowledged by clients")]
    cpu_user_us: Annotated[int, _counter("CPU time in user mode", "µs")]
    cpu_sys_us: Annotated[int, _counter("CPU time in kernel mode", "µs")]
    commits: Annotated[int, _counter("Commits", "")]
    commit_bytes: Annotated[int, _counter("Bytes written by commits", "bytes")]
    commit_messages: Annotated[int, _counter("Copies of persistent messages written")]
    paged_out: Annotated[int, _counter("Copies of transient messages written (paged out)")]
    read_messages: Annotated[int, _counter("Messages whose bodies were read from disk")]
    read_blocks: Annotated[int, _counter("Blocks read for them", "")]
    read_bodies: Annotated[int, _counter("Separately stored bodies read for them", "")]
    connections_opened: Annotated[int, _counter("Connections opened", "")]
    connections_closed: Annotated[int, _counter("Connections closed", "")]
    channels_opened: Annotated[int, _counter("Channels opened", "")]
    channels_closed: Annotated[int, _counter("Channels closed", "")]
    queues_created: Annotated[int, _counter("Queues created", "")]
    queues_deleted: Annotated[int, _counter("Queues deleted", "")]
    loop_lag_max_us: Annotated[int, _sum("Greatest delay of the event loop", "µs")]
    loop_lag_p99_us: Annotated[int, _sum("99th percentile of the delay of the event loop", "µs")]
    export_lost: Annotated[int, _counter("Rows of the export that could not be written", "")]


class Bucket(msgspec.Struct):
    """One bucket of a histogram: its number and count."""

    i: int
    c: int


class LatencyHist(Row, kw_only=True):
    """Durations measured in this interval, as a mergeable histogram (scheme `ll5`)."""

    scope: Annotated[str, _key("Scope of the measurement, `node` or `queue`")]
    vhost: Annotated[str, _key("Virtual host of the queue; empty for the node")]
    name: Annotated[str, _key("Name of the queue; empty for the node")]
    metric: Annotated[
        str,
        _key("For the node `confirm`, `commit`, `loop_lag`; for queues `deliver`, `ack`, `residence`"),
    ]
    mode: Annotated[str, _key("Confirm mode: of the publishes (`confirm`), otherwise of the queue, or empty")]
    scheme: Annotated[str, _info("Bucket scheme, `ll5`")]
    count: Annotated[
        int,
        _sum(
            "Number of values; messages are sampled, and each sampled one is weighted by those it stands for"
        ),
    ]
    sum_us: Annotated[int, _sum("Sum of the values", "µs")]
    min_us: Annotated[int, _sum("Smallest value", "µs")]
    max_us: Annotated[int, _sum("Greatest value", "µs")]
    b: Annotated[
        list[Bucket], _sum("Bucket numbers `i` with their counts `c`, ascending, without empty buckets")
    ]


class Event(Row, kw_only=True):
    """An event of the broker."""

    kind: Annotated[str, _key("Kind of event (see below)")]
    vhost: Annotated[str, _key("Virtual host; empty for the node")]
    name: Annotated[str, _key("Name of the object or user")]
    detail: Annotated[dict[str, str], _info("Further details")]


class BenchRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a benchmark with one configuration of the load."""

    v: Version = 1
    run_id: Annotated[str, _key("Id of the run")]
    git: Annotated[str, _info("Measured revision")]
    host: Annotated[str, _info("Host name")]
    cpu: Annotated[str, _info("Processor model")]
    kernel: Annotated[str, _info("Kernel version")]
    broker: Annotated[str, _info("Broker")]
    version: Annotated[str, _info("Version of the broker")]
    mode: Annotated[str, _info("Confirm mode")]
    sync: Annotated[str, _info("Durability that a commit waits for")]
    queues: Annotated[int, _info("Number of queues")]
    producers_q: Annotated[int, _info("Producers per queue")]
    consumers_q: Annotated[int, _info("Consumers per queue")]
    ch_prod: Annotated[int, _info("Channels per producer")]
    ch_cons: Annotated[int, _info("Channels per consumer")]
    size: Annotated[int, _info("Size of a message body", "bytes")]
    persistent: Annotated[bool, _info("True if messages are persistent")]
    block: Annotated[int, _info("Block number; runs of one block are compared with each other")]
    rep: Annotated[int, _info("Number of the repetition")]
    order_in_block: Annotated[int, _info("Position in the block")]
    start_ts: Annotated[int, _info("Start time, wall clock", "ms since 1970, UTC")]
    dur_s: Annotated[float, _info("Planned duration of the load", "s")]


class BenchSample(msgspec.Struct, frozen=True, kw_only=True):
    """One interval of a run."""

    v: Version = 1
    run_id: Annotated[str, _key("Id of the run")]
    t_s: Annotated[float, _key("End of the interval, from the start of the run", "s")]
    published: Annotated[float, _sum("Messages published", "messages/s")]
    confirmed: Annotated[float, _sum("Publishes confirmed", "messages/s")]
    returned: Annotated[float, _sum("Messages returned", "messages/s")]
    nacked: Annotated[float, _sum("Publishes nacked", "messages/s")]
    received: Annotated[float, _sum("Messages received by consumers", "messages/s")]
    c_p50: Annotated[int, _sum("Latency from publish to confirm, median", "µs")]
    c_p75: Annotated[int, _sum("Latency from publish to confirm, 75th percentile", "µs")]
    c_p95: Annotated[int, _sum("Latency from publish to confirm, 95th percentile", "µs")]
    c_p99: Annotated[int, _sum("Latency from publish to confirm, 99th percentile", "µs")]
    l_p50: Annotated[int, _sum("Latency from publish to consumer, median", "µs")]
    l_p75: Annotated[int, _sum("Latency from publish to consumer, 75th percentile", "µs")]
    l_p95: Annotated[int, _sum("Latency from publish to consumer, 95th percentile", "µs")]
    l_p99: Annotated[int, _sum("Latency from publish to consumer, 99th percentile", "µs")]


class BenchCost(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of a run, including warm-up and end, and values that `bench_run` has no column for."""

    v: Version = 1
    run_id: Annotated[str, _key("Id of the run")]
    line: Annotated[str, _info("Line of the figure that the run belongs to")]
    window: Annotated[int, _info("Publisher window: unconfirmed publishes allowed per channel", "messages")]
    prefetch: Annotated[int, _info("Prefetch count of the consumers", "messages")]
    generators: Annotated[int, _info("Number of load generators")]
    settings: Annotated[str, _info("Settings of the broker")]
    messages: Annotated[
        int, _sum("Number of messages published or received, whichever is greater", "messages")
    ]
    cpu_s: Annotated[float, _sum("CPU time of the broker", "s")]
    client_cpu_s: Annotated[float, _sum("CPU time of the load generators", "s")]
    other: Annotated[float, _sum("Fraction of the machine's CPU time used by neither")]
    write_bytes: Annotated[int, _sum("Bytes that the broker had written to disk", "bytes")]
    wchar: Annotated[int, _sum("Bytes that the broker wrote to files and sockets", "bytes")]
    flushes: Annotated[int | None, _sum("Disk flushes by any process; null if not counted")]
    counters: Annotated[dict[str, int], _info("Leveret's own counters, logged when it stopped")]
