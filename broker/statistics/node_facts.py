"""Facts about the node that are no statistics of objects."""

from typing import NamedTuple

from leveret.broker.process.resource_alarms import Resources


class ListenerFacts(NamedTuple):
    """A listener: RabbitMQ's name of the protocol, and the address."""

    protocol: str
    address: str
    port: int


class NodeFacts(NamedTuple):
    """The node now.

    Attributes:
        uptime: seconds since the start.
        process_id: of the process.
        files_total: file descriptors that the process may have.
        sockets_used, sockets_total: client connections, and how many there may be.
        resources: memory and disk.
        data_dir, log_files, config_files: paths.
        listeners: the listeners.
        mechanisms: names of the authentication mechanisms that are offered.
        strategy: RabbitMQ's name for how memory is measured.

    """

    uptime: float
    process_id: int
    files_total: int
    sockets_used: int
    sockets_total: int
    resources: Resources
    data_dir: str
    log_files: tuple[str, ...]
    config_files: tuple[str, ...]
    listeners: tuple[ListenerFacts, ...]
    mechanisms: tuple[str, ...]
    strategy: str = "rss"
