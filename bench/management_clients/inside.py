"""Runs one command beside a broker that has RabbitMQ's own ports, 5672 and 15672.

Suites of clients have these ports in their code. So that they are free, and nothing else is reached, this program runs
in a network of its own (`ALONE`), and all processes that it leaves behind end with it.

    unshare --map-root-user --net --pid --fork --mount-proc --kill-child \\
        python -m bench.management_clients.inside rabbitmq make check
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench import brokers
from bench.management_clients.api import EVERYTHING, ask

AS_ROOT = () if os.geteuid() == 0 else ("--map-root-user",)
ALONE = ("unshare", *AS_ROOT, "--net", "--pid", "--fork", "--mount-proc", "--kill-child")
LEVERET = (
    "listeners.tcp.1=127.0.0.1:5672", "management.tcp.port=15672", "prometheus.enabled=false",
    "collect_statistics_interval=1000", "auth.failure_delay=0ms",
)  # fmt: skip
RABBITMQ = (
    "listeners.tcp.1 = 127.0.0.1:5672", "management.tcp.port = 15672", "collect_statistics_interval = 1000",
    *(f"management.sample_retention_policies.{kind}.605 = 1" for kind in ("global", "basic", "detailed")),
)  # fmt: skip
"""A sample each second, so that rates are there as soon as in Leveret."""
PLUGINS = ("rabbitmq_management",)
"""RabbitMQ has no others, as Leveret does not have what they add."""
OBJECTS: Mapping[str, object] = {
    "cluster-name": {"name": "rabbitmq@localhost"},
    "users/policymaker": {"password": "policymaker", "tags": "policymaker"},
    "permissions/%2F/policymaker": EVERYTHING,
    "vhosts/rabbit%2Fhole": {},
    "permissions/rabbit%2Fhole/guest": EVERYTHING,
    "vhosts/rust%2Frabbitmqadmin": {},
    "permissions/rust%2Frabbitmqadmin/guest": EVERYTHING,
}
"""Objects that the suites expect, as bodies of PUT requests."""


def main() -> int:
    name, *command = sys.argv[1:]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="leveret-clients-", ignore_cleanup_errors=True) as scratch:
        broker = brokers.start(name, Path(scratch), LEVERET, rabbitmq=RABBITMQ, plugins=PLUGINS)
        try:
            for path, body in OBJECTS.items():
                ask("PUT", path, body)
            return subprocess.run(command, check=False).returncode
        finally:
            broker.stop()


if __name__ == "__main__":
    sys.exit(main())
