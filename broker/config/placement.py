"""Keys of processes for virtual hosts."""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from leveret.broker.auth.backends.settings import ClientTLS
from leveret.broker.config.values import BrokerAddress
from leveret.broker.config_key import Key, Prefix

FOLDER: Final = "processes"
"""The directory, in the data directory, with those of the processes."""
MOST_PROCESSES: Final = 64


# The rows are tables, whose lines are filled.
# fmt: off


class PlacementConfig(msgspec.Struct, frozen=True):
    """Processes for virtual hosts; with 0 the broker is one process."""

    processes: Annotated[int, Key("vhosts.processes", low=0, high=MOST_PROCESSES, own=True,
        doc="Number of processes among which the virtual hosts are divided (experimental: [how "
        "to](howto/vhost-processes.md)), each with data of its own in `processes/N` of the data directory; `0`: one "
        "process does everything.")] = 0
    pins: Annotated[Mapping[str, int], Key("vhosts.process.$name", "int", low=1, high=MOST_PROCESSES, own=True,
        doc="Process of a virtual host, from 1; by default a new one gets the process that has the fewest.")] = {}
    elsewhere: Annotated[Mapping[str, tuple[BrokerAddress, ...]], Key("vhosts.broker.$name", "brokers", own=True,
        doc="Addresses, `host:port` or `amqps://host:port` with commas between, of the broker that has a virtual host, "
        "such as the nodes of a replicated log. Its clients are forwarded to the first that opens their connection "
        "(experimental: [how to](howto/vhost-processes.md#forward-clients-to-another-broker)).")] = {}
    directory: Annotated[str, Key("vhosts.directory", secret=True, own=True,
        doc="PostgreSQL database of several replicated logs, as `replication.url`: clients of all virtual hosts are "
        "forwarded to the node that leads the log which has theirs, and none is served here (experimental: [how "
        "to](howto/vhost-processes.md#several-logs-in-one-database)).")] = ""
    users_log: Annotated[str, Key("vhosts.users_log", own=True,
        doc="Name of the log whose users, their rights and limits, and global parameters count for all logs of the "
        "database: the same at all their nodes, and with `vhosts.directory` (experimental: [how "
        "to](howto/vhost-processes.md#several-logs-in-one-database)).")] = ""
    tls: Annotated[ClientTLS, Prefix("vhosts.ssl_options", (
        ("$peer", "other broker"), ("that of the $name", "the host of the address"), ("$verify", "")))] = ClientTLS()
