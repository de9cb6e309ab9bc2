"""Commands for shovels."""

from typing import Any

from leveret.broker.cli.ctl.client import ApiError
from leveret.broker.cli.ctl.command import argument, command
from leveret.broker.cli.ctl.errors import refused
from leveret.broker.cli.ctl.session import Session

SHOVELS = "Shovels"
_NOT_FOUND = 404
_EVERY = {
    "name": "name",
    "vhost": "vhost",
    "type": "type",
    "state": "state",
    "last_changed": "timestamp",
    "source": "src_uri",
    "source_protocol": "src_protocol",
    "destination": "dest_uri",
    "destination_protocol": "dest_protocol",
    "termination_reason": "reason",
}
_ENDS = {
    "source_queue": "src_queue",
    "source_exchange": "src_exchange",
    "source_exchange_key": "src_exchange_key",
    "destination_queue": "dest_queue",
    "destination_exchange": "dest_exchange",
    "destination_exchange_key": "dest_exchange_key",
}
"""Columns of rabbitmqctl, and the keys of the API; those of the ends are there if a shovel has them."""


def _missing(session: Session) -> str:
    return (
        f"Shovel with the given name was not found on the target node '{session.node}' "
        f"and / or virtual host '{session.vhost}'"
    )


@command("shovel_status", group=SHOVELS)
def shovel_status(session: Session) -> None:
    """List the shovels and how they are."""
    session.announce(f"Shovel status on node {session.node}")
    found = session.api.get("shovels")
    ends = [column for column, key in _ENDS.items() if any(key in each for each in found)]
    keys = {**_EVERY, **{column: _ENDS[column] for column in ends}}
    rows: list[dict[str, Any]] = [
        {column: each.get(key, "") for column, key in keys.items()} for each in found
    ]
    session.show_rows(rows, sorted(keys), blank=True)


@command("delete_shovel", argument("name"), group=SHOVELS)
def delete_shovel(session: Session, name: str) -> None:
    """Stop and delete a shovel of a virtual host."""
    session.announce(f"Deleting shovel {name} in vhost {session.vhost}")
    try:
        session.api.delete("parameters", "shovel", session.vhost, name)
    except ApiError as error:
        raise refused(_missing(session)) if error.status == _NOT_FOUND else error from None


@command("restart_shovel", argument("name"), group=SHOVELS)
def restart_shovel(session: Session, name: str) -> None:
    """Stop a shovel of a virtual host and start it again."""
    session.announce(
        f"Restarting dynamic Shovel {name} in virtual host {session.vhost} on node {session.node}"
    )
    try:
        session.api.delete("shovels", "vhost", session.vhost, name, "restart")
    except ApiError as error:
        raise refused(_missing(session)) if error.status == _NOT_FOUND else error from None
