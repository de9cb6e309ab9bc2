"""Virtual hosts on logs of their own in one PostgreSQL, beside quorum queues of RabbitMQ 4.3: `bench.placement --logs`.

Each log has three nodes, PostgreSQL a primary and two synchronous standbys. RabbitMQ has three nodes, and as many
virtual hosts. The workload runs in each virtual host at the same time. Where processors are few, compare the processor
time for each message.
"""

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from replicated.cluster import NAMES, Nodes
from replicated.database import Database, database_in_folder

from bench import brokers, perftest, rabbitmq_cluster
from bench.compare import WARM_UP
from bench.endpoint import Endpoint
from bench.replication import CONFIGURATION, cpu_seconds
from bench.results import Report
from bench.workloads import WORKLOADS

MORE_CONFIGURATION = CONFIGURATION + "max_connections = 400\n"


@contextlib.contextmanager
def logs_in(home: Path, database: Database, count: int) -> Iterator[list[Nodes]]:
    """Run three nodes of each of so many logs, which have leaders and the virtual hosts `v0`, `v1` and so on."""
    with contextlib.ExitStack() as ending:
        logs = []
        for number in range(count):
            folder = home / f"l{number}"
            folder.mkdir()
            settings = {"replication.log": f"l{number}", "default_vhost": f"v{number}"}
            nodes = Nodes(folder, dict.fromkeys(NAMES, database.url), settings=settings)
            ending.callback(nodes.stop)
            logs.append(nodes)
            nodes.start_all()
        for nodes in logs:
            nodes.leader()
        yield logs


def loaded(
    folder: Path, places: Sequence[Endpoint], options: argparse.Namespace, used: Callable[[], list[float]]
) -> tuple[float, list[float]]:
    """Run the workload at all places at once; returns messages a second, and for each message what `used` grew by."""
    flags = [*WORKLOADS[options.workload].flags.split(), "-qq"]
    flags += ["-r", str(options.rate)] if options.rate else []

    def load(place: Endpoint) -> perftest.Figures:
        return perftest.run(folder, place, [*flags, "-u", f"q-{place.vhost}"], options.seconds, WARM_UP)

    before = used()
    with ThreadPoolExecutor(len(places)) as pool:
        figures = list(pool.map(load, places))
    messages = sum(each.sent_total for each in figures) or 1
    grown = [(now - then) / messages for now, then in zip(used(), before, strict=True)]
    return sum(each.sent for each in figures), grown


def appended(database: Database, count: int) -> int:
    """Return the number of entries of all logs."""
    tables = [f"select last from l{number}.leveret_lease" for number in range(count)]
    rows = database.sql(database.primary, " union all ".join(tables), database="leveret")
    return sum(int(last) for (last,) in rows)


def ours(report: Report, folder: Path, count: int, options: argparse.Namespace) -> None:
    """Report the figures of so many logs."""
    with (
        database_in_folder("leveret-b-", configuration=MORE_CONFIGURATION) as (home, database),
        logs_in(home, database, count) as logs,
    ):
        leaders = [(nodes, nodes.leader()) for nodes in logs]
        places = [
            Endpoint(nodes.ports[name], vhost=f"v{number}") for number, (nodes, name) in enumerate(leaders)
        ]

        def used() -> list[float]:
            leading = [cpu_seconds([nodes.pid(name)]) for nodes, name in leaders]
            everyone = cpu_seconds([nodes.pid(name) for nodes in logs for name in NAMES])
            engine = cpu_seconds(database.pids())
            return [max(leading), everyone, engine, float(appended(database, count))]

        rate, (busiest, everyone, engine, entries) = loaded(folder, places, options, used)
    name = f"{count} log{'s' * (count > 1)}"
    report.line(f"{name}: rate", rate, "messages/s")
    report.line(f"{name}: the busiest leader", 1e6 * busiest, "us a message of all")
    report.line(f"{name}: all nodes", 1e6 * everyone, "us a message")
    report.line(f"{name}: PostgreSQL, three servers", 1e6 * engine, "us a message")
    report.line(f"{name}: entries", rate * entries, "/s")


def theirs(report: Report, folder: Path, count: int, options: argparse.Namespace) -> None:
    """Report the figures of RabbitMQ with so many virtual hosts."""
    with (
        tempfile.TemporaryDirectory(prefix="leveret-bench-", ignore_cleanup_errors=True) as scratch,
        rabbitmq_cluster.running(Path(scratch), brokers.IN_PEER_ROOT) as nodes,
    ):
        vhosts = [f"v{number}" for number in range(count)]
        for vhost in vhosts:
            nodes[0].control("add_vhost", vhost)
            nodes[0].control("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
        places = [Endpoint(nodes[at % len(nodes)].port, vhost=vhost) for at, vhost in enumerate(vhosts)]
        rate, (together,) = loaded(
            folder, places, options, lambda: [sum(node.cpu_seconds() for node in nodes)]
        )
    report.line(f"RabbitMQ 4.3, {count} virtual hosts: rate", rate, "messages/s")
    report.line(f"RabbitMQ 4.3, {count} virtual hosts: all nodes", 1e6 * together, "us a message")


def measured(report: Report, options: argparse.Namespace) -> None:
    """Report all figures.

    Raises:
        brokers.BrokerError: RabbitMQ 4.3 is missing, or does not start.

    """
    folder = perftest.fetch()
    for count in options.logs:
        ours(report, folder, count, options)
        theirs(report, folder, count, options)
