"""Metrics that kbudde's rabbitmq_exporter reports of a broker, as JSON by names and labels.

The program is a Go module; run inside, with its path, beside a broker.
"""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from bench.management_clients import objects
from bench.management_clients.api import await_that
from bench.management_clients.tools import run

MODULE, VERSION = "github.com/kbudde/rabbitmq_exporter", "v1.0.0"
URL = "http://127.0.0.1:9419/metrics"
MODULES = "connections,exchange,node,queue,memory"
"""All but those of plugins, shovel and federation."""
LINE = re.compile(r"^(rabbitmq_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
NOT_COMPARED = {"self", "node", "cluster", "rabbitmq", "erlang"}
"""Labels that name the broker or its version."""
OF_THE_MACHINE = re.compile(
    "node_(mem|disk_free|fd|sockets|proc|uptime|run_queue|io|memory)|queue_(memory|reductions|idle|disk|head)|memory_|uptime"
    "|connection_(received|send)_(bytes|packets)|scrape_duration|exporter_build|_ram$|queue_consumer_util|_rate$|fd_used"
    "|sockets_available|idle_since"
)
"""Metrics whose values are those of a machine, a moment or an implementation: only their names are compared."""
FLOWING = ('queue="rates"', 'exchange="orders"')
"""Labels of what messages flow through, for which the same holds."""

EXPLAINED = {
    r"only Leveret: .*_exchange_messages_\w+\{": "Counts of an exchange are there before its first message.",
    r"only Leveret: .*_queue_messages_\w+_rate\{": "Rates of a queue are there before its first message.",
    r"only Leveret: .*_queue_(slaves_nodes|synchronised_slave_nodes)_len\{": "Lists of mirrors are empty, not absent.",
    r"only Leveret: .*_queue_messages_\w+_ram\{.*replicated": "Quorum queues have messages in memory.",
    r"only Leveret: .*_queue_max_length\{": "Leveret answers in JSON, RabbitMQ in BERT.",
    r".*rabbitmq_queue_gc_": "Erlang's garbage collection: always 0.",
    r".*rabbitmq_queue_message(s|_bytes)_persistent\{": "Persistent messages of classic queues are not counted.",
    r".*rabbitmq_queue_message_bytes": "The headers of contents are counted as well as the bodies.",
}
"""Differences that are known, by patterns of the lines of `differences`."""


def build(folder: Path) -> Path:
    """Fetch and build the exporter with `go`, and return the program; MissingError if that fails."""
    program = folder / "rabbitmq_exporter"
    if not program.exists():
        needing = folder / "exporter"
        needing.mkdir(exist_ok=True)
        (needing / "go.mod").write_text(f"module needing\n\ngo 1.25\n\nrequire {MODULE} {VERSION}\n")
        run("go", "build", "-mod=mod", "-o", str(program), MODULE, cwd=needing)
    return program


def main() -> int:
    program, folder = sys.argv[1:]
    results: dict[str, float] = {}
    with objects.made():
        for capabilities in ("bert,no_sort", "no_sort"):
            environment = {
                **os.environ,
                "RABBIT_EXPORTERS": MODULES,
                "RABBIT_CAPABILITIES": capabilities,
                "PUBLISH_ADDR": "127.0.0.1",
            }
            with Path(folder, "exporter.log").open("wb") as log:
                process = subprocess.Popen([program], env=environment, stdout=log, stderr=log)
            try:
                await_that(lambda: bool(scraped()))
                results |= {f"{capabilities}: {key}": value for key, value in metrics(scraped()).items()}
            finally:
                process.terminate()
                process.wait(10)
    json.dump(results, sys.stdout)
    return 0


def scraped() -> str:
    """Return the exporter's page; '' while it does not listen."""
    try:
        with urllib.request.urlopen(URL, timeout=30) as answer:
            return answer.read().decode()
    except urllib.error.URLError:
        return ""


def metrics(page: str) -> dict[str, float]:
    """Return the exporter's own metrics of a page by name and labels, without labels that name the broker."""
    found = {}
    for name, labels, value in LINE.findall(page):
        kept = [f'{key}="{text}"' for key, text in LABEL.findall(labels) if key not in NOT_COMPARED]
        found[f"{name}{{{','.join(sorted(kept))}}}"] = float(value)
    return found


def differences(ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[str]:
    """Return a line for each metric that one has alone, or whose value should be the same and is not."""
    lines = [f"only RabbitMQ: {key}" for key in sorted(theirs.keys() - ours.keys())]
    lines += [f"only Leveret: {key}" for key in sorted(ours.keys() - theirs.keys())]
    lines += [
        f"{key}: {ours[key]:g}, RabbitMQ {theirs[key]:g}"
        for key in sorted(ours.keys() & theirs.keys())
        if ours[key] != theirs[key]
        and not OF_THE_MACHINE.search(key.partition("{")[0])
        and not any(label in key for label in FLOWING)
    ]
    return lines


if __name__ == "__main__":
    sys.exit(main())
