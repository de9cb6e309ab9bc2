"""Generates docs/export.md from the declaration of the tables: `python -m leveret.broker.export.reference`."""
# ruff: noqa: E501 - a page of prose and tables, in lines as docs have them

import inspect
import sys
from collections.abc import Iterator

from leveret.broker.counters.sampling import SAMPLE_EVERY
from leveret.broker.export.schema import EVENTS, TABLES, columns
from leveret.broker.export.tables import AREA_MODULUS

_HEAD = f"""\
# Exported tables

This page is generated from the declaration of the tables (`make docs`); edit `broker/export/tables.py` or
`broker/export/reference.py`, not this file.

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
  directory, under different names (`node_name`). A broker that finds another one with its name, by the lock
  `.node=<node>.lock`, logs that and waits until it has ended.
- `node=` contains the node's name, percent-encoded except for `@`, letters, digits and `_.-~`.
- A line ends with `\\n`, and with nothing else that Unicode takes for the end of a line. Octets of a client's own
  description that are not UTF-8 are written like `\\udcff`.
- Rows have all columns, in the order below. Columns may be added at the end; `v` changes if the meaning of one does.

## How to read it

- **A row says how something is, not what has happened since the last one.** Counters count from the beginning of their
  object: what happened between two rows is their difference, and a row that is missing costs resolution and nothing else.
  Counters begin anew with each start of the broker (`boot_id`) and each new object of the same name (`since_ms`), so take
  differences within the same *key* columns, ordered by `mono_us`.
- **Objects at rest are not written.** A queue, an exchange or a connection has a row when it has changed, and once a
  minute. One that is gone has a last row, as it was at its end; one that came and went between two looks has events only.
- **Areas** are how many messages there were, times how long: the difference of an area divided by that of `mono_us` is the
  exact average over that time, whatever happened in between. Divided by the number of messages that left it is the time
  each of them took on average (Little's law): of `area_ready` that for which they were ready, of `area_ready` and
  `area_unacked` together that for which they were in the queue. Areas of a queue at rest grow by its last row's number.
  They are counted modulo 2^{AREA_MODULUS.bit_length() - 1}, so take their difference modulo that. A message counts from when it is read to when
  what becomes of it has been given to the sockets; for the states a change that happens while nothing else does in the
  queue counts from its next row on.
- **Histograms** are of their interval alone. Add up the counts of equal buckets, over time, queues or nodes, and look for
  the bucket in which a percentile lies; do not average percentiles. Bucket `i` is the value `i` below 32; above, with
  `s = (i >> 5) - 2`, it begins at `((i & 31) + 32) << s` and has `1 << s` values, so it is at most 3.2 % wide.
  Buckets 32 to 63 do not occur.
- **Messages are sampled**: of a queue's or a channel's messages one in {SAMPLE_EVERY} at most is measured, and one of a turn, and fewer in
  long queues. Each counts for all that came since the one measured before, so that `count` is about the number of messages
  and a percentile is that of messages. A read with publishes of several confirm modes counts for that of its last. `commit` and `loop_lag` are complete.

What the metrics of `latency_hist` measure:

| `metric` | from | to |
|---|---|---|
| `confirm` | the publish is read | its confirm (or nack) is given to the socket |
| `deliver` | the publish is read | it is not ready any more: delivered and given to the socket, got, expired, dropped |
| `residence` | the publish is read | it is settled, in the order in which messages are: right on average and for the tail only where consumers are alike |
| `ack` | a message is delivered | that message is acked or rejected |
| `commit` | the journal is cut | the commit is on disk, and what waited for it has been told |
| `loop_lag` | a timer is due | the event loop gets to it |

A topic exchange tells 1,024 routing keys apart at a time. Where it meets more, those that were used least between two
looks make room for others, so that keys in steady use are counted one by one in the end; how many messages were not is
`error` in `topic_pattern`.

Where consumers take messages out of order, as from priority queues or after requeues, `deliver` follows the order of
arrival, too: it is right on average.

## Tables

*Kind* says what may be done with a column: a **key** tells objects apart, **info** describes, a **gauge** is how it was at
that moment, **counter** and **area** are described above, a **sum** is of this row's interval alone.
"""


def render() -> str:
    """Return the whole page, Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    for table, struct in TABLES.items():
        yield f"### {table}"
        yield ""
        yield " ".join((inspect.getdoc(struct) or "").split())
        yield ""
        yield "| Column | Type | Kind | What it is |"
        yield "|---|---|---|---|"
        for column in columns(table):
            unit = f" ({column.unit})" if column.unit else ""
            yield f"| `{column.name}` | `{column.type}` | {column.kind} | {column.doc}{unit} |"
        yield ""
    yield "## Events"
    yield ""
    yield "| `kind` | What has happened |"
    yield "|---|---|"
    for kind, doc in EVENTS.items():
        yield f"| `{kind}` | {doc} |"
    yield ""
    yield "## Benchmarks"
    yield ""
    yield (
        "`bench_run`, `bench_sample` and `bench_cost` are written by `make bench NAME=paper`, in files of the same form, "
        "so that one analysis reads both."
    )


if __name__ == "__main__":
    sys.stdout.write(render())
