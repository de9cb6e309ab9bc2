"""The command that prints everything about a broker, for a report of a problem."""

import click

from leveret.broker.cli.ctl.access import list_permissions
from leveret.broker.cli.ctl.cluster import cluster_status
from leveret.broker.cli.ctl.command import command
from leveret.broker.cli.ctl.lists import (
    CHANNEL,
    CONNECTION,
    EXCHANGE,
    QUEUE,
    list_bindings,
    list_channels,
    list_connections,
    list_exchanges,
    list_queues,
)
from leveret.broker.cli.ctl.policies import list_global_parameters, list_parameters, list_policies
from leveret.broker.cli.ctl.session import Session
from leveret.broker.cli.ctl.status import environment, show_status


@command("report", group="Monitoring, observability and health checks")
def report(session: Session) -> None:
    """Print status, settings, connections, channels, and the objects of all virtual hosts, for a report of a problem.

    It has names and addresses, and no passwords.
    """
    whole = Session(session.api, {"timeout": session.given_seconds})
    whole.announce(f"Reporting server status of node {session.node} ...\n")
    show_status(whole, unit=None)
    click.echo()
    for show in (cluster_status, environment):
        show(whole)
        click.echo()
    list_connections(whole, tuple(CONNECTION))
    click.echo()
    list_channels(whole, tuple(CHANNEL))
    for vhost in session.api.get("vhosts"):
        _report_vhost(Session(session.api, {"timeout": session.given_seconds, "vhost": vhost["name"]}))


def _report_vhost(session: Session) -> None:
    """Print the objects of a virtual host."""
    click.echo()
    list_queues(session, tuple(QUEUE), online=False, offline=False, local=False)
    click.echo()
    list_exchanges(session, tuple(EXCHANGE))
    click.echo()
    list_bindings(session, ())
    for show in (list_permissions, list_policies, list_global_parameters, list_parameters):
        click.echo()
        show(session)
