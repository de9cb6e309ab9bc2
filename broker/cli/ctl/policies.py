"""Commands for policies and parameters, and for shovels, which are parameters."""

from typing import Any

import msgspec

from leveret.broker.cli.ctl.access import existing_vhost
from leveret.broker.cli.ctl.command import Session, command, option, parsed
from leveret.broker.cli.ctl.output import refused
from leveret.broker.client.uri import without_secrets

POLICIES = "Policies"
PARAMETERS = "Parameters"
SHOVELS = "Shovels"
COLUMNS = ("vhost", "name", "pattern", "apply-to", "definition", "priority")
_POLICY_OPTIONS = (
    option(
        "--priority", type=int, default=0, help="Of several that match, the one with the highest applies."
    ),
    option("--apply-to", default="all", help="queues, exchanges, all, classic_queues, quorum_queues"),
)


def _delete(session: Session, *path: str) -> None:
    session.api.delete(*path, missing=refused("Parameter does not exist"))


def _with_json(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [{**row, key: msgspec.json.encode(row[key]).decode()} for row in rows]


# -- policies ---------------------------------------------------------------------------------------------------


def _set(
    session: Session,
    what: tuple[str, str],
    name: str,
    pattern: str,
    definition: str,
    *,
    priority: int,
    apply_to: str,
) -> None:
    kind, path = what
    session.announce(
        f'Setting {kind} "{name}" for pattern "{pattern}" to "{definition}" with priority "{priority}" '
        f'for vhost "{session.vhost}" ...'
    )
    existing_vhost(session, session.vhost)
    given = {"pattern": pattern, "definition": parsed(definition), "priority": priority}
    session.api.put(path, session.vhost, name, body={**given, "apply-to": apply_to})


def _list(session: Session, path: str) -> None:
    existing_vhost(session, session.vhost)
    session.show_rows(_with_json(session.api.get(path, session.vhost), "definition"), COLUMNS)


@command(POLICIES, """-p shop short '^cache[.]' '{"max-length": 1000}' --apply-to queues""", *_POLICY_OPTIONS)
def set_policy(session: Session, name: str, pattern: str, definition: str, **options: Any) -> None:
    """Set a policy: settings for all queues or exchanges whose names match a regular expression.

    DEFINITION is a JSON object of settings, for instance '{"max-length": 1000}'.
    """
    _set(session, ("policy", "policies"), name, pattern, definition, **options)


@command(POLICIES, "-p shop short", says='Clearing policy "{name}" on vhost "{session.vhost}" ...')
def clear_policy(session: Session, name: str) -> None:
    """Remove a policy."""
    _delete(session, "policies", session.vhost, name)


@command(POLICIES, "-p shop", says='Listing policies for vhost "{session.vhost}" ...')
def list_policies(session: Session) -> None:
    """List the policies of a virtual host."""
    _list(session, "policies")


@command(POLICIES, """-p shop bounded '.*' '{"max-length": 1000000}'""", *_POLICY_OPTIONS)
def set_operator_policy(session: Session, name: str, pattern: str, definition: str, **options: Any) -> None:
    """Set an operator policy, which limits what arguments and other policies ask for.

    PATTERN and DEFINITION are as for set_policy; of two limits the lower applies.
    """
    _set(session, ("operator policy override", "operator-policies"), name, pattern, definition, **options)


@command(POLICIES, "-p shop bounded", says='Clearing operator policy "{name}" on vhost "{session.vhost}" ...')
def clear_operator_policy(session: Session, name: str) -> None:
    """Remove an operator policy."""
    _delete(session, "operator-policies", session.vhost, name)


@command(POLICIES, "-p shop", says='Listing operator policy overrides for vhost "{session.vhost}" ...')
def list_operator_policies(session: Session) -> None:
    """List the operator policies of a virtual host."""
    _list(session, "operator-policies")


# -- parameters -------------------------------------------------------------------------------------------------


@command(
    PARAMETERS,
    "-p shop shovel archive "
    """'{"src-uri": "amqp:///shop", "src-queue": "old", "dest-uri": "amqp:///shop", "dest-queue": "archive"}'""",
)
def set_parameter(session: Session, component_name: str, name: str, value: str) -> None:
    """Set a parameter of a component, such as vhost-limits; the value is JSON."""
    session.announce(
        f'Setting runtime parameter "{name}" for component "{component_name}" to "{without_secrets(value)}" '
        f'in vhost "{session.vhost}" ...'
    )
    body = {"value": parsed(value), "vhost": session.vhost, "component": component_name, "name": name}
    session.api.put("parameters", component_name, session.vhost, name, body=body)


@command(PARAMETERS, "-p shop shovel archive")
def clear_parameter(session: Session, component_name: str, name: str) -> None:
    """Remove a parameter."""
    session.announce(
        f'Clearing runtime parameter "{name}" for component "{component_name}" on vhost "{session.vhost}" ...'
    )
    _delete(session, "parameters", component_name, session.vhost, name)


@command(PARAMETERS, "-p shop", says='Listing runtime parameters for vhost "{session.vhost}" ...')
def list_parameters(session: Session) -> None:
    """List the parameters of a virtual host."""
    existing_vhost(session, session.vhost)
    rows = [row for row in session.api.get("parameters") if row["vhost"] == session.vhost]
    session.show_rows(_with_json(rows, "value"), ("component", "name", "value"), blank=True)


@command(PARAMETERS, """team '"logistics"'""")
def set_global_parameter(session: Session, name: str, value: str) -> None:
    """Set a global parameter; the value is JSON."""
    session.announce(f'Setting global runtime parameter "{name}" to "{value}" ...')
    session.api.put("global-parameters", name, body={"name": name, "value": parsed(value)})


@command(PARAMETERS, "team", says='Clearing global runtime parameter "{name}" ...')
def clear_global_parameter(session: Session, name: str) -> None:
    """Remove a global parameter."""
    _delete(session, "global-parameters", name)


@command(PARAMETERS, says="Listing global runtime parameters ...")
def list_global_parameters(session: Session) -> None:
    """List the global parameters."""
    session.show_rows(_with_json(session.api.get("global-parameters"), "value"), ("name", "value"))


# -- shovels ----------------------------------------------------------------------------------------------------

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
_ENDS = {  # columns of rabbitmqctl, and the keys of the API; those of the ends are there if a shovel has them
    "source_queue": "src_queue",
    "source_exchange": "src_exchange",
    "source_exchange_key": "src_exchange_key",
    "destination_queue": "dest_queue",
    "destination_exchange": "dest_exchange",
    "destination_exchange_key": "dest_exchange_key",
}


def _end(session: Session, *path: str) -> None:
    """Send the DELETE that ends a shovel, for good or to start it again."""
    missing = refused(
        f"Shovel with the given name was not found on the target node '{session.node}' "
        f"and / or virtual host '{session.vhost}'"
    )
    session.api.delete(*path, missing=missing)


@command(SHOVELS, says="Shovel status on node {session.node}")
def shovel_status(session: Session) -> None:
    """List the shovels and how they are."""
    found = session.api.get("shovels")
    ends = {column: key for column, key in _ENDS.items() if any(key in each for each in found)}
    keys = {**_EVERY, **ends}
    rows = [{column: each.get(key, "") for column, key in keys.items()} for each in found]
    session.show_rows(rows, sorted(keys), blank=True)


@command(SHOVELS, "-p shop archive")
def delete_shovel(session: Session, name: str, more: tuple[str, ...]) -> None:
    """Stop and delete shovels of a virtual host."""
    for each in (name, *more):
        session.announce(f"Deleting shovel {each} in vhost {session.vhost}")
        _end(session, "parameters", "shovel", session.vhost, each)


@command(SHOVELS, "-p shop archive")
def restart_shovel(session: Session, name: str) -> None:
    """Stop a shovel of a virtual host and start it again."""
    session.announce(
        f"Restarting dynamic Shovel {name} in virtual host {session.vhost} on node {session.node}"
    )
    _end(session, "shovels", "vhost", session.vhost, name, "restart")
