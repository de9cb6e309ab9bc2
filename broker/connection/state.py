"""The state of a connection as RabbitMQ names it: running, flow, blocking, blocked, closing."""

from leveret.broker.connection.connection import Connection

FLOW_SECONDS = 5.0
"""Time for which a connection counts as paced: RabbitMQ's, because the pauses themselves are too short to be seen."""


def connection_state(connection: Connection, alarm: str, now: float) -> str:
    """Return RabbitMQ's name for the state (rabbit_reader).

    Args:
        connection: an open one.
        alarm: the reason why publishers are blocked, empty if they are not.
        now: seconds of the clock of `Connection.paced_at`.

    Returns:
        `blocked`: it has published while an alarm was raised, and is not read. `blocking`: an alarm is raised, and it
        has not published yet. `flow`: it is paused now and then for queues or the disk. `running`, or `closing`: none
        of these.

    """
    if connection.state != "open":
        return "closing"
    if connection.blocked:
        return "blocked"
    if alarm:
        return "blocking"
    return "flow" if now - connection.paced_at < FLOW_SECONDS else "running"
