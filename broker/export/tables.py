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


Version = Annotated[int, Column("info", "version of the table, 1")]


class Row(msgspec.Struct, kw_only=True):
    """The common columns of the broker's own tables."""

    v: Version = 1
    ts: Annotated[int, _info("when it was so, by the clock on the wall", "ms since 1970, UTC")]
    mono_us: Annotated[int, _info("the same by a clock that is never set: for differences", "µs")]
    node: Annotated[str, _key("the broker's name")]
    boot_id: Annotated[str, _key("one run of the broker: counters begin with it")]


class QueueInterval(Row, kw_only=True):
    """A queue. alpha, beta, gamma and delta are the states of its ready messages, and add up to `ready`."""

    vhost: Annotated[str, _key("its virtual host")]
    queue: Annotated[str, _key("its name")]
    since_ms: Annotated[
        int, _key("when it was made in this run: a queue that is deleted and made again counts anew")
    ]
    type: Annotated[str, _info("`classic` or `quorum`")]
    durable: Annotated[bool, _info("whether it survives a restart")]
    mode: Annotated[str, _info("`standard`, `consumer-ack` or `consumer-ack-light` (docs/confirms.md)")]
    ready: Annotated[int, _gauge("waiting for a consumer", "messages")]
    unacked: Annotated[int, _gauge("delivered and not settled", "messages")]
    consumers: Annotated[int, _gauge("consumers")]
    capacity: Annotated[float, _gauge("share of the last seconds with room for an arrival at its consumers")]
    promised: Annotated[int, _gauge("that publishers wait for, until consumers say something", "messages")]
    alpha: Annotated[int, _gauge("in memory", "messages")]
    beta: Annotated[int, _gauge("position in memory, body paged out: transient ones", "messages")]
    gamma: Annotated[int, _gauge("position in memory, body on disk: persistent ones", "messages")]
    delta: Annotated[int, _gauge("on disk only", "messages")]
    unacked_ram: Annotated[int, _gauge("unacked with their bodies in memory", "messages")]
    bytes_ram: Annotated[int, _gauge("content of ready messages in memory, about", "bytes")]
    bytes_disk: Annotated[int, _gauge("bodies of the messages in delta", "bytes")]
    target_ram: Annotated[float, _gauge("that may be in memory; -1 for no limit", "messages")]
    ingress_ewma: Annotated[float, _gauge("coming in, as paging judges it", "messages/s")]
    egress_ewma: Annotated[float, _gauge("going out, as paging judges it", "messages/s")]
    pub: Annotated[int, _counter("taken in")]
    delivered: Annotated[int, _counter("given to consumers or got, each time")]
    redelivered: Annotated[int, _counter("of these by consumers: not for the first time")]
    got: Annotated[int, _counter("of these by `basic.get`")]
    get_empty: Annotated[int, _counter("`basic.get` that found nothing", "")]
    acked: Annotated[int, _counter("acked")]
    requeued: Annotated[int, _counter("given back")]
    rejected: Annotated[int, _counter("rejected without requeue")]
    expired: Annotated[int, _counter("discarded because their time was over")]
    dropped: Annotated[int, _counter("discarded because the queue was too long")]
    dead_lettered: Annotated[int, _counter("discarded, and handed to a dead letter exchange")]
    purged: Annotated[int, _counter("purged")]
    accepted: Annotated[int, _counter("for which consumers made good what publishers were promised")]
    refused: Annotated[int, _counter("for which this was not so: nacked, whatever other queues say")]
    damaged: Annotated[int, _counter("reads from disk that failed", "")]
    area_ready: Annotated[int, _area("`ready` over time")]
    area_unacked: Annotated[int, _area("`unacked` over time")]
    area_alpha: Annotated[int, _area("`alpha` over time")]
    area_beta: Annotated[int, _area("`beta` over time")]
    area_gamma: Annotated[int, _area("`gamma` over time")]
    area_delta: Annotated[int, _area("`delta` over time")]
    t_ab: Annotated[int, _counter("alpha became beta")]
    t_ag: Annotated[int, _counter("alpha became gamma")]
    t_to_delta: Annotated[int, _counter("beta or gamma became delta")]
    t_from_delta: Annotated[int, _counter("delta were read back; they count as beta or gamma then")]
    t_unacked_out: Annotated[int, _counter("unacked ones lost their bodies in memory")]


class ExchangeInterval(Row, kw_only=True):
    """An exchange. `pub_in` = `routed` + `unroutable_returned` + `unroutable_dropped`."""

    vhost: Annotated[str, _key("its virtual host")]
    exchange: Annotated[str, _key("its name; empty for the default exchange")]
    since_ms: Annotated[int, _key("when it was first seen in this run")]
    type: Annotated[str, _info("its type")]
    bindings: Annotated[int, _gauge("bindings of which it is the source")]
    pub_in: Annotated[int, _counter("published to it by clients, or as dead letters")]
    routed: Annotated[int, _counter("of these: that had a queue")]
    unroutable_returned: Annotated[int, _counter("that had none and were returned")]
    unroutable_dropped: Annotated[int, _counter("that had none and were dropped")]
    fanout_sum: Annotated[int, _counter("copies: the number of queues, summed over messages")]
    route_lookups: Annotated[int, _counter("for which no connection remembered the route", "")]


class TopicPattern(Row, kw_only=True):
    """A binding key of a topic exchange, one of the 64 that matched most messages since the exchange was first seen."""

    vhost: Annotated[str, _key("the exchange's virtual host")]
    exchange: Annotated[str, _key("the exchange")]
    pattern: Annotated[str, _key("the binding key")]
    since_ms: Annotated[int, _key("when the exchange was first seen in this run")]
    matches: Annotated[int, _counter("whose routing key it matched, as far as keys were told apart")]
    error: Annotated[
        int, _counter("of the exchange whose keys were not told apart: what `matches` may be short of")
    ]


class ConnInterval(Row, kw_only=True):
    """A connection."""

    conn_id: Annotated[str, _key("`client:port -> broker:port`")]
    since_ms: Annotated[int, _key("when it was first seen: ports are used again")]
    user: Annotated[str, _info("who logged in")]
    vhost: Annotated[str, _info("its virtual host")]
    peer: Annotated[str, _info("the client's address")]
    client: Annotated[str, _info("what the client calls itself, product and version")]
    state: Annotated[str, _info("`running`, `flow`, `blocking`, `blocked` or `closing`")]
    channels: Annotated[int, _gauge("channels")]
    consumers: Annotated[int, _gauge("consumers")]
    unacked: Annotated[int, _gauge("delivered and not settled", "messages")]
    unconfirmed: Annotated[int, _gauge("published and neither confirmed nor nacked", "messages")]
    prefetch: Annotated[
        int, _gauge("sum of its consumers' prefetch counts; 0 for one without a limit", "messages")
    ]
    write_buffer_bytes: Annotated[int, _gauge("that the client has not taken yet", "bytes")]
    recv_bytes: Annotated[int, _counter("received", "bytes")]
    sent_bytes: Annotated[int, _counter("sent", "bytes")]
    published: Annotated[int, _counter("published on its channels")]
    returned: Annotated[int, _counter("of these: returned as unroutable")]
    confirmed: Annotated[int, _counter("confirmed to it")]
    nacked: Annotated[int, _counter("nacked to it")]
    delivered: Annotated[int, _counter("delivered to it")]
    acked: Annotated[int, _counter("acked by it")]


class NodeInterval(Row, kw_only=True):
    """The broker."""

    connections: Annotated[int, _gauge("connections")]
    channels: Annotated[int, _gauge("channels")]
    queues: Annotated[int, _gauge("queues")]
    consumers: Annotated[int, _gauge("consumers")]
    paused: Annotated[
        int, _gauge("connections that are made to wait, for queues, for the disk or by an alarm")
    ]
    ready: Annotated[int, _gauge("ready in all queues", "messages")]
    unacked: Annotated[int, _gauge("unacked in all queues", "messages")]
    rss: Annotated[int, _gauge("resident memory of the process, mapped files included", "bytes")]
    mem_used: Annotated[int, _gauge("memory as the memory alarm judges it", "bytes")]
    mem_limit: Annotated[int, _gauge("above which publishers are blocked", "bytes")]
    disk_free: Annotated[int, _gauge("that can still be written; -1 for a broker without a disk", "bytes")]
    disk_limit: Annotated[int, _gauge("below which publishers are blocked", "bytes")]
    fds: Annotated[int, _gauge("open file descriptors")]
    alarms: Annotated[list[str], _info("the alarms that are raised: `memory`, `disk`")]
    published: Annotated[int, _counter("published by clients")]
    returned: Annotated[int, _counter("returned as unroutable")]
    confirmed: Annotated[int, _counter("confirmed to publishers")]
    nacked: Annotated[int, _counter("nacked to publishers")]
    delivered: Annotated[int, _counter("given to clients")]
    acked: Annotated[int, _counter("acked by clients")]
    cpu_user_us: Annotated[int, _counter("processor time outside the kernel", "µs")]
    cpu_sys_us: Annotated[int, _counter("processor time in the kernel", "µs")]
    commits: Annotated[int, _counter("commits", "")]
    commit_bytes: Annotated[int, _counter("given to commits", "bytes")]
    commit_messages: Annotated[int, _counter("copies of persistent messages written")]
    paged_out: Annotated[int, _counter("copies of transient messages written")]
    read_messages: Annotated[int, _counter("whose bodies were read from disk")]
    read_blocks: Annotated[int, _counter("blocks looked up for them", "")]
    read_bodies: Annotated[int, _counter("bodies that lay apart from their records looked up for them", "")]
    connections_opened: Annotated[int, _counter("connections", "")]
    connections_closed: Annotated[int, _counter("connections", "")]
    channels_opened: Annotated[int, _counter("channels", "")]
    channels_closed: Annotated[int, _counter("channels", "")]
    queues_created: Annotated[int, _counter("queues", "")]
    queues_deleted: Annotated[int, _counter("queues", "")]
    loop_lag_max_us: Annotated[int, _sum("by which the event loop was late, at most", "µs")]
    loop_lag_p99_us: Annotated[int, _sum("by which it was late, but for one look in a hundred", "µs")]
    export_lost: Annotated[int, _counter("rows that were not written", "")]


class Bucket(msgspec.Struct):
    """One bucket of a histogram: its number and count."""

    i: int
    c: int


class LatencyHist(Row, kw_only=True):
    """Durations measured in this interval, as a mergeable histogram (scheme `ll5`)."""

    scope: Annotated[str, _key("`node` or `queue`")]
    vhost: Annotated[str, _key("the queue's virtual host; empty for the node")]
    name: Annotated[str, _key("the queue; empty for the node")]
    metric: Annotated[
        str,
        _key("`confirm`, `commit`, `loop_lag`; of queues `deliver`, `ack`, `residence`"),
    ]
    mode: Annotated[str, _key("of `confirm`: the confirm mode; else that of the queue, or empty")]
    scheme: Annotated[str, _info("how values are put into buckets: `ll5`")]
    count: Annotated[
        int, _sum("how many; of messages some are measured, and each counts for its neighbours too")
    ]
    sum_us: Annotated[int, _sum("their sum", "µs")]
    min_us: Annotated[int, _sum("the least", "µs")]
    max_us: Annotated[int, _sum("the greatest", "µs")]
    b: Annotated[list[Bucket], _sum("buckets `i` with their counts `c`, ascending; empty ones are missing")]


class Event(Row, kw_only=True):
    """An event of the broker."""

    kind: Annotated[str, _key("what: see below")]
    vhost: Annotated[str, _key("where; empty for the node")]
    name: Annotated[str, _key("to what or whom")]
    detail: Annotated[dict[str, str], _info("what else is known")]


class BenchRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a benchmark, under one load."""

    v: Version = 1
    run_id: Annotated[str, _key("the run")]
    git: Annotated[str, _info("the revision that was measured")]
    host: Annotated[str, _info("the machine")]
    cpu: Annotated[str, _info("its processor")]
    kernel: Annotated[str, _info("its kernel")]
    broker: Annotated[str, _info("which broker")]
    version: Annotated[str, _info("of what version")]
    mode: Annotated[str, _info("confirm mode")]
    sync: Annotated[str, _info("what a commit waits for")]
    queues: Annotated[int, _info("queues")]
    producers_q: Annotated[int, _info("producers of each queue")]
    consumers_q: Annotated[int, _info("consumers of each queue")]
    ch_prod: Annotated[int, _info("channels of each producer")]
    ch_cons: Annotated[int, _info("channels of each consumer")]
    size: Annotated[int, _info("of a message's body", "bytes")]
    persistent: Annotated[bool, _info("whether messages are")]
    block: Annotated[int, _info("runs of a block are compared with each other")]
    rep: Annotated[int, _info("which repetition")]
    order_in_block: Annotated[int, _info("which place in its block")]
    start_ts: Annotated[int, _info("when it began, by the clock on the wall", "ms since 1970, UTC")]
    dur_s: Annotated[float, _info("how long the load was to last", "s")]


class BenchSample(msgspec.Struct, frozen=True, kw_only=True):
    """One interval of a run."""

    v: Version = 1
    run_id: Annotated[str, _key("the run")]
    t_s: Annotated[float, _key("when the interval ended, from the start of the run", "s")]
    published: Annotated[float, _sum("published", "messages/s")]
    confirmed: Annotated[float, _sum("confirmed", "messages/s")]
    returned: Annotated[float, _sum("returned", "messages/s")]
    nacked: Annotated[float, _sum("nacked", "messages/s")]
    received: Annotated[float, _sum("received", "messages/s")]
    c_p50: Annotated[int, _sum("from publish to confirm, median", "µs")]
    c_p75: Annotated[int, _sum("the same, 75th percentile", "µs")]
    c_p95: Annotated[int, _sum("the same, 95th percentile", "µs")]
    c_p99: Annotated[int, _sum("the same, 99th percentile", "µs")]
    l_p50: Annotated[int, _sum("from publish to consumer, median", "µs")]
    l_p75: Annotated[int, _sum("the same, 75th percentile", "µs")]
    l_p95: Annotated[int, _sum("the same, 95th percentile", "µs")]
    l_p99: Annotated[int, _sum("the same, 99th percentile", "µs")]


class BenchCost(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of a run, including warm-up and end, and values that `bench_run` has no column for."""

    v: Version = 1
    run_id: Annotated[str, _key("the run")]
    line: Annotated[str, _info("the line of the figure it belongs to")]
    window: Annotated[int, _info("publishes without a confirm that a channel may have", "messages")]
    prefetch: Annotated[int, _info("prefetch of consumers", "messages")]
    generators: Annotated[int, _info("load generators")]
    settings: Annotated[str, _info("of the broker")]
    messages: Annotated[int, _sum("the greater of published and received", "messages")]
    cpu_s: Annotated[float, _sum("the broker's processor time", "s")]
    client_cpu_s: Annotated[float, _sum("the load generators' processor time", "s")]
    other: Annotated[float, _sum("share of the machine's processor time that went to neither")]
    write_bytes: Annotated[int, _sum("the broker had written to the disk", "bytes")]
    wchar: Annotated[int, _sum("the broker wrote, to files or sockets", "bytes")]
    flushes: Annotated[
        int | None, _sum("of the disk, whoever asked for them; null where they are not counted")
    ]
    counters: Annotated[dict[str, int], _info("what Leveret counted itself and logged when it stopped")]
