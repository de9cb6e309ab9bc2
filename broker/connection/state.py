"""The state of a connection as RabbitMQ names it: running, flow, blocking, blocked, closing."""

from leveret.broker.connection.connection import Connection

FLOW_SECONDS = 5.0
"""How long somebody who was paced counts as being so: RabbitMQ's time, since pauses are too short to be met."""


def connection_state(connection: Connection, alarm: str, now: float) -> str:
    """What RabbitMQ calls it (rabbit_reader).

    Args:
        connection: an open one.
        alarm: why publishers are blocked, empty if they are not.
        now: seconds of the clock that `Connection.paced_at` is of.

    Returns:
        `blocked`: it has published while an alarm was raised, and is not read. `blocking`: an alarm is raised, and it
        has not published yet. `flow`: it is made to wait for queues or for the disk now and then. `running`, or
        `closing`: none of these.

    """
    if connection.state != "open":
        return "closing"
    if connection.blocked:
        return "blocked"
    if alarm:
        return "blocking"
    return "flow" if now - connection.paced_at < FLOW_SECONDS else "running"
