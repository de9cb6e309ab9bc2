"""The page of the exported tables, from their declaration."""
# ruff: noqa: E501 - a page of prose and tables, in lines as docs have them

from collections.abc import Iterator

from leveret.broker.counters.sampling import SAMPLE_EVERY
from leveret.broker.export.tables import AREA_MODULUS, TABLES, columns

EVENTS = {  # descriptions of the kinds of events
    "start": "The broker started and accepts connections; `name` is its version",
    "stop": "The broker began to stop",
    "connection_opened": "A connection was opened; `name` is the connection, `detail` has `user`, `peer` and `client`",
    "connection_closed": "A connection was closed; `name` is the connection, `detail` has `user`, `peer` and `reason`",
    "auth_failed": "A login failed; `name` is the user, `detail` has `peer` and `mechanism`",
    "queue_created": "A queue was created; `name` is the queue",
    "queue_paused": "An operator paused the deliveries of the queue `name` to its consumers",
    "queue_resumed": "An operator resumed the deliveries of the queue `name`",
    "queue_deleted": "A queue was deleted; `name` is the queue, `detail` has its number of `ready` messages",
    "consumer_added": "A consumer of the queue `name` was added; `detail` has its `user` and `connection`",
    "consumer_removed": "A consumer of the queue `name` ended; `detail` has its `user` and `connection`",
    "exchange_created": "An exchange was created; `name` is the exchange, `detail` has its `type`",
    "exchange_deleted": "An exchange was deleted; `name` is the exchange",
    "alarm_raised": "A resource alarm was raised and publishers are blocked; `name` is `memory` or `disk`",
    "alarm_cleared": "A resource alarm was cleared; publishers continue when no alarm is left",
    "policies_changed": "Policies changed and were applied to the queues and exchanges of the virtual host",
    "trap": "Publishers and consumers of the queue `name` appear deadlocked (docs/confirms.md)",
    "export_gap": "The export resumed after a failure; `detail` has the number of `lost` rows",
}

_HEAD = f"""\
# Exported tables

This page is generated from the declaration of the tables (`make docs`); edit `broker/export/tables.py` or
`docs/generate/export.py`, not this file.

If `export.dir` is set ([configuration](configuration.md#export-for-analysis)) the broker exports the state of its
objects every `export.interval` as JSON Lines, which Spark, DuckDB, pandas or `jq` can read, and from which
`leveret analyze` creates reports. Nothing is written per message, and clients never wait for the export: if writing
fails the broker logs one warning, continues without the export, and tries again every minute.

## Files

`<export.dir>/<table>/dt=YYYY-MM-DD/hour=HH/node=<node>/<table>-<ms>-<number>.jsonl`

- Times are UTC. The folders of a row are determined by its `ts`.
- The name of an unfinished file begins with a dot and ends with `.tmp`. The file is renamed when it is finished: after
  `export.rotate_interval` or `export.rotate_size`, at a new hour, and when the broker stops. Files left by a crash are
  finished at the next start, up to their last complete row.
- Days older than `export.retention` are removed, for this node only: several brokers can write to one
  directory under different names (`node_name`). If another broker of the same name holds the lock
  `.node=<node>.lock`, the export logs a warning and starts when that broker has stopped.
- `node=` contains the node's name, percent-encoded except for `@`, letters, digits and `_.-~`.
- A line ends with `\\n`; the other line separators of Unicode are escaped. Bytes in a client's own description that are
  not UTF-8 are written as `\\udcff` and the like.
- Rows have all columns, in the order below. Columns may be added at the end; `v` changes if the meaning of one does.

## Stream

With `export.stream_vhost` the rows are messages of the [stream](howto/streams.md) `leveret.telemetry`, too, with or without
files: the body is a line, the property `type` the table. It keeps `export.retention` and at most 1 GiB, unless a stream of this
name was declared before. A user needs to read it, and sees there what the tag `monitoring` shows. While the disk is full, or
behind for seconds, rows are dropped, counted in `export_lost`, and one warning is logged; those of the last seconds before a stop are in files only.
`leveret analyze --follow` [reads it](analysis.md#long-term-data-and-following).

## In Python

`leveret.export` reads the files into Arrow tables, from which pandas makes data frames. It needs neither Spark nor a
running broker, but two packages: `pip install 'leveret[notebook]'`.

```python
from leveret import export

export.tables("/var/lib/leveret/export")  # the tables that have files
export.columns("queue_interval")  # name, type, kind, unit and description of each column
rows = export.read("/var/lib/leveret/export", "queue_interval", since="2026-11-24T14:00", queue="orders")
frame = export.rates(rows.to_pandas(), "queue_interval", "pub", "area_ready")  # adds pub_per_s and mean_ready
waits = export.read("/var/lib/leveret/export", "latency_hist", queue="orders")
export.percentile(waits["b"], 0.99)  # microseconds, of all these histograms together
```

`read(directory, table, *, since=None, until=None, vhost=None, queue=None, only=None)`: `directory` is `export.dir`, or
`OUTPUT/tables` of `leveret analyze compact`; `since` and `until` are `datetime` objects or ISO 8601, in UTC unless they name a zone, and
folders of other hours are not read; `only` are the columns wanted. Rows are ordered by node and time. Columns of the unit "ms since 1970, UTC"
(`ts`) have Arrow's type `timestamp[ms, tz=UTC]`; of the types below, `bigint` is `int64`, `int` `int32`,
`double`, `string` and `boolean` are themselves, `array` is `list`. The metadata of a column has its kind, unit and description. A condition
that does not apply to a table, an unknown column, and a line that is no complete row raise `ExportError`, which names it.
[A notebook](howto/telemetry.ipynb) makes rates, a backlog and percentiles of an export.

## How to read it

- **Counters are cumulative.** They count from the creation of their object, so the difference between two rows is what
  happened in between, and a missing row costs resolution only. Counters start at 0 with each start of the broker
  (`boot_id`) and with each new object of the same name (`since_ms`): take differences between rows with equal *key*
  columns, ordered by `mono_us`.
- **Idle objects are not written every time.** A queue, exchange or connection gets a row when it has changed, and once
  a minute otherwise. A deleted object gets a last row with its final state; one that was created and deleted between
  two samples has events only.
- **Areas** are time integrals: message-microseconds. The difference of an area divided by the difference of `mono_us`
  is the exact average number of messages in that time. Divided by the number of messages that left, it is their average
  time (Little's law): in the ready state for `area_ready`, in the queue for the sum of `area_ready` and `area_unacked`.
  The area of an idle queue continues to grow by the number of messages in its last row. Areas are
  counted modulo 2^{AREA_MODULUS.bit_length() - 1}, so take differences modulo that. A message counts from the read that received it until its
  delivery (or other outcome) is written to the socket; a change of state alone, without other activity in the queue, counts from the next
  row on.
- **Histograms** cover one interval. Add the counts of equal buckets over time, queues or nodes, and find the bucket that
  contains a percentile; do not average percentiles. Bucket `i` is the value `i` below 32; above, with
  `s = (i >> 5) - 2`, it starts at `((i & 31) + 32) << s` and spans `1 << s` values, at most 3.2 % of the value.
  Buckets 32 to 63 do not occur.
- **Latencies of messages are sampled**: at most one in {SAMPLE_EVERY} messages of a queue or channel is measured, at most one per turn,
  and fewer in long queues. Each sample is weighted by the messages since the previous one, so `count` approximates the
  number of messages and percentiles are those of messages. If one read contains publishes of several confirm modes, the
  sample counts for the mode of the last. `commit` and `loop_lag` are complete.

Metrics of `latency_hist`:

| `metric` | from | to |
|---|---|---|
| `confirm` | the publish is read | its confirm (or nack) is written to the socket |
| `deliver` | the publish is read | it leaves the ready state: delivered and written to the socket, fetched by `basic.get`, expired or dropped |
| `residence` | the publish is read | it is settled; settlements are matched to publishes in order, so the average is exact, the tail only if consumers are alike |
| `ack` | a message is delivered | it is acked or rejected |
| `commit` | the journal is cut | the commit is on disk and its confirms are released |
| `loop_lag` | a timer is due | the event loop runs it |

A topic exchange counts up to 1,024 routing keys separately. If there are more, the keys used least since the previous
sample are replaced, so that frequently used keys are eventually counted one by one; the messages that were not counted
per key are `error` in `topic_pattern`.

If consumers take messages out of order (priority queues, requeues), `deliver` still assumes the order of arrival: the
average is exact, percentiles are approximate.

## Tables

*Kind* states how to use a column: a **key** identifies an object, **info** describes it, a **gauge** is a current value,
**counter** and **area** are explained above, a **sum** covers only this row's interval.
"""


def render() -> str:
    """Return the whole page, Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    for name, table in TABLES.items():
        yield f"### {name}"
        yield ""
        yield table.doc
        yield ""
        yield "| Column | Type | Kind | Description |"
        yield "|---|---|---|---|"
        for column in columns(name):
            unit = f" ({column.unit})" if column.unit else ""
            yield f"| `{column.name}` | `{column.type}` | {column.kind} | {column.doc}{unit} |"
        yield ""
    yield "## Events"
    yield ""
    yield "| `kind` | Event |"
    yield "|---|---|"
    for kind, doc in EVENTS.items():
        yield f"| `{kind}` | {doc} |"
    yield ""
    yield "## Benchmarks"
    yield ""
    yield (
        "`bench_run`, `bench_sample` and `bench_cost` are written by `make bench NAME=paper` in files of the same format, "
        "so that the same analysis jobs can read them."
    )
