"""The identity of the broker, and figures of its process, as a scrape is given them."""

from typing import NamedTuple


class Identity(NamedTuple):
    """Identity of the broker: RabbitMQ's labels, and the requested endpoint."""

    node: str
    cluster: str
    cluster_id: str


class Process(NamedTuple):
    """Process figures from the operating system."""

    open_files: int
    max_files: int
    user_seconds: float
    system_seconds: float
    began: float
    """Start time; Unix time in seconds."""
