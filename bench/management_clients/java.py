"""Methods of RabbitMQ's Java client for the management API (`Calls.java`), called beside a broker; results as JSON."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pika

from bench import maven
from bench.management_clients import objects
from bench.management_clients.tools import MissingError

ARTIFACT = ("com.rabbitmq", "http-client", "5.4.0")
CALLS = Path(__file__).with_name("Calls.java")
OF_THE_MACHINE = re.compile(
    r"\.(node|name|leader|db_dir|run_queue|uptime|db_dir|os_pid|[a-z_]*version|password_hash|idle_since|connected_at|random"
    r"|mem\w*|memory\w*|disk\w*|fd\w*|sockets\w*|proc\w*|processors|io_\w+|mnesia\w*|reductions|peer_port|port|timestamp|gc\w*"
    r"|rate|average|averageRate|samples|recv\w*|send\w*|consumer_utilisation|consumer_capacity|cluster_state.*|connectionName"
    r"|peerPort|global_parameters\[\]\.value)(\[\])?$|\.garbage_collection\.|message_stats\.(publish(_in|_out)?|confirm|deliver_no_ack|deliver_get|get_no_ack)$"
)
"""Fields of a machine, a moment or an implementation: only their types are compared, if RabbitMQ has them."""
EXPLAINED = {
    r".*\.(message_stats|\w+_details): .* RabbitMQ None": "Counts and rates are there before their first message.",
    r".*\.(messages|message_bytes)_persistent: ": "Persistent messages of classic queues are not counted.",
    r".*\.message_bytes\w*: ": "The headers of contents are counted as well as the bodies.",
    r".*\.messages_ram: ": "Quorum queues have messages in memory.",
    r".*\.(synchronised_)?slave_nodes: ": "Lists of mirrors are empty, not absent.",
    r".*\.(exchange_types|auth_mechanisms|applications|config_files|listeners): ": "These are those of the broker.",
    r"getDefinitions \.(queues\[\]\.type|vhosts\[\]\.\w+): ": "Exported as by RabbitMQ 3.13.",
    r"getShovelsStatus": "Lists of plugins are empty, not missing.",
    r"getExtensions": "There is no web page to extend.",
    r"getVhosts.*\.description": "The default virtual host has no description.",
}
"""Differences that are known, by patterns of the lines of `differences`."""
IDENTITIES = (
    "vhost",
    "name",
    "user",
    "queue",
    "consumer_tag",
    "source",
    "destination",
    "routing_key",
    "component",
)


def build(folder: Path) -> Path:
    """Fetch the client with `mvn`, and return the directory of its libraries; MissingError if that fails."""
    try:
        return maven.fetched(*ARTIFACT, folder)
    except maven.MavenError as error:
        raise MissingError(str(error)) from error


def main() -> int:
    command = ["java", "-cp", f"{sys.argv[1]}/*", str(CALLS), objects.VHOST]
    with (
        contextlib.suppress(pika.exceptions.AMQPError),
        objects.made(),
    ):  # the last calls close the connections
        sys.stdout.write(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    return 0


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return a line for each call and field that is different, as `getQueue .messages: 1, RabbitMQ 2`."""
    lines = [f"{name}: {result}" for name, result in ours.items() if str(result).startswith("threw")]
    for name, result in theirs.items():
        found = compared("", ours[name], result)
        lines += dict.fromkeys(f"{name} {path}: {one}, RabbitMQ {other}" for path, one, other in found)
    return lines


def compared(path: str, one: Any, other: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the path, our value and RabbitMQ's of each difference."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            below = f"{path}.{key}"
            if key in one and key in other:
                yield from compared(below, one[key], other[key])
            elif not OF_THE_MACHINE.search(below):
                yield below, shown(one.get(key, "absent")), shown(other.get(key, "absent"))
    elif isinstance(one, list) and isinstance(other, list):
        if OF_THE_MACHINE.search(path):
            return
        if len(one) != len(other):
            yield path, f"{len(one)} entries", f"{len(other)} entries"
            return
        for each, its in zip(sorted(one, key=identity), sorted(other, key=identity), strict=True):
            yield from compared(f"{path}[]", each, its)
    elif one != other and not (
        OF_THE_MACHINE.search(path) and (isinstance(one, type(other)) or other is None)
    ):
        yield path, shown(one), shown(other)


def identity(entry: Any) -> str:
    """Return what entries of lists are sorted by; ports of clients are other ones for each broker."""
    if not isinstance(entry, dict):
        return str(entry)
    return re.sub(r":\d+ -> ", "", str([entry.get(key) for key in IDENTITIES]))


def shown(value: Any) -> str:
    return value if isinstance(value, str) else f"{value!r:.60}"


if __name__ == "__main__":
    sys.exit(main())
