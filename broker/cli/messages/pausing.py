"""The commands `leveret pause` and `leveret resume`."""

import click

from leveret.broker.cli.ctl.escaping import printable, writable
from leveret.broker.cli.messages.command import Target, with_target


@click.command("pause")
@click.argument("queue")
@with_target
def pause(target: Target, *, queue: str) -> None:
    """Pause the deliveries of QUEUE to its consumers, until `leveret resume`.

    Consumers stay connected and keep what they have; a basic.get finds nothing. Publishes, acks, expiry, limits and
    dead letters go on. A durable queue stays paused when the broker restarts. Lists show the state `paused`.

    \b
    Examples:
      leveret pause orders
      leveret peek orders
      leveret resume orders
    """  # noqa: D301 - \b keeps the lines of the examples
    _put(target, "pause", queue)


@click.command("resume")
@click.argument("queue")
@with_target
def resume(target: Target, *, queue: str) -> None:
    """Resume the deliveries of QUEUE after `leveret pause`.

    \b
    Example:
      leveret resume orders
    """  # noqa: D301
    _put(target, "resume", queue)


def _put(target: Target, action: str, queue: str) -> None:
    target.api.put("leveret", "queues", target.vhost, queue, action)
    is_paused = action == "pause"
    line = f"queue '{printable(queue)}' is {'paused' if is_paused else 'resumed'}"
    found = {"queue": writable(queue), "vhost": writable(target.vhost), "paused": is_paused}
    target.show(found, [line])
