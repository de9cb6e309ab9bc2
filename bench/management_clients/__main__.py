"""Clients of RabbitMQ's management API, written by others, on Leveret and in the same set-up on RabbitMQ.

    make bench NAME=management_clients                                     # all
    make bench NAME=management_clients ARGS="rabbit-hole keda"

Each is fetched from the registry of its language at a fixed version, into `build/management-clients`, and left out with
the reason if that fails. Exit code 1: something is different on Leveret, and is not explained.
"""

import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.management_clients import amqpstorm, exporter, java, keda, suites
from bench.management_clients.inside import ALONE
from bench.management_clients.tools import MissingError

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build" / "management-clients"
PEERS = {"3.13": "rabbitmq", "4.3": "rabbitmq-4.3"}
"""The RabbitMQ beside which Leveret runs with a profile."""
LIMIT = 1800
"""Maximum seconds of a client on one broker."""

Results = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Client:
    """A client and how it is judged.

    Attributes:
        name: its name and version.
        build: makes it ready in a directory; MissingError if that cannot be.
        command: runs it, from what `build` has returned and a directory for its files.
        results: reads them, from what it has printed and that directory.
        differences: compares Leveret's with RabbitMQ's, a line each.
        explained: reasons for differences, by regular expressions for the beginnings of lines.
        is_suite: whether results are those of tests.

    """

    name: str
    build: Callable[[Path], Path]
    command: Callable[[Path, Path], list[str]]
    results: Callable[[str, Path], Results]
    differences: Callable[[Any, Any], list[str]]
    explained: Mapping[str, str] = dataclasses.field(default_factory=dict)
    is_suite: bool = False


def module(name: str, *words: object) -> list[str]:
    """Return the command of a program of this package."""
    python = ("env", "-C", str(ROOT), sys.executable, "-m")
    return [*python, f"bench.management_clients.{name}", *map(str, words)]


CLIENTS = {
    "amqpstorm": Client(
        f"amqpstorm {amqpstorm.VERSION}",
        amqpstorm.build,
        lambda copy, folder: module("amqpstorm", copy, folder / "report.xml"),
        lambda _, folder: amqpstorm.results(folder / "report.xml"),
        suites.differences,
        is_suite=True,
    ),
    "rabbit-hole": Client(
        f"rabbit-hole {suites.RABBIT_HOLE[1]}",
        suites.rabbit_hole,
        lambda copy, folder: suites.rabbit_hole_command(copy, folder / "specs.xml"),
        lambda _, folder: suites.rabbit_hole_results(folder / "specs.xml"),
        suites.differences,
        is_suite=True,
    ),
    "rabbitmqadmin": Client(
        f"rabbitmqadmin {suites.RABBITMQADMIN[1]}",
        suites.rabbitmqadmin,
        lambda copy, folder: module("tls_proxy", folder / "tls", *suites.rabbitmqadmin_command(copy)),
        lambda output, _: suites.rabbitmqadmin_results(output),
        suites.differences,
        suites.EXPLAINED,
        is_suite=True,
    ),
    "exporter": Client(
        f"rabbitmq_exporter {exporter.VERSION}",
        exporter.build,
        lambda program, folder: module("exporter", program, folder),
        lambda output, _: json.loads(output),
        exporter.differences,
        exporter.EXPLAINED,
    ),
    "keda": Client(
        "KEDA's rabbitmq scaler 2.21 (its requests)",
        lambda folder: folder,
        lambda *_: module("keda"),
        lambda output, _: json.loads(output),
        keda.differences,
    ),
    "java": Client(
        f"Java http-client {java.ARTIFACT[-1]}",
        java.build,
        lambda libraries, _: module("java", libraries),
        lambda output, _: json.loads(output),
        java.differences,
        java.EXPLAINED,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(CLIENTS)}; all")
    parser.add_argument("--profile", choices=PEERS, default="3.13", help="of Leveret, beside that RabbitMQ")
    options = parser.parse_args()
    if unknown := set(options.names) - set(CLIENTS):
        parser.error(f"no client called {', '.join(unknown)}")
    if missing := [tool for tool in ("unshare", "ip", "rabbitmq-server") if not shutil.which(tool)]:
        parser.error(f"{missing[0]} is not installed (Debian: util-linux, iproute2, rabbitmq-server)")
    FOLDER.mkdir(parents=True, exist_ok=True)
    return max([tried(CLIENTS[name], options.profile) for name in options.names or CLIENTS])


def tried(client: Client, profile: str) -> int:
    """Run a client on Leveret with a profile and on a RabbitMQ, print what came of it, and return the exit code."""
    try:
        built = client.build(FOLDER)
    except MissingError as error:
        print(f"{client.name}: left out: {error}", flush=True)
        return 0
    ours, theirs = (run_beside(broker, client, built, profile) for broker in ("leveret", PEERS[profile]))
    found = client.differences(ours, theirs)
    reasons = {line: reason(line, client.explained) for line in found}
    if client.is_suite:
        count = len(theirs) - list(theirs.values()).count(suites.SKIPPED)
        print(
            f"{client.name}: Leveret {suites.passed(ours)}, RabbitMQ {suites.passed(theirs)} of {count} passed"
        )
    else:
        print(f"{client.name}: {len(theirs)} values of RabbitMQ")
    unexplained = [line for line, text in reasons.items() if not text]
    for text in dict.fromkeys(filter(None, reasons.values())):
        print(f"  {list(reasons.values()).count(text)} differ: {text}")
    for line in unexplained:
        print(f"  {line}")
    sys.stdout.flush()
    return 1 if unexplained else 0


def run_beside(broker: str, client: Client, built: Path, profile: str) -> Results:
    """Return the results of a client on a broker; what else it prints is kept in a file."""
    folder = FOLDER / f"{client.name.split()[0]}-on-{broker}-{profile}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    # The suites have transient queues, which Debian's RabbitMQ 4.3 permits by a patch.
    set_up = {"PROFILE": profile, "TRANSIENT_NONEXCL_QUEUES": "permitted"}
    environment = os.environ | {f"LEVERET_COMPATIBILITY_{name}": value for name, value in set_up.items()}
    command = [*ALONE, sys.executable, "-m", "bench.management_clients.inside", broker]
    with (folder / "errors.log").open("w") as log:
        done = subprocess.run(
            [*command, *client.command(built, folder)],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip
    (folder / "output.log").write_text(done.stdout)
    if not done.stdout:
        sys.exit(
            f"{client.name} has printed nothing on {broker}: {(folder / 'errors.log').read_text()[-500:]}"
        )
    return client.results(done.stdout, folder)


def reason(line: str, explained: Mapping[str, str]) -> str:
    """Return why a difference is known; '' if it is not."""
    return next((text for pattern, text in explained.items() if re.match(pattern, line)), "")


if __name__ == "__main__":
    sys.exit(main())
