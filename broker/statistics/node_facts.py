"""Facts about the node that are no statistics of objects."""

from typing import NamedTuple


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
        memory_used, memory_limit: bytes.
        disk_free, disk_limit: bytes; free is None without a data directory.
        memory_alarm, disk_alarm: True while the alarm blocks publishers.
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
    memory_used: int
    memory_limit: int
    memory_alarm: bool
    disk_free: int | None
    disk_limit: int
    disk_alarm: bool
    data_dir: str
    log_files: tuple[str, ...]
    config_files: tuple[str, ...]
    listeners: tuple[ListenerFacts, ...]
    mechanisms: tuple[str, ...]
    strategy: str = "rss"
