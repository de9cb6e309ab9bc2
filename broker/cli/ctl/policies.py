"""Commands for policies and parameters."""

from typing import Any

import click
import msgspec

from leveret.broker.cli.ctl.access import check_vhost
from leveret.broker.cli.ctl.client import ApiError
from leveret.broker.cli.ctl.command import argument, command, option
from leveret.broker.cli.ctl.errors import refused
from leveret.broker.cli.ctl.session import Session, parsed
from leveret.broker.client.uri import without_secrets

POLICIES = "Policies"
PARAMETERS = "Parameters"
_NOT_FOUND = 404
COLUMNS = ("vhost", "name", "pattern", "apply-to", "definition", "priority")


def delete_parameter(session: Session, *path: str) -> None:
    """Remove a policy or a parameter; raises CtlError if there is none."""
    try:
        session.api.delete(*path)
    except ApiError as error:
        raise refused("Parameter does not exist") if error.status == _NOT_FOUND else error from None


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _set_options() -> tuple[click.Parameter, ...]:
    return (
        argument("name"),
        argument("pattern"),
        argument("definition"),
        option("--priority", type=int, default=0, help="Of several that match, the one with the highest applies."),
        option("--apply-to", default="all", help="queues, exchanges, all, classic_queues, quorum_queues"),
    )  # fmt: skip


def _set(session: Session, path: str, what: str, given: dict[str, Any]) -> None:
    name, pattern, definition, priority = (
        given[key] for key in ("name", "pattern", "definition", "priority")
    )
    session.announce(
        f'Setting {what} "{name}" for pattern "{pattern}" to "{definition}" with priority "{priority}" '
        f'for vhost "{session.vhost}" ...'
    )
    check_vhost(session, session.vhost)
    body = {
        "pattern": pattern,
        "definition": parsed(definition),
        "priority": priority,
        "apply-to": given["apply_to"],
    }
    session.api.put(path, session.vhost, name, body=body)


def _list(session: Session, path: str) -> None:
    check_vhost(session, session.vhost)
    rows = [{**row, "definition": _json(row["definition"])} for row in session.api.get(path, session.vhost)]
    session.show_rows(rows, COLUMNS)


@command("set_policy", *_set_options(), group=POLICIES)
def set_policy(session: Session, **given: Any) -> None:
    """Set a policy: settings for all queues or exchanges whose names match a regular expression.

    DEFINITION is a JSON object of settings, for instance '{"max-length": 1000}'.
    """
    _set(session, "policies", "policy", given)


@command("clear_policy", argument("name"), group=POLICIES)
def clear_policy(session: Session, name: str) -> None:
    """Remove a policy."""
    session.announce(f'Clearing policy "{name}" on vhost "{session.vhost}" ...')
    delete_parameter(session, "policies", session.vhost, name)


@command("list_policies", group=POLICIES)
def list_policies(session: Session) -> None:
    """List the policies of a virtual host."""
    session.announce(f'Listing policies for vhost "{session.vhost}" ...')
    _list(session, "policies")


@command("set_operator_policy", *_set_options(), group=POLICIES)
def set_operator_policy(session: Session, **given: Any) -> None:
    """Set an operator policy, which limits what arguments and other policies ask for.

    PATTERN and DEFINITION are as for set_policy; of two limits the lower applies.
    """
    _set(session, "operator-policies", "operator policy override", given)


@command("clear_operator_policy", argument("name"), group=POLICIES)
def clear_operator_policy(session: Session, name: str) -> None:
    """Remove an operator policy."""
    session.announce(f'Clearing operator policy "{name}" on vhost "{session.vhost}" ...')
    delete_parameter(session, "operator-policies", session.vhost, name)


@command("list_operator_policies", group=POLICIES)
def list_operator_policies(session: Session) -> None:
    """List the operator policies of a virtual host."""
    session.announce(f'Listing operator policy overrides for vhost "{session.vhost}" ...')
    _list(session, "operator-policies")


@command(
    "set_parameter", argument("component_name"), argument("name"), argument("value"), group=PARAMETERS
)  # fmt: skip
def set_parameter(session: Session, component_name: str, name: str, value: str) -> None:
    """Set a parameter of a component, such as vhost-limits; the value is JSON."""
    session.announce(
        f'Setting runtime parameter "{name}" for component "{component_name}" to "{without_secrets(value)}" '
        f'in vhost "{session.vhost}" ...'
    )
    body = {"value": parsed(value), "vhost": session.vhost, "component": component_name, "name": name}
    session.api.put("parameters", component_name, session.vhost, name, body=body)


@command("clear_parameter", argument("component_name"), argument("name"), group=PARAMETERS)
def clear_parameter(session: Session, component_name: str, name: str) -> None:
    """Remove a parameter."""
    session.announce(
        f'Clearing runtime parameter "{name}" for component "{component_name}" on vhost "{session.vhost}" ...'
    )
    delete_parameter(session, "parameters", component_name, session.vhost, name)


@command("list_parameters", group=PARAMETERS)
def list_parameters(session: Session) -> None:
    """List the parameters of a virtual host."""
    session.announce(f'Listing runtime parameters for vhost "{session.vhost}" ...')
    check_vhost(session, session.vhost)
    rows = [
        {**row, "value": _json(row["value"])}
        for row in session.api.get("parameters")
        if row["vhost"] == session.vhost
    ]
    session.show_rows(rows, ("component", "name", "value"), blank=True)


@command("set_global_parameter", argument("name"), argument("value"), group=PARAMETERS)
def set_global_parameter(session: Session, name: str, value: str) -> None:
    """Set a global parameter; the value is JSON."""
    session.announce(f'Setting global runtime parameter "{name}" to "{value}" ...')
    session.api.put("global-parameters", name, body={"name": name, "value": parsed(value)})


@command("clear_global_parameter", argument("name"), group=PARAMETERS)
def clear_global_parameter(session: Session, name: str) -> None:
    """Remove a global parameter."""
    session.announce(f'Clearing global runtime parameter "{name}" ...')
    delete_parameter(session, "global-parameters", name)


@command("list_global_parameters", group=PARAMETERS)
def list_global_parameters(session: Session) -> None:
    """List the global parameters."""
    session.announce("Listing global runtime parameters ...")
    rows = [{**row, "value": _json(row["value"])} for row in session.api.get("global-parameters")]
    session.show_rows(rows, ("name", "value"))
