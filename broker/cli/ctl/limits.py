"""Commands for the limits of users and virtual hosts."""

from typing import Any

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.access import USERS, VHOSTS, check_vhost, existing_user
from leveret.broker.cli.ctl.command import argument, command, option
from leveret.broker.cli.ctl.errors import refused
from leveret.broker.cli.ctl.output import cell
from leveret.broker.cli.ctl.policies import delete_parameter
from leveret.broker.cli.ctl.session import Session, parsed


def _put_limits(session: Session, kind: str, owner: str, definition: str) -> None:
    limits = parsed(definition)
    if not isinstance(limits, dict):
        raise refused("a JSON object of limits is expected")
    for name, value in limits.items():
        session.api.put(kind, owner, name, body={"value": value})


@command("set_vhost_limits", argument("definition"), group=VHOSTS)
def set_vhost_limits(session: Session, definition: str) -> None:
    """Set limits of a virtual host, for instance '{"max-connections": 100, "max-publish-rate": 5000}'."""
    session.announce(f'Setting vhost limits to "{definition}" for vhost "{session.vhost}" ...')
    check_vhost(session, session.vhost)
    _put_limits(session, "vhost-limits", session.vhost, definition)


@command("clear_vhost_limits", group=VHOSTS)
def clear_vhost_limits(session: Session) -> None:
    """Remove the limits of a virtual host."""
    session.announce(f'Clearing vhost "{session.vhost}" limits ...')
    delete_parameter(session, "parameters", "vhost-limits", session.vhost, "limits")


@command("list_vhost_limits", option("--global", "everywhere", is_flag=True, help="Of all."), group=VHOSTS)
def list_vhost_limits(session: Session, *, everywhere: bool) -> None:
    """List the limits of a virtual host, or of all with --global."""
    if everywhere:
        session.announce("Listing limits for all vhosts ...")
        rows = [
            {"vhost": row["vhost"], "limits": cell(row["value"])} for row in session.api.get("vhost-limits")
        ]
        session.show_rows(rows, ("vhost", "limits"), blank=True)
        return
    session.announce(f'Listing limits for vhost "{session.vhost}" ...')
    check_vhost(session, session.vhost)
    limits = _joined(session.api.get("vhost-limits", session.vhost))
    found = {"node": session.node, "result": "ok", "value": cell(limits)}
    session.show_object(found if limits else [], [cell(limits) if limits else ""])


def _joined(rows: Any) -> dict[str, Any]:
    """Return the limits of all rows."""
    return {name: value for row in rows for name, value in dict(row["value"]).items()}


@command("set_user_limits", argument("username"), argument("definition"), group=USERS)
def set_user_limits(session: Session, username: str, definition: str) -> None:
    """Set limits of a user, for instance '{"max-connections": 10, "max-publish-rate": 500}'."""
    session.announce(f'Setting user limits to "{definition}" for user "{username}" ...')
    existing_user(session, username, exit_codes.UNAVAILABLE)
    _put_limits(session, "user-limits", username, definition)


@command("clear_user_limits", argument("username"), argument("limit"), group=USERS)
def clear_user_limits(session: Session, username: str, limit: str) -> None:
    """Remove a limit of a user; `all` for all of them."""
    what = "all limits" if limit == "all" else f'"{limit}" limit'
    session.announce(f'Clearing {what} for user "{username}" ...')
    existing_user(session, username)
    for row in session.api.get("user-limits", username):
        for name in row["value"]:
            if limit in {"all", name}:
                session.api.delete("user-limits", username, name)


@command(
    "list_user_limits",
    option("--user", default="guest", help="User (default: guest)."),
    option("--global", "everywhere", is_flag=True, help="Of all."),
    group=USERS,
)
def list_user_limits(session: Session, user: str, *, everywhere: bool) -> None:
    """List the limits of a user, or of all with --global."""
    if not everywhere:
        session.announce(f'Listing limits for user "{user}" ...')
        existing_user(session, user)
        limits = cell(_joined(session.api.get("user-limits", user)))
        session.show_object({"message": limits}, [limits])
        return
    session.announce("Listing limits for all users ...")
    rows = [{"user": row["user"], "limits": cell(row["value"])} for row in session.api.get("user-limits")]
    session.show_rows(rows, ("user", "limits"), blank=True)
